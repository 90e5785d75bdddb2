"""What a summariser's answer leads to: a summary in the history, or another attempt later."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from crew.history.summaries import complete_summary
from crew.history.tokens import estimate_message_tokens
from crew.messages import Message, SummaryMessage, Transcript
from crew.runs.counters import add_costs
from crew.runs.events import Compacted, CompactionFailed, Summarised, UsageChanged
from crew.runs.state import Compact
from crew.transitions.before_request import ask_model_next, stop_if_limit_reached
from crew.transitions.step import Step


def on_summarised(step: Step, event: Summarised) -> None:
    """A summariser answered."""
    now = step.state.next
    assert isinstance(now, Compact)
    _pay(step, event)
    span = [message for _, message in locate_messages(step.state.transcript, event.covers)]
    text = "" if event.error else complete_summary(event.text, span)

    if now.strategy:
        _collect_compression(step, now, event, text)
        return

    problem = event.error or ("the summary is not smaller than what it replaces" if text is None else "")
    problem = problem or (
        "" if text and _insert_summary(step, event.covers, text) else "there is no room for a summary"
    )
    backlog = step.state.pending_summary

    if problem:
        step.set(pending_summary=replace(backlog, evicted_since_attempt=0))
        _emit_failure(step, step.plan.policy.name, problem)
    else:
        waiting = tuple(id for id in backlog.message_ids if id not in set(event.covers))
        step.set(pending_summary=replace(backlog, message_ids=waiting, evicted_since_attempt=0, has_text=bool(waiting)))

    ask_model_next(step, now.repeat_reason)


def _pay(step: Step, event: Summarised) -> None:
    if not event.usage.requests:
        return

    tally, agent = step.state.counters, step.state.agent
    mine = tally.by_agent.get(agent)
    step.count(
        usage=tally.usage + event.usage,
        rounds=tally.rounds + 1,
        by_agent={**tally.by_agent, agent: event.usage if mine is None else mine + event.usage},
        cost_saved=add_costs(tally.cost_saved, None if event.usage.cost is None else -event.usage.cost),
    )
    step.emit(UsageChanged, usage=step.state.counters.usage)


def _collect_compression(step: Step, now: Compact, event: Summarised, text: str | None) -> None:
    """One part of an explicit compression; all parts take effect together, or none does."""
    stays = text is None and now.strategy == "chunked"
    problem = event.error or ("" if text or stays else "the summary is not smaller than what it replaces")

    if problem:
        step.set(next=replace(now, failure=problem))
        _emit_failure(step, now.strategy, problem)
        return

    texts = (*now.summaries, text or "")
    step.set(next=replace(now, summaries=texts, failure=""))

    if len(texts) < len(now.spans):
        stop_if_limit_reached(step)
        return

    verbatim = list(step.state.pending_summary.incompressible_ids)

    for part, made in zip(now.spans, texts, strict=True):
        if not made or not _insert_summary(step, part, made, cause=now.strategy):
            verbatim.extend(part)

    shown = {entry.message.id for entry in step.state.history.entries}
    kept = tuple(id for id in verbatim if id in shown)
    step.set(pending_summary=replace(step.state.pending_summary, incompressible_ids=kept))
    ask_model_next(step, now.repeat_reason)


def _emit_failure(step: Step, cause: str, problem: str) -> None:
    step.emit(
        CompactionFailed, cause=cause, reason=problem, pending_messages=len(step.state.pending_summary.message_ids)
    )


def _insert_summary(step: Step, covers: Sequence[str], text: str, cause: str = "") -> bool:
    found = locate_messages(step.state.transcript, covers)
    position = max([index for index, m in found if not isinstance(m, SummaryMessage)] or [found[-1][0]])
    message = SummaryMessage(text, covers=tuple(covers))
    name = step.insert_summary(message, position)

    if name is None:
        return False

    # A view that was cut beyond this place shows the summary all the same: it stands for more than was cut.
    views = {
        agent: replace(view, still_visible=tuple(sorted({*view.still_visible, position})))
        if view.hidden_before > position
        else view
        for agent, view in step.state.views.items()
    }
    step.set(views=views)
    step.emit(
        Compacted,
        cause=cause or step.plan.policy.name,
        summary=name,
        covers=tuple(covers),
        tokens_before=sum(estimate_message_tokens(m) for _, m in found),
        tokens_after=estimate_message_tokens(message),
        size=step.state.history.size,
        limit=step.plan.budget.limit,
    )
    return True


def locate_messages(transcript: Transcript, ids: Sequence[str]) -> list[tuple[int, Message]]:
    """The messages of these ids with their places in the transcript, in order."""
    wanted = set(ids)
    found: list[tuple[int, Message]] = []

    # From the end: what a summary is made of left the history not long ago.
    for index in range(len(transcript) - 1, -1, -1):
        if not wanted:
            break

        message = transcript[index]

        if message.id in wanted:
            wanted.discard(message.id)
            found.append((index, message))

    return found[::-1]
