"""Whether a summary is made before a model is asked: explicit compression first, then the policy's own."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from crew.history.compression import spans_to_compress
from crew.history.eviction import group_entries
from crew.messages import SummaryMessage
from crew.runs.counters import RunCounters
from crew.runs.events import Warned
from crew.runs.state import AskModel, Compact
from crew.transitions.step import Step
from crew.transitions.view_fitting import ViewFitter, fit_view

MIN_EVICTED = 10
"""At most one summary for so many messages evicted."""


def start_compaction_if_due(draft: Step, again: Literal["", "empty", "output"] = "") -> bool:
    """Whether a summary comes before the model is asked; if not, what it is about to be shown is noted down."""
    state, backlog = draft.state, draft.state.backlog
    strategy = state.parameters.compression_strategy

    if strategy is not None:
        parts = spans_to_compress(group_entries(state.history.entries, state.history.goal), strategy, backlog.verbatim)

        if parts:
            draft.set(next=Compact(parts=parts, strategy=strategy.kind, again=again))
            return True

    if backlog.ids and backlog.since >= MIN_EVICTED and backlog.says_something:
        draft.set(next=Compact(parts=(backlog.ids,), again=again))
        return True

    if draft.plan.summarizes or backlog.ids or backlog.left:
        draft.set(backlog=replace(backlog, left=(), asked=state.agent, newest=len(state.transcript) - 1))

    return False


def _warn_if_nearly_empty(draft: Step, size: int) -> None:
    """Compression and limits together may leave a request with hardly anything in it: that is said, once a run."""
    strategy = draft.state.parameters.compression_strategy

    if strategy is None or size >= 2 or strategy.kind in draft.state.warned:
        return

    if any(isinstance(entry.message, SummaryMessage) for entry in draft.state.history.entries):
        draft.set(warned=(*draft.state.warned, strategy.kind))
        draft.say(Warned, text=f"{strategy.kind} and the limits leave {size} message in the request.")


WARN_AT = 0.8


def ask_model_next(draft: Step, again: Literal["", "empty", "output"] = "") -> None:
    """The agent's model is next, unless a limit says otherwise; its view is made ready for it."""
    if stop_if_limit_reached(draft) or start_compaction_if_due(draft, again):
        return

    for name, value, limit in _limit_usage(draft):
        _warn_near_limit(draft, f"limits.{name}", value, limit)

    _warn_of_unknown_cost(draft)
    seen = fit_view(draft)
    _warn_of_sizes(draft, seen)
    _warn_if_nearly_empty(draft, seen.size)
    draft.set(next=AskModel(again=again))


def give_up_on_output(draft: Step, why: str) -> None:
    """The model had its second chance; whoever resumes the run gives it another one."""
    fit_view(draft)
    draft.set(next=AskModel(again="output", failed=why))


def stop_if_limit_reached(draft: Step) -> bool:
    """Whether a limit ends the run here, before a model is asked once more."""
    for name, value, limit in _limit_usage(draft):
        if limit is not None and value is not None and value >= limit:
            draft.stop_at(name, limit)
            return True

    return False


def _limit_usage(draft: Step) -> list[tuple[str, float | None, float | None]]:
    limits, tally = draft.state.limits, draft.state.tally
    return [
        ("rounds", tally.rounds, limits.rounds),
        ("tokens", tally.usage.total_tokens, limits.tokens),
        ("cost_usd", _known_cost(tally), limits.cost_usd),
        ("seconds", draft.state.active_seconds, limits.seconds),
    ]


def _known_cost(tally: RunCounters) -> float:
    """What was spent at the least: one model without a known price hides the sum, not what the others cost."""
    known = tally.usage.cost
    return sum(usage.cost or 0.0 for usage in tally.by_agent.values()) if known is None else known


def _warn_of_unknown_cost(draft: Step) -> None:
    usage, name = draft.state.tally.usage, "unknown cost"

    if draft.state.limits.cost_usd is None or not usage.requests or usage.cost is not None:
        return

    if name not in draft.state.warned:
        draft.set(warned=(*draft.state.warned, name))
        draft.say(
            Warned, text="limits.cost_usd holds for what has a price: that of one of this run's models is unknown."
        )


def _warn_of_sizes(draft: Step, seen: ViewFitter) -> None:
    _warn_near_limit(draft, "max_messages_per_request", draft.state.history.size, draft.plan.budget.limit)
    parameters = draft.state.parameters
    _warn_near_limit(draft, "max_history_size", seen.size, parameters.max_history_size)
    _warn_near_limit(draft, "max_tokens", seen.tokens, parameters.max_tokens)
    _warn_near_limit(draft, f"window of {seen.name}", seen.before, seen.gauge.window)


def _warn_near_limit(draft: Step, name: str, value: float | None, limit: float | None) -> None:
    """At four fifths of a limit, once a run: a history that is pruned in blocks comes near it again and again."""
    if not limit or value is None or value < WARN_AT * limit or name in draft.state.warned:
        return

    draft.set(warned=(*draft.state.warned, name))
    draft.say(Warned, text=f"{name}: {value:g} of {limit:g} used ({value / limit:.0%}).")
