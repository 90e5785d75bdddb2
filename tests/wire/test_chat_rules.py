"""The rules of Chat Completions: each rejection through the SDK, with the service's message."""

from typing import Any

import pytest

from tests.wire.conftest import Accepts, Refuses
from tests.wire.model import Json
from tests.wire.sdk_calls import SCHEMA, body, strict_of, tool

USER: Json = {"role": "user", "content": "Go."}


def call(call_id: str = "a", name: str = "step") -> Json:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": "{}"}}


def asks(*ids: str) -> Json:
    return {"role": "assistant", "content": None, "tool_calls": [call(one) for one in ids]}


def result(call_id: str = "a") -> Json:
    return {"role": "tool", "tool_call_id": call_id, "content": "ok"}


ACCEPTED = {
    "a loop": [USER, asks("a"), result()],
    "parallel calls, answered in any order": [USER, asks("a", "b"), result("b"), result("a")],
    "no user at the start": [asks("a"), result()],
    "an ending on the assistant": [USER, {"role": "assistant", "content": "Hi"}],
    "an empty text": [{"role": "user", "content": ""}],
    "parts": [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "x"}}]}
    ],
    "system anywhere": [USER, {"role": "system", "content": "s"}, USER, {"role": "developer", "content": "d"}],
    "a refusal for content": [USER, {"role": "assistant", "content": None, "refusal": "no"}, USER],
}
REFUSED: dict[str, tuple[list[Json], str, Json]] = {
    "a result without call": (
        [USER, result()],
        "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with 'tool_calls'.",
        {"param": "messages.[1].role"},
    ),
    "a call without result": (
        [USER, asks("a", "b"), result()],
        (
            "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
            "'tool_call_id'. The following tool_call_ids did not have response messages: b"
        ),
        {},
    ),
    "something between call and result": ([USER, asks("a"), USER, result()], "did not have response messages: a", {}),
    "a result for another call": (
        [USER, asks("a"), result("x")],
        "Invalid parameter: 'tool_call_id' of 'x' not found in 'tool_calls' of previous message.",
        {"param": "messages.[2].tool_call_id"},
    ),
    "two results for a call": (
        [USER, asks("a"), result(), result()],
        "Invalid parameter: Duplicate value for 'tool_call_id' of 'a', in messages[2] and messages[3].",
        {},
    ),
    "an id twice in a message": (
        [asks("a", "a"), result()],
        "Duplicate value for 'tool_call_id' of 'a' in message[0].",
        {},
    ),
    "an id twice in a conversation": ([asks("a"), result(), asks("a"), result()], "of 'a' in message[2].", {}),
    "no message": (
        [],
        "Invalid 'messages': empty array. Expected an array with minimum length 1",
        {"code": "empty_array"},
    ),
    "no tool call": (
        [{"role": "assistant", "tool_calls": []}],
        "'messages[0].tool_calls': empty array",
        {"code": "empty_array"},
    ),
    "no part": (
        [{"role": "user", "content": []}],
        "Invalid 'messages[0].content': empty array",
        {"code": "empty_array"},
    ),
    "an unknown role": (
        [{"role": "human", "content": "x"}],
        (
            "Invalid value: 'human'. Supported values are: "
            "'system', 'assistant', 'user', 'function', 'tool', and 'developer'."
        ),
        {"code": "invalid_value", "param": "messages[0].role"},
    ),
    "null for content": (
        [{"role": "user", "content": None}],
        "Invalid value for 'content': expected a string, got null.",
        {"param": "messages.[0].content"},
    ),
    "null from the assistant without calls": ([USER, {"role": "assistant", "content": None}], "got null", {}),
    "a bad name in history": (
        [USER, {"role": "assistant", "tool_calls": [call("a", "go on")]}, result()],
        "Invalid 'messages[1].tool_calls[0].function.name': string does not match pattern.",
        {},
    ),
    "a long name in history": (
        [USER, {"role": "assistant", "tool_calls": [call("a", "x" * 65)]}, result()],
        "Expected a string with maximum length 64, but got a string with length 65 instead.",
        {"code": "string_above_max_length"},
    ),
    "a long call id": (
        [USER, asks("a" * 41), result("a" * 41)],
        "maximum length 40",
        {"code": "string_above_max_length"},
    ),
    "an unknown field of a message": (
        [{**USER, "agent": "x"}],
        "Unknown parameter: 'messages[0].agent'.",
        {"code": "unknown_parameter"},
    ),
    "a part of another protocol": (
        [{"role": "user", "content": [{"type": "input_text", "text": "x"}]}],
        "Invalid value: 'input_text'. Supported values are: 'text', 'image_url', 'input_audio', and 'file'.",
        {},
    ),
    "an image from a tool": (
        [USER, asks("a"), {**result(), "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
        "Invalid value: 'image_url'. Supported values are: 'text'.",
        {},
    ),
    "a number for content": ([{"role": "user", "content": 7}], "Invalid type for 'messages[0].content'", {}),
    "arguments as an object": (
        [{"role": "assistant", "tool_calls": [{**call(), "function": {"name": "step", "arguments": {}}}]}, result()],
        "expected a string, but got an object instead",
        {"code": "invalid_type"},
    ),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_a_valid_conversation_is_answered(name: str, accepts: Accepts) -> None:
    """The server accepts what the service accepts."""
    assert accepts("chat", body("chat", ACCEPTED[name]))["choices"]


@pytest.mark.parametrize("name", REFUSED)
def test_a_broken_conversation_is_refused(name: str, refuses: Refuses) -> None:
    """Each rule about messages has its message."""
    messages, words, expected = REFUSED[name]
    refuses("chat", body("chat", messages), words, **expected)


STRICT: Json = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}
NESTED: Json = {**STRICT, "properties": {"n": SCHEMA}}
OPTIONS: dict[str, tuple[Json, str, str]] = {
    "no tools": ({"tools": []}, "Invalid 'tools': empty array", "classic"),
    "129 tools": (
        {"tools": [tool("chat", f"t{n}") for n in range(129)]},
        "Invalid 'tools': array too long. Expected an array with maximum length 128, but got an array with length 129",
        "classic",
    ),
    "a bad tool name": ({"tools": [tool("chat", "a.b")]}, "'tools[0].function.name': string does not match", "classic"),
    "a choice without tools": (
        {"tools": None, "tool_choice": "auto"},
        "'tool_choice' is only allowed when 'tools' are specified.",
        "classic",
    ),
    "parallel without tools": ({"tools": None, "parallel_tool_calls": False}, "only allowed when 'tools'", "classic"),
    "stream options without stream": (
        {"stream_options": {"include_usage": True}},
        "only allowed when 'stream' is enabled.",
        "classic",
    ),
    "a loose strict schema": (
        {"tools": [tool("chat", strict=True)]},
        (
            "Invalid schema for function 'step': In context=(), "
            "'additionalProperties' is required to be supplied and to be false."
        ),
        "classic",
    ),
    "a loose schema inside": (
        {"tools": [tool("chat", strict=True, parameters=NESTED)]},
        "In context=('properties', 'n'), 'additionalProperties'",
        "classic",
    ),
    "an optional key in a strict schema": (
        {"tools": [tool("chat", strict=True, parameters={**STRICT, "required": []})]},
        "'required' is required to be supplied and to be an array including every key in properties. Missing 'n'.",
        "classic",
    ),
    "unique items in a strict schema": (
        {"tools": [tool("chat", strict=True, parameters=strict_of(type="array", items={}, uniqueItems=True))]},
        "In context=('properties', 'n'), 'uniqueItems' is not permitted.",
        "classic",
    ),
    "a format in a strict schema": (
        {"tools": [tool("chat", strict=True, parameters=strict_of(type="string", format="uri"))]},
        "In context=('properties', 'n'), 'uri' is not a valid format.",
        "classic",
    ),
    "a property without a type": (
        {"tools": [tool("chat", strict=True, parameters=strict_of(title="N"))]},
        "In context=('properties', 'n'), schema must have a 'type' key.",
        "classic",
    ),
    "an array without items": (
        {"tools": [tool("chat", strict=True, parameters=strict_of(type="array"))]},
        "In context=('properties', 'n'), array schema missing items.",
        "classic",
    ),
    "a schema that is no object": (
        {"tools": [tool("chat", parameters={"type": "string"})]},
        "schema must be a JSON Schema of 'type: \"object\"'",
        "classic",
    ),
    "a loose response format": (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}}},
        "Invalid schema for response_format 'x'",
        "classic",
    ),
    "an unknown field": ({"top_k": 1}, "Unrecognized request argument supplied: top_k", "classic"),
    "two unknown fields": ({"top_k": 1, "x": 1}, "Unrecognized request arguments supplied: top_k, x", "classic"),
    "no model": ({"model": None}, "Missing required parameter: 'model'.", "classic"),
    "a temperature": ({"temperature": 0.2}, "Unsupported value: 'temperature' does not support 0.2", "modern"),
    "max_tokens": ({"max_tokens": 9}, "Use 'max_completion_tokens' instead.", "modern"),
    "an effort": ({"reasoning_effort": "low"}, "Unrecognized request argument supplied: reasoning_effort", "classic"),
    "too much output": ({"max_completion_tokens": 70_000}, "at most 64000 completion tokens", "classic"),
    "a choice that is no tool": (
        {"tool_choice": {"type": "function", "function": {"name": "x"}}},
        "tool_choice does not match any of the specified 'tools'",
        "classic",
    ),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_a_bad_option_is_refused(name: str, refuses: Refuses) -> None:
    """Each rule about options and tools has its message, in the eras that have the rule."""
    more, words, era = OPTIONS[name]
    refuses("chat", body("chat", "Go.", **more), words, era=era)


GOOD: list[tuple[Json, str]] = [
    ({"temperature": 0.2, "max_tokens": 100, "seed": 7, "stop": ["x"], "prompt_cache_key": "k"}, "classic"),
    ({"temperature": 1, "max_completion_tokens": 100, "reasoning_effort": "low"}, "modern"),
    ({"tools": [tool("chat", strict=True, parameters=STRICT)], "tool_choice": "required"}, "classic"),
    ({"tools": None}, "modern"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": STRICT}}},
        "modern",
    ),
]


@pytest.mark.parametrize(("more", "era"), GOOD)
def test_options_of_an_era_are_accepted(more: Json, era: Any, accepts: Accepts) -> None:
    """Options that an era supports are accepted."""
    assert accepts("chat", body("chat", "Go.", **more), era)["choices"]
