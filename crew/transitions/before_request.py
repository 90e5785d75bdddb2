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


def start_compaction_if_due(step: Step, again: Literal["", "empty", "output"] = "") -> bool:
    """Whether a summary comes before the model is asked; if not, what it is about to be shown is noted down."""
    state, backlog = step.state, step.state.pending_summary
    strategy = state.parameters.compression_strategy

    if strategy is not None:
        parts = spans_to_compress(
            group_entries(state.history.entries, state.history.goal), strategy, backlog.incompressible_ids
        )

        if parts:
            step.set(next=Compact(spans=parts, strategy=strategy.kind, repeat_reason=again))
            return True

    if backlog.message_ids and backlog.evicted_since_attempt >= MIN_EVICTED and backlog.has_text:
        step.set(next=Compact(spans=(backlog.message_ids,), repeat_reason=again))
        return True

    if step.plan.options.summarizes or backlog.message_ids or backlog.evicted_since_request:
        step.set(
            pending_summary=replace(
                backlog,
                evicted_since_request=(),
                last_request_agent=state.agent,
                last_request_end=len(state.transcript) - 1,
            )
        )

    return False


def _warn_if_nearly_empty(step: Step, size: int) -> None:
    """Compression and limits together may leave a request with hardly anything in it: that is said, once a run."""
    strategy = step.state.parameters.compression_strategy

    if strategy is None or size >= 2 or strategy.kind in step.state.warnings_sent:
        return

    if any(isinstance(entry.message, SummaryMessage) for entry in step.state.history.entries):
        step.set(warnings_sent=(*step.state.warnings_sent, strategy.kind))
        step.emit(Warned, text=f"{strategy.kind} and the limits leave {size} message in the request.")


WARN_AT = 0.8


def ask_model_next(step: Step, again: Literal["", "empty", "output"] = "") -> None:
    """The agent's model is next, unless a limit says otherwise; its view is made ready for it."""
    if stop_if_limit_reached(step) or start_compaction_if_due(step, again):
        return

    for name, value, limit in _limit_usage(step):
        _warn_near_limit(step, f"limits.{name}", value, limit)

    _warn_of_unknown_cost(step)
    seen = fit_view(step)
    _warn_of_sizes(step, seen)
    _warn_if_nearly_empty(step, seen.size)
    step.set(next=AskModel(repeat_reason=again))


def give_up_on_output(step: Step, why: str) -> None:
    """The model had its second chance; whoever resumes the run gives it another one."""
    fit_view(step)
    step.set(next=AskModel(repeat_reason="output", failure=why))


def stop_if_limit_reached(step: Step) -> bool:
    """Whether a limit ends the run here, before a model is asked once more."""
    for name, value, limit in _limit_usage(step):
        if limit is not None and value is not None and value >= limit:
            step.stop_at_limit(name, limit)
            return True

    return False


def _limit_usage(step: Step) -> list[tuple[str, float | None, float | None]]:
    limits, tally = step.state.limits, step.state.counters
    return [
        ("rounds", tally.rounds, limits.rounds),
        ("tokens", tally.usage.total_tokens, limits.tokens),
        ("cost_usd", _known_cost(tally), limits.cost_usd),
        ("seconds", step.state.active_seconds, limits.seconds),
    ]


def _known_cost(tally: RunCounters) -> float:
    """What was spent at the least: one model without a known price hides the sum, not what the others cost."""
    known = tally.usage.cost
    return sum(usage.cost or 0.0 for usage in tally.by_agent.values()) if known is None else known


def _warn_of_unknown_cost(step: Step) -> None:
    usage, name = step.state.counters.usage, "unknown cost"

    if step.state.limits.cost_usd is None or not usage.requests or usage.cost is not None:
        return

    if name not in step.state.warnings_sent:
        step.set(warnings_sent=(*step.state.warnings_sent, name))
        step.emit(
            Warned, text="limits.cost_usd holds for what has a price: that of one of this run's models is unknown."
        )


def _warn_of_sizes(step: Step, seen: ViewFitter) -> None:
    _warn_near_limit(step, "max_messages_per_request", step.state.history.size, step.plan.budget.limit)
    parameters = step.state.parameters
    _warn_near_limit(step, "max_history_size", seen.size, parameters.max_history_size)
    _warn_near_limit(step, "max_tokens", seen.tokens, parameters.max_tokens)
    _warn_near_limit(step, f"window of {seen.name}", seen.tokens_before_fitting, seen.gauge.window)


def _warn_near_limit(step: Step, name: str, value: float | None, limit: float | None) -> None:
    """At four fifths of a limit, once a run: a history that is pruned in blocks comes near it again and again."""
    if not limit or value is None or value < WARN_AT * limit or name in step.state.warnings_sent:
        return

    step.set(warnings_sent=(*step.state.warnings_sent, name))
    step.emit(Warned, text=f"{name}: {value:g} of {limit:g} used ({value / limit:.0%}).")
