"""What was said, as JSON attributes: only by opt-in, without key-like strings, cut between messages and not inside."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from crew.messages import AssistantMessage, Message, SummaryMessage, SystemMessage, ToolMessage, ToolResult, UserMessage
from crew.telemetry.attributes import finished
from crew.telemetry.redaction import safe

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
            return {"role": "assistant", "parts": [*parts, *called]}
        case ToolMessage(results=results):
            parts = [{"type": "tool_call_response", "id": r.call_id, "response": safe(r.text)} for r in results]
            return {"role": "tool", "parts": parts}


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "content": safe(text)}
