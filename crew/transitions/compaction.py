"""What follows a summarizer's answer: a summary in the history, or another attempt later."""

from __future__ import annotations

from collections.abc import Sequence

from crew.fast_replace import fast_replace
from crew.history.summaries import complete_summary
from crew.history.tokens import estimate_message_tokens
from crew.messages import Message, SummaryMessage, Transcript, add_costs
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
    problem = problem or (
        "" if text and _insert_summary(step, event.covers, text) else "there is no room for a summary"
    )
    pending = step.pending_summary

    if problem:
        step.pending_summary = fast_replace(pending, evicted_since_attempt=0)
        _emit_failure(step, step.plan.policy.name, problem)
    else:
        covered = set(event.covers)
        waiting = tuple(id for id in pending.message_ids if id not in covered)
        step.pending_summary = fast_replace(
            pending, message_ids=waiting, evicted_since_attempt=0, has_text=bool(waiting)
        )

    ask_model_next(step, now.repeat_reason)


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
    stays = text is None and now.strategy == "chunked"
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

    verbatim = list(step.pending_summary.incompressible_ids)

    for part, made in zip(now.spans, texts, strict=True):
        if not made or not _insert_summary(step, part, made, cause=now.strategy):
            verbatim.extend(part)

    shown = {entry.message.id for entry in step.history.entries}
    kept = tuple(id for id in verbatim if id in shown)
    step.pending_summary = fast_replace(step.pending_summary, incompressible_ids=kept)
    ask_model_next(step, now.repeat_reason)


def _emit_failure(step: Step, cause: str, problem: str) -> None:
    step.emit(CompactionFailed, cause=cause, reason=problem, pending_messages=len(step.pending_summary.message_ids))


def _insert_summary(step: Step, covers: Sequence[str], text: str, cause: str = "") -> bool:
    found = locate_messages(step.transcript, covers)
    position = max([index for index, m in found if not isinstance(m, SummaryMessage)] or [found[-1][0]])
    message = SummaryMessage(text, covers=tuple(covers))
    name = step.insert_summary(message, position)

    if name is None:
        return False

    # A view that hides this position shows the summary nevertheless: it covers more than the view hides.
    step.views = {
        agent: fast_replace(view, still_visible=tuple(sorted({*view.still_visible, position})))
        if view.hidden_before > position
        else view
        for agent, view in step.views.items()
    }
    step.emit(
        Compacted,
        cause=cause or step.plan.policy.name,
        summary=name,
        covers=tuple(covers),
        tokens_before=sum(estimate_message_tokens(m) for _, m in found),
        tokens_after=estimate_message_tokens(message),
        size=step.history.size,
        limit=step.plan.budget.limit,
    )
    return True


def locate_messages(transcript: Transcript, ids: Sequence[str]) -> list[tuple[int, Message]]:
    """The messages with these ids and their positions in the transcript, in order."""
    wanted = set(ids)
    found: list[tuple[int, Message]] = []

    # From the end: messages that a summary covers were evicted recently.
    for index in range(len(transcript) - 1, -1, -1):
        if not wanted:
            break

        message = transcript[index]

        if message.id in wanted:
            wanted.discard(message.id)
            found.append((index, message))

    return found[::-1]
