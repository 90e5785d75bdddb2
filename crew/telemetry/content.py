"""What was said, as JSON attributes: only by opt-in, without key-like strings, and JSON whatever is left out of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from crew.messages import AssistantMessage, Message, SummaryMessage, SystemMessage, ToolMessage, ToolResult, UserMessage
from crew.telemetry.attributes import finished
from crew.telemetry.redaction import LONGEST, safe

LARGEST = 64_000


def messages_json(messages: Sequence[Message]) -> tuple[str, int]:
    """The newest messages that fit, in order, and how many older ones did not."""
    parts: list[str] = []
    size = 2

    for message in reversed(messages):
        part = json.dumps(_message(message), ensure_ascii=False)
        size += len(part) + 2

        if size > LARGEST and parts:
            break

        parts.append(part)

    return f"[{', '.join(reversed(parts))}]", len(messages) - len(parts)


def reply_json(message: AssistantMessage, finish_reason: str) -> str:
    """A reply, as the one message that it is."""
    return json.dumps([_message(message) | {"finish_reason": finished(finish_reason)}], ensure_ascii=False)


def instructions_json(text: str) -> str:
    """An agent's instructions."""
    return json.dumps([_text(text)], ensure_ascii=False)


def of_arguments(arguments: str) -> str:
    """A call's arguments: the JSON that they are, or, where they are too long, the beginning of it as one text."""
    return safe(arguments) if len(arguments) <= LONGEST else json.dumps(safe(arguments), ensure_ascii=False)


def of_result(result: ToolResult) -> str:
    """What the model was told of a call."""
    return safe(result.text)


def _message(message: Message) -> dict[str, Any]:
    match message:
        case SystemMessage(text=text):
            return {"role": "system", "parts": [_text(text)]}
        case UserMessage(text=text) | SummaryMessage(text=text):
            return {"role": "user", "parts": [_text(text)]}
        case AssistantMessage(text=text, calls=calls):
            parts = [_text(text)] if text else []
            called = [
                {"type": "tool_call", "id": call.id, "name": safe(call.name), "arguments": safe(call.arguments)}
                for call in calls
            ]
            return {"role": "assistant", "parts": _fitting([*parts, *called])}
        case ToolMessage(results=results):
            parts = [{"type": "tool_call_response", "id": r.call_id, "response": safe(r.text)} for r in results]
            return {"role": "tool", "parts": _fitting(parts)}


def _fitting(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The first parts that leave room for a message around them, and how many more there were."""
    room = LARGEST - 1_000

    for number, part in enumerate(parts):
        room -= len(json.dumps(part, ensure_ascii=False)) + 2

        if room < 0:
            return [*parts[:number], _text(f"[… {len(parts) - number} more parts]")]

    return parts


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "content": safe(text)}
