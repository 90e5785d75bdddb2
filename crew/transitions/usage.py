"""What a reply teaches: the tokens of its request, message by message, and how its model counts."""

from __future__ import annotations

from typing import Literal

from crew.fast_replace import fast_replace
from crew.history.history import History
from crew.history.request_head import head_change
from crew.history.token_budget import BilledTokens, Calibration, calibrate, scale_overheads
from crew.history.view import View
from crew.history.view_summaries import recount_summaries
from crew.interfaces import HistoryEntry
from crew.messages import add_costs
from crew.runs.events import Replied
from crew.runs.state import request_view
from crew.transitions.plan import with_token_budget
from crew.transitions.prepared_agents import current_head
from crew.transitions.step import Step

_SHORT_REPLY_TOKENS = 64
_IMPLAUSIBLE_WINDOWS = 8
"""A bill of more windows than this teaches nothing; a known window may be too small, but not by so much."""


def learn_from_bill(step: Step, event: Replied) -> int:
    """Correct token counts by the bill of the request behind this reply, and note the request as the last one.

    Returns the tokens of the reply itself, in the unit of estimates.
    """
    name = step.agent
    view = step.views.get(name, View())
    content = request_view(step)
    token_budget, head = step.token_budget, current_head(step.plan, step)
    calibration = step.calibrations.get(token_budget.model, Calibration())
    appended, billed = step.counters.tokens_appended, event.usage.input_tokens

    if billed > _IMPLAUSIBLE_WINDOWS * token_budget.window:
        billed = 0  # it counts against the limits, but the request was answered, so that it can't be that long

    request_tokens = billed - token_budget.overhead_tokens if billed else sum([entry.tokens for entry in content.sent])
    is_complete = len(content.sent) >= len(step.transcript)
    tokens_left_out = 0 if is_complete else round(appended * calibration.estimate_ratio) - request_tokens
    _count_request(step, event, tokens_left_out)
    step.views = {
        **step.views,
        name: fast_replace(
            view,
            turn=view.turn + 1,
            last_request=content.codes,
            last_model=token_budget.model,
            last_head=head,
            last_tokens_appended=appended,
            moved_by="",
            overflow_count=0,
        ),
    }

    if billed:
        prefix: Literal["held", "moved", "first"] = "moved"

        is_other = view.last_model != token_budget.model or head_change(view.last_head, head)

        if not view.last_request or is_other:
            prefix = "first"
        elif content.codes[: len(view.last_request)] == view.last_request:
            prefix = "held"

        found = calibrate(
            calibration, token_budget.overhead_tokens, content.sent, step.billed_until, billed, held=prefix
        )
        calibration = found.calibration
        step.history = _recount_history(step.history, content.entries, found, step.billed_until)

        if calibration.bill_count == 1:
            counted = token_budget.overhead_tokens + sum(entry.tokens for entry in content.sent)
            step.token_budgets = scale_overheads(step.token_budgets, token_budget.model, billed / max(1, counted))

        step.token_budgets = with_token_budget(
            step, name, fast_replace(token_budget, overhead_tokens=found.overhead_tokens)
        )
        step.calibrations = {**step.calibrations, token_budget.model: calibration}

        if view.own_summaries:
            step.views = {**step.views, name: recount_summaries(step.views[name], found.tokens_by_position)}

        step.billed_until = len(step.transcript)

    return _reply_tokens(event, calibration)


def _recount_history(
    history: History, visible: tuple[HistoryEntry, ...], found: BilledTokens, billed_until: int
) -> History:
    """The history with the tokens of each message as billed; messages sent in part, or not at all, are converted."""
    # Messages that were billed before mostly keep their tokens: then only the newest entries are looked at.
    by_position = found.tokens_by_position
    first = billed_until if not by_position or min(by_position) >= billed_until else 0
    sent = {entry.position: entry for entry in _entries_since(first, visible) if entry.position in by_position}
    factor = found.calibration.estimate_ratio / found.calibration.billed_scale

    def correct(entry: HistoryEntry) -> HistoryEntry:
        if sent.get(entry.position) is entry:
            tokens = by_position[entry.position]
        elif entry.position >= billed_until:
            tokens = round(entry.tokens * factor)
        else:
            return entry

        if tokens == entry.tokens:
            return entry

        return HistoryEntry(message=entry.message, position=entry.position, tokens=tokens)

    newest = _entries_since(first, history.entries)
    front = history.entries[: len(history.entries) - len(newest)]
    return fast_replace(history, entries=front + tuple(map(correct, newest)))


def _entries_since(position: int, entries: tuple[HistoryEntry, ...]) -> tuple[HistoryEntry, ...]:
    """The entries from this position of the transcript on; entries are in its order."""
    start = len(entries)

    while start and entries[start - 1].position >= position:
        start -= 1

    return entries[start:]


def _reply_tokens(event: Replied, calibration: Calibration) -> int:
    """The tokens of the reply in the next request: as billed, where that is plausible."""
    usage = event.usage
    billed = usage.output_tokens - (0 if event.message.provider_data else usage.reasoning_tokens)
    plausible = event.tokens / 2 < billed and (event.message.provider_data or billed < 2 * event.tokens + 64)
    exact = round(billed / calibration.estimate_ratio) if plausible else event.tokens
    # In a short reply, what the service adds around a call when it is written outweighs the call itself.
    return exact if billed > _SHORT_REPLY_TOKENS else min(exact, event.tokens)


def _count_request(step: Step, event: Replied, tokens_left_out: int) -> None:
    counters, manifest = step.counters, event.message.manifest
    step.counters = fast_replace(
        counters,
        tokens_saved=counters.tokens_saved + max(0, tokens_left_out),
        cost_saved=add_costs(counters.cost_saved, event.cost_saved),
        tokens_estimated=counters.tokens_estimated + (manifest.tokens_estimated if manifest else 0),
        cached_predicted=counters.cached_predicted + (manifest.cached_predicted if manifest else 0),
        prefix_breaks=counters.prefix_breaks + bool(manifest and manifest.moved_by and manifest.turn),
    )
