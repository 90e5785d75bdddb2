"""What comes before a model is asked."""

from __future__ import annotations

from typing import Literal

from crew.execution.advance.compact import compact_first, warn_if_bare
from crew.execution.advance.draft import Draft
from crew.execution.advance.looking import Look, look
from crew.runs import AskModel, Tally
from crew.runs.events import Warned

NEARLY = 0.8


def ask(draft: Draft, again: Literal["", "empty", "output"] = "") -> None:
    """The agent's model is next, unless a limit says otherwise; its view is made ready for it."""
    if stopped(draft) or compact_first(draft, again):
        return

    for name, value, limit in _spent(draft):
        _warn(draft, f"limits.{name}", value, limit)

    _warn_of_unknown_cost(draft)
    seen = look(draft)
    _warn_of_sizes(draft, seen)
    warn_if_bare(draft, seen.size)
    draft.set(next=AskModel(again=again))


def ask_no_more(draft: Draft, why: str) -> None:
    """The model had its second chance; whoever resumes the run gives it another one."""
    look(draft)
    draft.set(next=AskModel(again="output", failed=why))


def stopped(draft: Draft) -> bool:
    """Whether a limit ends the run here, before a model is asked once more."""
    for name, value, limit in _spent(draft):
        if limit is not None and value is not None and value >= limit:
            draft.stop_at(name, limit)
            return True

    return False


def _spent(draft: Draft) -> list[tuple[str, float | None, float | None]]:
    limits, tally = draft.state.limits, draft.state.tally
    return [
        ("rounds", tally.rounds, limits.rounds),
        ("tokens", tally.usage.total_tokens, limits.tokens),
        ("cost_usd", _least_cost(tally), limits.cost_usd),
        ("seconds", draft.state.active_seconds, limits.seconds),
    ]


def _least_cost(tally: Tally) -> float:
    """What was spent at the least: one model without a known price hides the sum, not what the others cost."""
    known = tally.usage.cost
    return sum(usage.cost or 0.0 for usage in tally.by_agent.values()) if known is None else known


def _warn_of_unknown_cost(draft: Draft) -> None:
    usage, name = draft.state.tally.usage, "unknown cost"

    if draft.state.limits.cost_usd is None or not usage.requests or usage.cost is not None:
        return

    if name not in draft.state.warned:
        draft.set(warned=(*draft.state.warned, name))
        draft.say(
            Warned, text="limits.cost_usd holds for what has a price: that of one of this run's models is unknown."
        )


def _warn_of_sizes(draft: Draft, seen: Look) -> None:
    _warn(draft, "max_messages_per_request", draft.state.history.size, draft.plan.budget.limit)
    parameters = draft.state.parameters
    _warn(draft, "max_history_size", seen.size, parameters.max_history_size)
    _warn(draft, "max_tokens", seen.tokens, parameters.max_tokens)
    _warn(draft, f"window of {seen.name}", seen.before, seen.gauge.window)


def _warn(draft: Draft, name: str, value: float | None, limit: float | None) -> None:
    """At four fifths of a limit, once a run: a history that is pruned in blocks comes near it again and again."""
    if not limit or value is None or value < NEARLY * limit or name in draft.state.warned:
        return

    draft.set(warned=(*draft.state.warned, name))
    draft.say(Warned, text=f"{name}: {value:g} of {limit:g} used ({value / limit:.0%}).")
