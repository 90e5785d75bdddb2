"""Histories of other makes: OpenAI- and Anthropic-format dicts become our messages."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

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
KNOWN_ROLES = ("system", "developer", "user", "assistant", "tool")


class _UnreadableMessage(ValueError):
    """Why one item of a history can't be read."""


def import_messages(history: Sequence[Any]) -> tuple[list[tuple[int, Message]], list[Violation]]:
    """The messages, each with the index of the item that it came from, and what could not be read."""
    messages: list[tuple[int, Message]] = []
    found: list[Violation] = []

    for index, item in enumerate(history):
        try:
            messages.extend((index, message) for message in tuple(_import_item(item)))
        except _UnreadableMessage as error:
            found.append(Violation(rule="message", text=f"history[{index}] {error}.", index=index, value=item))

    return messages, found


def merge_tool_messages(read: Sequence[tuple[int, Message]]) -> list[tuple[int, Message]]:
    """The same with neighbouring tool messages made one: other formats write one message for each result."""
    messages: list[tuple[int, Message]] = []

    for index, message in read:
        start, last = messages[-1] if messages else (0, None)

        if isinstance(message, ToolMessage) and isinstance(last, ToolMessage):
            messages[-1] = (start, replace(last, results=last.results + message.results))
        else:
            messages.append((index, message))

    return messages


def _import_item(item: Any) -> Iterator[Message]:
    if isinstance(item, SystemMessage | UserMessage | AssistantMessage | ToolMessage | SummaryMessage):
        yield _check_own(item)
        return

    if not isinstance(item, Mapping):
        raise _UnreadableMessage(f"must be a message or a dict, not {type(item).__name__}")

    if _depth(item) > MAX_DEPTH:
        raise _UnreadableMessage(f"is nested more than {MAX_DEPTH} deep")

    if item.get("type") in ("function_call", "function_call_output") and "role" not in item:
        yield _responses_item(item)
        return

    role = item.get("role")

    if role not in KNOWN_ROLES:
        raise _UnreadableMessage(f"has the role {role!r}; known are {', '.join(KNOWN_ROLES)}")

    if role in ("system", "developer"):
        yield SystemMessage(_text(item.get("content")))
    elif role == "user":
        yield from _user(item.get("content"))
    elif role == "tool":
        yield ToolMessage((ToolResult(call_id=_string(item, "tool_call_id"), text=_text(item.get("content"))),))
    else:
        yield _assistant(item)


def _check_own(message: Message) -> Message:
    """One of our messages; frozen dataclasses check nothing, so that its parts may be anything."""
    parts: tuple[Any, type, tuple[str, ...]] = ((), object, ())

    match message:
        case ToolMessage(results=results):
            parts = (results, ToolResult, ("call_id", "name"))
        case AssistantMessage(calls=calls):
            parts = (calls, ToolCall, ("id", "name"))
        case UserMessage(images=images):
            parts = (images, Image, ("url", "data", "media_type"))
        case _:
            pass

    given, kind, names = parts

    if not isinstance(given, tuple) or any(not isinstance(part, kind) for part in given):
        raise _UnreadableMessage(f"is a {type(message).__name__} whose parts are not a tuple of {kind.__name__}")

    for owner, name in [(message, "id"), *((part, name) for part in given for name in names)]:
        if not isinstance(getattr(owner, name), str):
            raise _UnreadableMessage(f"has a {type(owner).__name__} whose {name} is not a text")

    return message


def _responses_item(item: Mapping[str, Any]) -> Message:
    """An item of the OpenAI Responses format."""
    id = _string(item, "call_id")

    if item["type"] == "function_call_output":
        return ToolMessage((ToolResult(call_id=id, text=_text(item.get("output"))),))

    arguments = item.get("arguments", "{}")
    return AssistantMessage(calls=(ToolCall(id=id, name=_string(item, "name"), arguments=_json(arguments)),))


def _user(content: Any) -> Iterator[Message]:
    if isinstance(content, str):
        yield UserMessage(content)
        return

    blocks = _blocks(content)
    results = [block for block in blocks if block.get("type") == "tool_result"]

    if results:
        yield ToolMessage(tuple(_result(block) for block in results))

    rest = [block for block in blocks if block.get("type") != "tool_result"]
    text = "\n".join(_text([block]) for block in rest if block.get("type") in ("text", "input_text"))
    images = tuple(_image(block) for block in rest if block.get("type") in ("image", "image_url", "input_image"))

    if text or images or not results:
        yield UserMessage(text, images=images)


def _result(block: Mapping[str, Any]) -> ToolResult:
    outcome = "error" if block.get("is_error") else "ok"
    text = _text(block.get("content", ""))
    return ToolResult(call_id=_string(block, "tool_use_id"), text=text, outcome="error" if outcome == "error" else "ok")


def _image(block: Mapping[str, Any]) -> Image:
    source = block.get("source") or block.get("image_url") or {}
    source = {"url": source} if isinstance(source, str) else source

    if not isinstance(source, Mapping):
        raise _UnreadableMessage("has an image without a source")

    if source.get("type") == "base64":
        return Image(data=_string(source, "data"), media_type=_string(source, "media_type"))

    return Image(url=_string(source, "url"))


def _assistant(item: Mapping[str, Any]) -> Message:
    content = item.get("content")
    blocks = _blocks(content) if isinstance(content, Sequence) and not isinstance(content, str) else []
    text = _text([b for b in blocks if b.get("type") in ("text", "output_text")] if blocks else content or "")
    calls = [
        ToolCall(id=_string(b, "id"), name=_string(b, "name"), arguments=_json(b.get("input", {})))
        for b in blocks
        if b.get("type") == "tool_use"
    ]

    for given in _blocks(item.get("tool_calls") or []):
        function = given.get("function")

        if not isinstance(function, Mapping):
            raise _UnreadableMessage("has a tool call without a function")

        arguments = _json(function.get("arguments", "{}"))
        calls.append(ToolCall(id=_string(given, "id"), name=_string(function, "name"), arguments=arguments))

    return AssistantMessage(text, calls=tuple(calls))


def _blocks(content: Any) -> list[Mapping[str, Any]]:
    if isinstance(content, str | bytes) or not isinstance(content, Sequence):
        raise _UnreadableMessage(
            f"has content of type {type(content).__name__}; a text or a list of blocks is accepted"
        )

    if any(not isinstance(block, Mapping) for block in content):
        raise _UnreadableMessage("has a block that is not a dict")

    return list(content)


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content

    parts = [block.get("text", "") for block in _blocks(content)]

    if any(not isinstance(part, str) for part in parts):
        raise _UnreadableMessage("has a text block whose text is not a string")

    return "\n".join(parts)


def _string(item: Mapping[str, Any], key: str) -> str:
    value = item.get(key)

    if not isinstance(value, str):
        raise _UnreadableMessage(f"must have a text under {key!r}, not {type(value).__name__}")

    return value


def _json(value: Any) -> str:
    if isinstance(value, str):
        return value

    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise _UnreadableMessage(f"has arguments that are not JSON: {error}") from error


def _depth(value: Any) -> int:
    """How deep a value is nested, counted without recursion, and no further than it matters."""
    level, depth = [value], 0

    while level and depth <= MAX_DEPTH:
        depth += 1
        level = [
            inner
            for outer in level
            for inner in (
                outer.values() if isinstance(outer, Mapping) else outer if isinstance(outer, list | tuple) else ()
            )
        ]

    return depth
