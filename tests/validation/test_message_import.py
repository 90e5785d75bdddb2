"""Histories in OpenAI and Anthropic formats are converted to messages."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from crew import InputValidator
from crew.messages import (
    AssistantMessage,
    Image,
    Message,
    SystemMessage,
    ToolCall,
    ToolMessage,
    ToolResult,
    UserMessage,
)

LOOK = ToolCall(id="a", name="look", arguments='{"n": 1}')
PIXEL = {"type": "base64", "media_type": "image/gif", "data": "R0lGOD"}


@pytest.mark.parametrize(
    ("history", "messages"),
    [
        ([{"role": "system", "content": "rule"}], [SystemMessage("rule")]),
        ([{"role": "developer", "content": [{"type": "text", "text": "rule"}]}], [SystemMessage("rule")]),
        ([{"role": "user", "content": "hi"}], [UserMessage("hi")]),
        ([{"role": "assistant", "content": "hello"}], [AssistantMessage("hello")]),
        ([{"role": "assistant", "content": None}], [AssistantMessage("")]),
        (
            [
                {
                    "role": "assistant",
                    "tool_calls": [
                        {"id": "a", "type": "function", "function": {"name": "look", "arguments": '{"n": 1}'}},
                        {"id": "b", "type": "function", "function": {"name": "look", "arguments": {"n": 2}}},
                    ],
                },
                {"role": "tool", "tool_call_id": "a", "content": "1"},
                {"role": "tool", "tool_call_id": "b", "content": [{"type": "text", "text": "2"}]},
            ],
            [
                AssistantMessage(calls=(LOOK, ToolCall(id="b", name="look", arguments='{"n": 2}'))),
                ToolMessage((ToolResult(call_id="a", text="1"), ToolResult(call_id="b", text="2"))),
            ],
        ),
        (
            [
                {
                    "role": "assistant",
                    "content": [
                        {"type": "text", "text": "let me see"},
                        {"type": "tool_use", "id": "a", "name": "look", "input": {"n": 1}},
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        {"type": "tool_result", "tool_use_id": "a", "content": "broken", "is_error": True},
                        {"type": "text", "text": "go on"},
                    ],
                },
            ],
            [
                AssistantMessage("let me see", calls=(LOOK,)),
                ToolMessage((ToolResult(call_id="a", text="broken", outcome="error"),)),
                UserMessage("go on"),
            ],
        ),
        (
            [
                {"type": "function_call", "call_id": "a", "name": "look", "arguments": '{"n": 1}'},
                {"type": "function_call_output", "call_id": "a", "output": "1"},
            ],
            [AssistantMessage(calls=(LOOK,)), ToolMessage((ToolResult(call_id="a", text="1"),))],
        ),
        (
            [
                {
                    "role": "user",
                    "content": [
                        {"type": "input_text", "text": "see"},
                        {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
                        {"type": "input_image", "image_url": "https://example.com/b.png"},
                        {"type": "image", "source": PIXEL},
                    ],
                }
            ],
            [
                UserMessage(
                    "see",
                    images=(
                        Image(url="https://example.com/a.png"),
                        Image(url="https://example.com/b.png"),
                        Image(data="R0lGOD", media_type="image/gif"),
                    ),
                )
            ],
        ),
        ([UserMessage("ours", id="u")], [UserMessage("ours", id="u")]),
    ],
)
def test_openai_and_anthropic_formats_are_converted(history: list[Any], messages: list[Message]) -> None:
    """Chat Completions, Responses and Messages formats, and message objects."""
    assert list(InputValidator().check("hi", history=history)) == messages


NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("time", NOON.timestamp()),
        ("created_at", int(NOON.timestamp())),
        ("createdAt", int(NOON.timestamp()) * 1000),
        ("timestamp", "2026-01-31T12:00:00Z"),
        ("timestamp", "2026-01-31T13:00:00+01:00"),
        ("timestamp", NOON),
    ],
)
def test_a_dict_keeps_its_time(key: str, value: object) -> None:
    """Under the usual keys, as seconds, milliseconds, ISO 8601 or datetime."""
    (message,) = InputValidator().check("Hello", history=[{"role": "user", "content": "hi", key: value}])
    assert message.time == NOON.timestamp()


@pytest.mark.parametrize("value", ["yesterday", "", None, True, -5, float("nan"), float("inf"), [1], {}])
def test_a_time_that_cannot_be_read_is_ignored(value: object) -> None:
    """It is no reason to refuse a history."""
    (message,) = InputValidator().check("Hello", history=[{"role": "user", "content": "hi", "timestamp": value}])
    assert message == UserMessage("hi")


def test_merged_results_have_the_time_of_the_last_one() -> None:
    """They are older than a time only if all of them are."""
    results = [{"role": "tool", "tool_call_id": id, "content": "1", "time": time} for id, time in (("a", 5), ("b", 7))]
    (message,) = InputValidator().check("Hello", history=results)
    assert message.time == 7
