"""What a reply teaches: what its request cost, message by message, and what was sent."""

from __future__ import annotations

from typing import Any, Literal

from crew.change import changed
from crew.history.history import History
from crew.history.token_budget import BilledTokens, Calibration, calibrate
from crew.history.view import View, entry_codes, visible_entries, with_marker
from crew.interfaces import HistoryEntry
from crew.runs.counters import RunCounters, add_costs
from crew.runs.events import Replied
from crew.transitions.plan import token_budget_for, with_token_budget
from crew.transitions.step import Step

_SHORT_REPLY_TOKENS = 64


def learn_from_bill(step: Step, event: Replied) -> int:
    """The request behind this reply is what the agent saw last, and its bill corrects the counts.

    Returns the reply's own tokens, in the unit of estimates.
    """
    state, name = step.state, step.state.agent
    view = state.views.get(name, View())
    gauge = token_budget_for(step.plan, state, name)
    calibration = state.calibrations.get(gauge.model, Calibration())
    entries = visible_entries(state.history, view)
    sent = with_marker(entries, view)
    numbers = entry_codes(sent, view)
    seen = state.counters.tokens_appended
    billed = event.usage.input_tokens
    held_tokens = billed - gauge.overhead_tokens if billed else sum([entry.tokens for entry in sent])
    left_out = round(seen * calibration.estimate_ratio) - held_tokens if len(sent) < len(state.transcript) else 0
    fresh = changed(
        view,
        turn=view.turn + 1,
        last_request=numbers,
        last_model=gauge.model,
        last_tokens_appended=seen,
        moved_by="",
        overflow_count=0,
    )
    changes: dict[str, Any] = {
        "views": {**state.views, name: fresh},
        "counters": _count_request(state.counters, event, left_out),
    }

    if billed:
        held: Literal["held", "moved", "first"] = "moved"

        if not view.last_request or view.last_model != gauge.model:
            held = "first"
        elif numbers[: len(view.last_request)] == view.last_request:
            held = "held"

        found = calibrate(calibration, gauge.overhead_tokens, sent, state.billed_until, billed, held=held)
        calibration = found.calibration
        changes.update(
            history=_recount_history(state.history, entries, found, state.billed_until),
            token_budgets=with_token_budget(state, name, changed(gauge, overhead_tokens=found.overhead_tokens)),
            calibrations={**state.calibrations, gauge.model: calibration},
            billed_until=len(state.transcript),
        )

    step.set(**changes)
    return _reply_tokens(event, calibration)


def _recount_history(history: History, entries: tuple[HistoryEntry, ...], found: BilledTokens, known: int) -> History:
    """The history with what each message costs; what was shown in part, or not at all, is only converted."""
    # What was billed before mostly stays as it is: only the newest entries are looked at then.
    first = known if not found.tokens_by_position or min(found.tokens_by_position) >= known else 0
    seen = {
        entry.position: entry for entry in _entries_since(first, entries) if entry.position in found.tokens_by_position
    }
    factor = found.calibration.estimate_ratio / found.calibration.billed_scale

    def correct(entry: HistoryEntry) -> HistoryEntry:
        if seen.get(entry.position) is entry:
            return changed(entry, tokens=found.tokens_by_position[entry.position])

        return changed(entry, tokens=round(entry.tokens * factor)) if entry.position >= known else entry

    newest = _entries_since(first, history.entries)
    front = history.entries[: len(history.entries) - len(newest)]
    return changed(history, entries=front + tuple(map(correct, newest)))


def _entries_since(position: int, entries: tuple[HistoryEntry, ...]) -> tuple[HistoryEntry, ...]:
    """The entries from this place in the transcript on; they stand in its order."""
    start = len(entries)

    while start and entries[start - 1].position >= position:
        start -= 1

    return entries[start:]


def _reply_tokens(event: Replied, calibration: Calibration) -> int:
    """The reply as the next request will count it: as it was billed, where that can be."""
    usage = event.usage
    billed = usage.output_tokens - (0 if event.message.provider_data else usage.reasoning_tokens)
    plausible = event.tokens / 2 < billed and (event.message.provider_data or billed < 2 * event.tokens + 64)
    exact = round(billed / calibration.estimate_ratio) if plausible else event.tokens
    # In a short reply, what the service wraps around a call as it is written outweighs the call itself.
    return exact if billed > _SHORT_REPLY_TOKENS else min(exact, event.tokens)


def _count_request(tally: RunCounters, event: Replied, left_out: int) -> RunCounters:
    tally = changed(
        tally,
        tokens_saved=tally.tokens_saved + max(0, left_out),
        cost_saved=add_costs(tally.cost_saved, event.cost_saved),
    )
    manifest = event.message.manifest

    if manifest is None:
        return tally

    return changed(
        tally,
        tokens_estimated=tally.tokens_estimated + manifest.tokens_estimated,
        cached_predicted=tally.cached_predicted + manifest.cached_predicted,
        prefix_breaks=tally.prefix_breaks + bool(manifest.moved_by and manifest.turn),
    )
