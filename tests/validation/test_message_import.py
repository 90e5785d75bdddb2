"""Histories in OpenAI and Anthropic formats are converted to messages."""

from __future__ import annotations

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
