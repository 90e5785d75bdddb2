"""Converts histories in OpenAI and Anthropic formats to messages."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from math import inf
from typing import TypeVar

from crew.errors import Violation
from crew.messages import (
    AssistantMessage,
    Image,
    Message,
    SummaryMessage,
    SystemMessage,
    ToolCall,
    ToolMessage,
    ToolResult,
    UserMessage,
)

MAX_DEPTH = 20
MILLISECONDS_FROM = 100_000_000_000
"""A larger number is a time in milliseconds: as seconds it would be after the year 5138."""

TIME_KEYS = ("time", "timestamp", "created_at", "createdAt")
KNOWN_ROLES = ("system", "developer", "user", "assistant", "tool")

_Block = Mapping[str, object]
_Part = TypeVar("_Part", ToolResult, ToolCall, Image)


_MESSAGE_TYPES = (SystemMessage, UserMessage, AssistantMessage, ToolMessage, SummaryMessage)


class _UnreadableMessage(ValueError):
    """Why an item of a history can't be converted; the text follows "history[3]"."""


def import_messages(history: Sequence[object]) -> tuple[list[tuple[int, Message]], list[Violation]]:
    """The messages, each with the index of its item in the history, and the items that can't be converted."""
    messages: list[tuple[int, Message]] = []
    violations: list[Violation] = []

    for index, item in enumerate(history):
        try:
            messages.extend((index, _with_time(message, item)) for message in tuple(_import_item(item)))
        except _UnreadableMessage as error:
            violations.append(Violation(rule="message", text=f"history[{index}] {error}.", index=index, value=item))

    return messages, violations


def is_from_run(item: object) -> bool:
    """Whether this is a message of an earlier run: a run or a recording gives every message an id, an import none."""
    return isinstance(item, _MESSAGE_TYPES) and bool(item.id)


def _with_time(message: Message, item: object) -> Message:
    """The message with the time of its dict. A time that can't be read is ignored, as other unknown keys are."""
    given = [item[key] for key in TIME_KEYS if item.get(key) is not None] if isinstance(item, Mapping) else []
    seconds = _seconds(given[0]) if given else None
    return message if seconds is None else replace(message, time=seconds)


def _seconds(value: object) -> float | None:
    """Seconds since the epoch from a number, an ISO 8601 text or a datetime; large numbers are milliseconds."""
    try:
        value = datetime.fromisoformat(value) if isinstance(value, str) else value
        value = value.timestamp() if isinstance(value, datetime) else value
    except (ValueError, OverflowError):
        return None

    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < inf:
        return None

    return float(value) if value < MILLISECONDS_FROM else value / 1000


def merge_tool_messages(indexed: Sequence[tuple[int, Message]]) -> list[tuple[int, Message]]:
    """The same messages with adjacent tool messages merged: other formats have one message per result."""
    messages: list[tuple[int, Message]] = []

    for index, message in indexed:
        start, last = messages[-1] if messages else (0, None)

        if isinstance(message, ToolMessage) and isinstance(last, ToolMessage):
            time = max(last.time, message.time)
            messages[-1] = (start, replace(last, results=last.results + message.results, time=time))
        else:
            messages.append((index, message))

    return messages


def _import_item(item: object) -> Iterator[Message]:
    if isinstance(item, _MESSAGE_TYPES):
        yield _check_message(item)
        return

    if not isinstance(item, Mapping):
        raise _UnreadableMessage(f"must be a message or a dict, not {type(item).__name__}")

    if _depth(item) > MAX_DEPTH:
        raise _UnreadableMessage(f"is nested more than {MAX_DEPTH} levels deep")

    if item.get("type") in ("function_call", "function_call_output") and "role" not in item:
        yield _responses_item(item)
        return

    role = item.get("role")

    if role not in KNOWN_ROLES:
        raise _UnreadableMessage(f"must have one of the roles {', '.join(KNOWN_ROLES)}, not {role!r}")

    if role in ("system", "developer"):
        yield SystemMessage(_text(item.get("content")))
    elif role == "user":
        yield from _user(item.get("content"))
    elif role == "tool":
        yield ToolMessage((ToolResult(call_id=_string(item, "tool_call_id"), text=_text(item.get("content"))),))
    else:
        yield _assistant(item)


def _check_message(message: Message) -> Message:
    """Check the parts of a message object: its dataclass does not check their types."""
    _check_strings(message, id=message.id)

    match message:
        case ToolMessage():
            for result in _check_parts(message, message.results, ToolResult):
                _check_strings(result, call_id=result.call_id, name=result.name)
        case AssistantMessage():
            for call in _check_parts(message, message.calls, ToolCall):
                _check_strings(call, id=call.id, name=call.name)
        case UserMessage():
            for image in _check_parts(message, message.images, Image):
                _check_strings(image, url=image.url, data=image.data, media_type=image.media_type)
        case _:
            pass

    return message


