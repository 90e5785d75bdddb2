"""Functions that read lists of messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from crew.messages import Message, SummaryMessage, message_size


def total_size(messages: Sequence[Message]) -> int:
    """How many messages these count for."""
    return sum(map(message_size, messages))


def summaries_in(messages: Sequence[Message]) -> list[SummaryMessage]:
    """The summaries among the messages."""
    return [message for message in messages if isinstance(message, SummaryMessage)]


def represented_ids(messages: Sequence[Message], transcript: Sequence[Message]) -> set[str]:
    """The ids of these messages and of all messages that the summaries among them cover, directly or not."""
    summaries = {message.id: message for message in summaries_in(transcript)}
    found: set[str] = set()
    waiting = [message.id for message in messages]

    while waiting:
        id = waiting.pop()
        waiting.extend(summaries[id].covers if id in summaries and id not in found else ())
        found.add(id)

    return found


def text_of(messages: Sequence[Message]) -> str:
    """The text of all messages, one after the other."""
    return "\n".join(getattr(message, "text", "") for message in messages)


def transcript_lines(messages: Sequence[Any]) -> list[str]:
    """Role, text and calls of each message, without ids and times."""
    return [
        f"{m.role}: {' | '.join(r.text for r in m.results)}"
        if m.role == "tool"
        else f"{m.role}: {m.text}" + "".join(f" {c.name}({c.arguments})" for c in getattr(m, "calls", ()))
        for m in messages
    ]
