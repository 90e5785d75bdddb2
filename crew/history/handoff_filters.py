"""Handoff filters: which of the messages before a handoff its target sees, in its view and with `recall`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from crew.agents.agent import HandoffFilter
from crew.history.history import History
from crew.history.view import View, insert_summaries
from crew.interfaces import HistoryEntry
from crew.message_rules.validate import group_spans
from crew.messages import AssistantMessage, Message, SummaryMessage, ToolMessage, Transcript, without_calls


def apply_handoff(view: View, history: History, position: int, passed: HandoffFilter) -> View:
    """The view of an agent that gets control at this position; `passed` selects the earlier messages that it sees."""
    moved_by = "handoff" if view.last_request else view.moved_by

    if passed == "full":
        if not view.handoff_position:
            return view

        return replace(
            view,
            handoff_position=0,
            handoff_visible=(),
            handoff_text_only=(),
            handoff_ids=(),
            handoff_mode="chosen",
            moved_by=moved_by,
        )

    earlier = [entry for entry in history.entries if entry.position < position]
    earlier = [*insert_summaries(earlier, [summary for summary in view.own_summaries if summary.after < position])]
    visible, text_only = _handed_over(earlier, passed)
    # A summary has another position in the history than in the transcript: only its id shows that it crossed.
    crossed = frozenset(visible)
    is_text_only = passed == "text_only"
    return replace(
        view,
        handoff_position=position,
        handoff_visible=tuple(visible),
        handoff_text_only=tuple(text_only),
        handoff_ids=tuple(
            e.message.id
            for e in earlier
            if e.position in crossed and (not is_text_only or isinstance(e.message, SummaryMessage))
        ),
        handoff_mode="text_only" if is_text_only else "chosen",
        moved_by=moved_by,
    )


def _handed_over(earlier: list[HistoryEntry], passed: HandoffFilter) -> tuple[list[int], list[int]]:
    """The positions of the messages that stay visible, and of those of which only the text does."""
    match passed:
        case "last":
            spans = group_spans([entry.message for entry in earlier])
            return [entry.position for entry in earlier[spans[-1]]] if spans else [], []
        case "text_only":
            calling = [e for e in earlier if isinstance(e.message, AssistantMessage) and e.message.calls]
            hidden = {e.position for e in earlier if isinstance(e.message, ToolMessage)} | {e.position for e in calling}
            texts = [e.position for e in calling if isinstance(e.message, AssistantMessage) and e.message.text.strip()]
            return [e.position for e in earlier if e.position not in hidden], texts
        case "none" | "full":
            return [], []
        case choose:
            chosen = {message.id for message in choose(tuple(entry.message for entry in earlier))}
            return [entry.position for entry in earlier if entry.message.id in chosen], []


def messages_within_filter(transcript: Transcript, view: View, goal: str) -> Iterator[Message]:
    """What the handoff filter of this view lets its agent read of the transcript, as `recall` does; the goal always.

    Of the messages before the handoff only those that crossed; after `text_only`, the texts of all of them. A summary
    that covers a hidden message is hidden too, wherever it stands.
    """
    if not view.handoff_position:
        yield from transcript
        return

    passed = {goal, *view.handoff_ids, *(summary.entry.message.id for summary in view.own_summaries)}
    hidden: set[str] = set()

    for position, message in transcript.numbered():
        shown: Message | None = message

        if message.id not in passed:
            if position < view.handoff_position:
                shown = _text_of(message) if view.handoff_mode == "text_only" else None

            if isinstance(message, SummaryMessage) and hidden.intersection(message.covers):
                shown = None

        if shown is not message:
            hidden.add(message.id)

        if shown is not None:
            yield shown


def _text_of(message: Message) -> Message | None:
    """What crosses with `text_only` of a message."""
    match message:
        case ToolMessage():
            return None
        case AssistantMessage(calls=calls) if calls:
            return without_calls(message) if message.text.strip() else None
        case _:
            return message