def _check_parts(message: Message, parts: object, kind: type[_Part]) -> tuple[_Part, ...]:
    if not isinstance(parts, tuple) or any(not isinstance(part, kind) for part in parts):
        raise _UnreadableMessage(f"is a {type(message).__name__} whose parts are not a tuple of {kind.__name__}")

    return parts


def _check_strings(owner: object, **values: object) -> None:
    for name, value in values.items():
        if not isinstance(value, str):
            raise _UnreadableMessage(f"has a {type(owner).__name__} whose {name} is not a string")


def _responses_item(item: _Block) -> Message:
    """An item of the OpenAI Responses format."""
    id = _string(item, "call_id")

    if item["type"] == "function_call_output":
        return ToolMessage((ToolResult(call_id=id, text=_text(item.get("output"))),))

    arguments = item.get("arguments", "{}")
    return AssistantMessage(calls=(ToolCall(id=id, name=_string(item, "name"), arguments=_json(arguments)),))


def _user(content: object) -> Iterator[Message]:
    if isinstance(content, str):
        yield UserMessage(content)
        return

    blocks = _blocks(content)
    results = [block for block in blocks if block.get("type") == "tool_result"]

    if results:
        yield ToolMessage(tuple(_result(block) for block in results))

    others = [block for block in blocks if block.get("type") != "tool_result"]
    text = "\n".join(_text([block]) for block in others if block.get("type") in ("text", "input_text"))
    images = tuple(_image(block) for block in others if block.get("type") in ("image", "image_url", "input_image"))

    if text or images or not results:
        yield UserMessage(text, images=images)


def _result(block: _Block) -> ToolResult:
    return ToolResult(
        call_id=_string(block, "tool_use_id"),
        text=_text(block.get("content", "")),
        outcome="error" if block.get("is_error") else "ok",
    )


def _image(block: _Block) -> Image:
    source = block.get("source") or block.get("image_url") or {}

    if isinstance(source, str):
        return Image(url=source)

    if not isinstance(source, Mapping):
        raise _UnreadableMessage("has an image without a source")

    if source.get("type") == "base64":
        return Image(data=_string(source, "data"), media_type=_string(source, "media_type"))

    return Image(url=_string(source, "url"))


def _assistant(item: _Block) -> Message:
    content = item.get("content")
    blocks = _blocks(content) if isinstance(content, Sequence) and not isinstance(content, str) else []
    texts = [block for block in blocks if block.get("type") in ("text", "output_text")]
    calls = [
        ToolCall(id=_string(block, "id"), name=_string(block, "name"), arguments=_json(block.get("input", {})))
        for block in blocks
        if block.get("type") == "tool_use"
    ]

    for tool_call in _blocks(item.get("tool_calls") or []):
        function = tool_call.get("function")

        if not isinstance(function, Mapping):
            raise _UnreadableMessage("has a tool call without a function")

        arguments = _json(function.get("arguments", "{}"))
        calls.append(ToolCall(id=_string(tool_call, "id"), name=_string(function, "name"), arguments=arguments))

    return AssistantMessage(_text(texts if blocks else content or ""), calls=tuple(calls))


def _blocks(content: object) -> list[_Block]:
    if isinstance(content, str | bytes) or not isinstance(content, Sequence):
        raise _UnreadableMessage(f"must have a string or a list of blocks as content, not {type(content).__name__}")

    if any(not isinstance(block, Mapping) for block in content):
        raise _UnreadableMessage("has a content block that is not a dict")

    return list(content)


def _text(content: object) -> str:
    if isinstance(content, str):
        return content

    texts: list[str] = []

    for block in _blocks(content):
        text = block.get("text", "")

        if not isinstance(text, str):
            raise _UnreadableMessage("has a text block whose text is not a string")

        texts.append(text)

    return "\n".join(texts)


def _string(item: _Block, key: str) -> str:
    value = item.get(key)

    if not isinstance(value, str):
        raise _UnreadableMessage(f"must have a string under {key!r}, not {type(value).__name__}")

    return value


def _json(value: object) -> str:
    if isinstance(value, str):
        return value

    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise _UnreadableMessage(f"has arguments that can't be converted to JSON: {error}") from error


def _depth(value: object) -> int:
    """The nesting depth of a value, counted without recursion up to one above the limit."""
    level: list[object] = [value]
    depth = 0

    while level and depth <= MAX_DEPTH:
        depth += 1
        level = [inner for outer in level for inner in _children(outer)]

    return depth


def _children(value: object) -> Sequence[object]:
    if isinstance(value, Mapping):
        return tuple(value.values())

    return value if isinstance(value, list | tuple) else ()
