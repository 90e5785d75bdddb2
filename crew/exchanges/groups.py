"""What stays or leaves a conversation as one."""

from __future__ import annotations

from collections.abc import Sequence

from crew.messages import AssistantMessage, Message, ToolMessage


def group(messages: Sequence[Message]) -> list[slice]:
    """What stays or leaves as one: calls with the results that follow them; any other message alone."""
    found: list[slice] = []
    index = 0

    while index < len(messages):
        end = index + 1
        message = messages[index]

        if isinstance(message, AssistantMessage) and message.calls:
            while end < len(messages) and isinstance(messages[end], ToolMessage):
                end += 1

        found.append(slice(index, end))
        index = end

    return found
