"""What follows a summarizer's answer: a summary in the history, or another attempt later."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from crew.fast_replace import fast_replace
from crew.history.summaries import complete_summary, last_position, locate_messages
from crew.history.tokens import estimate_message_tokens
from crew.history.view import RequestView
from crew.history.view_summaries import note_shared_summary
from crew.messages import SummaryMessage, add_costs
from crew.runs.events import Compacted, CompactionFailed, Summarised, UsageChanged
from crew.runs.state import Compact
from crew.transitions.before_request import ask_model_next, stop_if_limit_reached
from crew.transitions.step import Step


def on_summarised(step: Step, event: Summarised) -> None:
    """A summarizer answered, or failed."""
    now = step.next
    assert isinstance(now, Compact)
    _count_summary(step, event)
    span = [message for _, message in locate_messages(step.transcript, event.covers)]
    text = "" if event.error else complete_summary(event.text, span)

    if now.strategy:
        _collect_compression(step, now, event, text)
        return

    problem = event.error or ("the summary is not smaller than what it replaces" if text is None else "")

    if now.where == "view":
        _summarize_view(step, event.covers, text or "", problem)
        ask_model_next(step, now.repeat_reason)
        return

    problem = problem or (
        "" if text and _insert_summaries(step, [(event.covers, text)]) else "there is no room for a summary"
    )

    if problem:
        step.pending_summary = fast_replace(step.pending_summary, evicted_since_attempt=0)
        _emit_failure(step, step.plan.policy.name, problem)

    ask_model_next(step, now.repeat_reason)


def _summarize_view(step: Step, covers: Sequence[str], text: str, problem: str) -> None:
    """Show a summary in the view of the current agent, or let its messages wait for the next attempt."""
    view, cause = step.view_of(step.agent), step.plan.summary_policy(step.agent, "view").policy.name
    assert view.summaries is not None

    if problem:
        waiting = fast_replace(view.summaries, left_since_attempt=0)
        step.views = {**step.views, step.agent: fast_replace(view, summaries=waiting)}
        pending = len(waiting.pending)
        step.emit(CompactionFailed, cause=cause, reason=problem, pending_messages=pending, where="view")
        return

    message = SummaryMessage(text, covers=tuple(covers))
    name = step.append_view_summary(message, cause)
    step.emit(
        Compacted,
        cause=cause,
        summary=name,
        covers=tuple(covers),
        tokens_before=sum(estimate_message_tokens(m) for _, m in locate_messages(step.transcript, covers)),
        tokens_after=estimate_message_tokens(message),
        size=RequestView.of(step.history, step.views[step.agent]).size,
        limit=step.plan.view_limit(step.agent),
        where="view",
    )


def _count_summary(step: Step, event: Summarised) -> None:
    if not event.usage.requests:
        return

    step.count_usage(event.usage)
    cost = event.usage.cost
    step.counters = fast_replace(
        step.counters, cost_saved=add_costs(step.counters.cost_saved, None if cost is None else -cost)
    )
    step.emit(UsageChanged, usage=step.counters.usage)


def _collect_compression(step: Step, now: Compact, event: Summarised, text: str | None) -> None:
    """Store one part of an explicit compression; all parts take effect together, or none does."""
    if text is None and _was_evicted(step, now, event.covers):
        # A summary is all that can be shown of these messages, whatever its size.
        text = event.text.strip()

    is_block = now.strategy == "whole_history_multiple_system_messages" and len(now.spans) > 1
    stays = text is None and (now.strategy == "chunked" or is_block)
    problem = event.error or ("" if text or stays else "the summary is not smaller than what it replaces")

    if problem:
        step.next = fast_replace(now, failure=problem)
        _emit_failure(step, now.strategy, problem)
        return

    texts = (*now.summaries, text or "")
    step.next = fast_replace(now, summaries=texts, failure="")

    if len(texts) < len(now.spans):
        stop_if_limit_reached(step)
        return

    parts = [*zip(now.spans, texts, strict=True)]
    verbatim = [*step.pending_summary.incompressible_ids, *(id for part, made in parts if not made for id in part)]
    parts = [(part, made) for part, made in parts if made]

    if parts and not _insert_summaries(step, parts, cause=now.strategy):
        verbatim.extend(id for part, _ in parts for id in part)

    shown = {entry.message.id for entry in step.history.entries}
    kept = tuple(id for id in verbatim if id in shown)
    step.pending_summary = fast_replace(step.pending_summary, incompressible_ids=kept)
    ask_model_next(step, now.repeat_reason)


def _was_evicted(step: Step, now: Compact, covers: Sequence[str]) -> bool:
    """Whether the bound evicted some of these messages. Chunks stand alone; other parts belong together."""
    ids = covers if now.strategy == "chunked" else [id for part in now.spans for id in part]
    return not {entry.message.id for entry in step.history.entries}.issuperset(ids)


def _emit_failure(step: Step, cause: str, problem: str) -> None:
    step.emit(CompactionFailed, cause=cause, reason=problem, pending_messages=len(step.pending_summary.message_ids))


def _insert_summaries(step: Step, parts: Sequence[tuple[Sequence[str], str]], cause: str = "") -> bool:
    """Put a summary in the place of each part; whether there was space for one."""
    found = [locate_messages(step.transcript, covers) for covers, _ in parts]
    positions = [last_position(step.transcript, places) for places in found]
    messages = [SummaryMessage(text, covers=tuple(covers)) for covers, text in parts]
    before = step.history
    inserted = step.insert_summaries(*zip(messages, positions, strict=True))

    if not inserted:
        return False

    for position, summary in zip(positions, inserted, strict=True):
        step.views = {
            agent: note_shared_summary(view, before, step.history, position, summary.covers, step.transcript)
            for agent, view in step.views.items()
        }

    _remove_pending(step, {id for covers, _ in parts for id in covers})

    for summary, places in zip(inserted, found, strict=True):
        step.emit(
            Compacted,
            cause=cause or step.plan.policy.name,
            summary=summary.id,
            covers=summary.covers,
            tokens_before=sum(estimate_message_tokens(m) for _, m in places),
            tokens_after=estimate_message_tokens(summary),
            size=step.history.size,
            limit=step.plan.budget.limit,
        )

    return True


def _remove_pending(step: Step, covered: Collection[str]) -> None:
    pending = step.pending_summary
    waiting = tuple(id for id in pending.message_ids if id not in covered)
    step.pending_summary = fast_replace(pending, message_ids=waiting, evicted_since_attempt=0, has_text=bool(waiting))
