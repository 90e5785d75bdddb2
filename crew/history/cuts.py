"""Cuts: messages that do not fit a request are shown with the middle of their long texts left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from crew.interfaces import HistoryEntry
from crew.messages import AssistantMessage, Message, ToolMessage, UserMessage
from crew.tools.tool import truncate_middle

MIN_CUT_CHARS = 2_000


def _longest_text(message: Message) -> int:
    """The length of the longest text that may be cut; 0 for a message that must stay whole."""
    match message:
        case ToolMessage(results=results):
            return max([len(result.text) for result in results], default=0)
        case UserMessage() | AssistantMessage(calls=()):
            return len(message.text)
        case _:
            return 0


def _cut_length(level: int) -> int:
    """The characters that a cut of this level leaves of a text; few levels, so that a code can hold them."""
    return MIN_CUT_CHARS << level


def cut_message(message: Message, level: int) -> Message:
    """The message with each long text cut in its middle; cached, so that it is rendered once."""
    cache = message.cache()
    known: tuple[int, Message] | None = cache.get("cut")

    if known is None or known[0] != level:
        known = cache["cut"] = (level, _cut_texts(message, _cut_length(level)))

    return known[1]


def _cut_texts(message: Message, chars: int) -> Message:
    match message:
        case ToolMessage(results=results):
            return replace(message, results=tuple(replace(r, text=truncate_middle(r.text, chars)) for r in results))
        case AssistantMessage():
            return replace(message, text=truncate_middle(message.text, chars), provider_data=None)
        case _:
            return replace(message, text=truncate_middle(message.text, chars))


def cuts(entries: Sequence[HistoryEntry]) -> Iterator[tuple[int, list[HistoryEntry]]]:
    """The levels at which these entries can be cut, each with the entries that it makes shorter; most text first."""
    longest = [(entry, _longest_text(entry.message)) for entry in entries]
    level = 0

    while any(length > _cut_length(level + 1) for _, length in longest):
        level += 1

    for chosen in range(level, -1, -1):
        if cut := [entry for entry, length in longest if length > _cut_length(chosen)]:
            yield chosen, cut
