"""What one agent is shown of the shared history."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from crew.doors import Entry
from crew.exchanges import group
from crew.history.history import History
from crew.messages import AssistantMessage, Message, SystemMessage, ToolMessage, text_only

Filter = Literal["full", "text_only", "last", "none"] | Callable[[tuple[Message, ...]], Sequence[Message]]


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Where one agent's view stands: data that only `advance` moves, so that it holds still between its moves.

    `turn` counts the agent's requests. Of the messages before the position `crossed_at`, only those at the
    positions `whole` crossed, and of those at `texts` the text.
    """

    turn: int = 0
    crossed_at: int = 0
    whole: tuple[int, ...] = ()
    texts: tuple[int, ...] = ()


def cross(view: View, history: History, at: int, what: Filter) -> View:
    """The view of an agent that takes over: what crosses of the messages before the position `at` is fixed here."""
    if what == "full":
        return replace(view, crossed_at=0, whole=(), texts=())

    before = [entry for entry in history.entries if entry.position < at]
    whole, texts = _crossing(before, what)
    return replace(view, crossed_at=at, whole=tuple(whole), texts=tuple(texts))


def _crossing(before: list[Entry], what: Filter) -> tuple[list[int], list[int]]:
    match what:
        case "last":
            spans = group([entry.message for entry in before])
            return [entry.position for entry in before[spans[-1]]] if spans else [], []
        case "text_only":
            calling = [e for e in before if isinstance(e.message, AssistantMessage) and e.message.calls]
            skipped = {e.position for e in before if isinstance(e.message, ToolMessage)} | {e.position for e in calling}
            texts = [e.position for e in calling if isinstance(e.message, AssistantMessage) and e.message.text.strip()]
            return [e.position for e in before if e.position not in skipped], texts
        case "none" | "full":
            return [], []
        case choose:
            chosen = {message.id for message in choose(tuple(entry.message for entry in before))}
            return [entry.position for entry in before if entry.message.id in chosen], []


def present(history: History, view: View) -> tuple[Message, ...]:
    """The messages that this view shows; goal and system messages always."""
    if not view.crossed_at:
        return history.messages

    return tuple(shown for entry in history.entries if (shown := _shown(entry, history.goal, view)) is not None)


def _shown(entry: Entry, goal: str, view: View) -> Message | None:
    message = entry.message

    if entry.position >= view.crossed_at or entry.position in view.whole:
        return message

    if isinstance(message, SystemMessage) or message.id == goal:
        return message

    if entry.position in view.texts and isinstance(message, AssistantMessage):
        return text_only(message)

    return None
