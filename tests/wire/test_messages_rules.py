"""The rules of Anthropic's Messages: each rejection through the SDK, with the service's message."""

from typing import Any

import pytest

from tests.wire.conftest import Accepts, Refuses
from tests.wire.model import Json
from tests.wire.sdk_calls import SCHEMA, body, strict_of, tool


def user(content: Any = "Go.") -> Json:
    return {"role": "user", "content": content}


def model(content: Any = "Hi.") -> Json:
    return {"role": "assistant", "content": content}


def system(content: Any = "Be brief.") -> Json:
    return {"role": "system", "content": content}


def use(call_id: str = "a", **more: Any) -> Json:
    return {"type": "tool_use", "id": call_id, "name": "step", "input": {}, **more}


def result(call_id: str = "a", **more: Any) -> Json:
    return {"type": "tool_result", "tool_use_id": call_id, "content": "ok", **more}


def text(words: str = "x", **more: Any) -> Json:
    return {"type": "text", "text": words, **more}


MARK: Json = {"cache_control": {"type": "ephemeral"}}
HOUR: Json = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
CLASSIC, MODERN, BOTH = ("classic",), ("modern",), ("classic", "modern")
ACCEPTED: dict[str, tuple[list[Json], tuple[str, ...]]] = {
    "a loop": ([user(), model([use()]), user([result()])], BOTH),
    "text after the results": ([user(), model([use()]), user([result(), text()])], BOTH),
    "one role twice": ([user(), user(), model(), model(), user()], BOTH),
    "results in neighbouring messages": (
        [user(), model([use(), use("b")]), user([result()]), user([result("b")])],
        BOTH,
    ),
    "a result without content": ([user(), model([use()]), user([{"type": "tool_result", "tool_use_id": "a"}])], BOTH),
    "prefill": ([user(), model("The answer is")], CLASSIC),
    "system after a user": ([user(), model([use()]), user([result()]), system()], MODERN),
    "system in the middle": ([user(), system(), model(), user()], MODERN),
    "four marks": ([user([text(**MARK), text(**MARK), text(**MARK), text(**MARK)])], BOTH),
}
REFUSED: dict[str, tuple[list[Json], str, tuple[str, ...]]] = {
    "no message": ([], "messages: at least one message is required", BOTH),
    "the assistant first": ([model(), user()], 'messages: first message must use the "user" role', BOTH),
    "a call without result": (
        [user(), model([use(), use("b")]), user([result()])],
        "messages.1: `tool_use` ids were found without `tool_result` blocks immediately after: b.",
        BOTH,
    ),
    "a call at the end": ([user(), model([use()])], "`tool_use` ids were found without `tool_result`", CLASSIC),
    "text before the results": (
        [user(), model([use()]), user([text(), result()])],
        "`tool_use` ids were found without `tool_result` blocks immediately after: a.",
        BOTH,
    ),
    "a result without call": (
        [user(), model(), user([text(), result("x")])],
        "messages.2.content.1: unexpected `tool_use_id` found in `tool_result` blocks: x.",
        BOTH,
    ),
    "a late result": (
        [user(), model([use()]), user([result()]), model(), user([result()])],
        "messages.4.content.0: unexpected `tool_use_id`",
        BOTH,
    ),
    "two results": (
        [user(), model([use()]), user([result(), result()])],
        "each tool_use must have a single result. Found multiple `tool_result` blocks with id: a",
        BOTH,
    ),
    "an id twice": ([user(), model([use(), use()]), user([result()])], "`tool_use` ids must be unique", BOTH),
    "an id again later": (
        [user(), model([use()]), user([result()]), model([use()]), user([result()])],
        "`tool_use` ids must be unique",
        BOTH,
    ),
    "an empty text": ([user([text("")])], "messages: text content blocks must be non-empty", BOTH),
    "an empty content": ([user("")], "messages.0: all messages must have non-empty content", BOTH),
    "a blank text": ([user(" \n")], "messages: text content blocks must contain non-whitespace text", BOTH),
    "an empty text in a result": (
        [user(), model([use()]), user([result(content=[text("")])])],
        "messages: text content blocks must be non-empty",
        BOTH,
    ),
    "prefill with a space": (
        [user(), model("The answer is ")],
        "messages: final assistant content cannot end with trailing whitespace",
        CLASSIC,
    ),
    "prefill": (
        [user(), model("The answer is")],
        "This model does not support assistant message prefill. The conversation must end with a user message.",
        MODERN,
    ),
    "a system role": (
        [user(), system()],
        'messages: Unexpected role "system". The Messages API accepts a top-level `system` parameter',
        CLASSIC,
    ),
    "system first": ([system(), user()], 'first message must use the "user" role', MODERN),
    "system after the assistant": ([user(), model(), system(), user()], "role 'system'", MODERN),
    "an unknown role": ([user(), {"role": "tool", "content": "x"}], "messages.1.role: Input should be", BOTH),
    "five marks": (
        [user([text(**MARK) for _ in range(5)])],
        "A maximum of 4 blocks with cache_control may be provided. Found 5.",
        BOTH,
    ),
    "the longer mark last": (
        [user([text(**MARK), text(**HOUR)])],
        "a ttl='1h' cache_control block must not come after",
        BOTH,
    ),
    "an unknown field": ([{**user(), "name": "x"}], "messages.0.name: Extra inputs are not permitted", BOTH),
    "an unknown field of a block": (
        [user([text(foo=1)])],
        "messages.0.content.0.text.foo: Extra inputs are not permitted",
        BOTH,
    ),
    "a bad id": (
        [user(), model([use("a:1")]), user([result("a:1")])],
        "tool_use.id: String should match pattern",
        BOTH,
    ),
    "input that is no object": (
        [user(), model([use(input="{}")]), user([result()])],
        "messages.1.content.0.tool_use.input: Input should be a valid dictionary",
        BOTH,
    ),
    "a call from the user": ([user([use()])], "`tool_use` blocks can only be in `assistant` messages", BOTH),
    "an empty error": (
        [user(), model([use()]), user([result(content="", is_error=True)])],
        "content cannot be empty if `is_error` is true",
        BOTH,
    ),
    "an unknown block": ([user([{"type": "input_text", "text": "x"}])], "Input tag 'input_text' found", BOTH),
}
STRICT: Json = {**SCHEMA, "additionalProperties": False}
CIRCLE: Json = {"$defs": {"N": strict_of(**{"$ref": "#/$defs/N"})}}
OPTIONS: dict[str, tuple[Json, str, tuple[str, ...]]] = {
    "no limit": ({"max_tokens": None}, "max_tokens: Field required", BOTH),
    "a temperature": ({"temperature": 0.2}, "`temperature` is deprecated for this model.", MODERN),
    "top_k": ({"top_k": 5}, "`top_k` is deprecated for this model.", MODERN),
    "an unknown field": ({"seed": 1}, "seed: Extra inputs are not permitted", BOTH),
    "a bad tool name": (
        {"tools": [tool("messages", "a.b")]},
        "tools.0.custom.name: String should match pattern '^[a-zA-Z0-9_-]{1,128}$'",
        BOTH,
    ),
    "a tool twice": ({"tools": [tool("messages")] * 2}, "tools: Tool names must be unique.", BOTH),
    "a nested tool": ({"tools": [tool("chat")]}, "tools.0.custom.function: Extra inputs are not permitted", BOTH),
    "a choice without tools": (
        {"tools": None, "tool_choice": {"type": "auto"}},
        "tool_choice may only be specified",
        BOTH,
    ),
    "manual thinking": (
        {"thinking": {"type": "enabled", "budget_tokens": 1024}},
        '"thinking.type.enabled" is not supported for this model. Use "thinking.type.adaptive"',
        MODERN,
    ),
    "adaptive thinking": ({"thinking": {"type": "adaptive"}}, "thinking: Input tag 'adaptive'", CLASSIC),
    "a small budget": (
        {"thinking": {"type": "enabled", "budget_tokens": 100}},
        "greater than or equal to 1024",
        CLASSIC,
    ),
    "a budget above the limit": (
        {"thinking": {"type": "enabled", "budget_tokens": 4096}},
        "`max_tokens` must be greater than `thinking.budget_tokens`",
        CLASSIC,
    ),
    "thinking with a temperature": (
        {"thinking": {"type": "enabled", "budget_tokens": 1024}, "temperature": 0},
        "`temperature` may only be set to 1 when thinking is enabled",
        CLASSIC,
    ),
    "thinking with a forced tool": (
        {"thinking": {"type": "enabled", "budget_tokens": 1024}, "tool_choice": {"type": "any"}},
        "Thinking may not be enabled when tool_choice forces tool use.",
        CLASSIC,
    ),
    "too much output": ({"max_tokens": 70_000}, "max_tokens: 70000 > 64000, which is the maximum allowed", BOTH),
    "a loose strict tool": (
        {"tools": [tool("messages", strict=True)]},
        "For 'object' type, 'additionalProperties' must be explicitly set to false",
        BOTH,
    ),
    "a loose output format": (
        {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
        "output_config.format.schema: For 'object' type",
        BOTH,
    ),
    "a choice that is no tool": ({"tool_choice": {"type": "tool", "name": "x"}}, "Tool 'x' not found", BOTH),
    "a blank stop": ({"stop_sequences": [" "]}, "each stop sequence must contain non-whitespace", BOTH),
    "a strange mark": ({"cache_control": {"type": "ephemeral", "ttl": "2h"}}, "cache_control: Input should be", BOTH),
    "a bound in a strict schema": (
        {
            "tools": [
                tool(
                    "messages",
                    strict=True,
                    input_schema={**STRICT, "properties": {"n": {"type": "integer", "minimum": 1}}},
                )
            ]
        },
        "For 'integer' type, properties minimum are not supported",
        BOTH,
    ),
    "a circle in a schema": (
        {"output_config": {"format": {"type": "json_schema", "schema": strict_of(**{"$ref": "#/$defs/N"}) | CIRCLE}}},
        "Circular reference detected in schema definitions: N -> N",
        BOTH,
    ),
    "a strange format (assumed)": (
        {"tools": [tool("messages", strict=True, input_schema=strict_of(type="string", format="path"))]},
        "For 'string' type, format 'path' is not supported",
        BOTH,
    ),
    "a property without a type (assumed)": (
        {"tools": [tool("messages", strict=True, input_schema=strict_of(title="N"))]},
        "Schema type '' is not supported",
        BOTH,
    ),
    "an empty system block": ({"system": [text("")]}, "system: text content blocks must be non-empty", BOTH),
}
GOOD: list[tuple[Json, tuple[str, ...]]] = [
    ({"temperature": 0.2, "stop_sequences": ["x"], "tool_choice": {"type": "any"}}, CLASSIC),
    ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, CLASSIC),
    ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}}, MODERN),
    ({"thinking": {"type": "disabled"}, "system": "Be brief.", "max_tokens": 0}, BOTH),
    (
        {
            "output_config": {"format": {"type": "json_schema", "schema": STRICT}},
            "cache_control": {"type": "ephemeral"},
        },
        BOTH,
    ),
]


@pytest.mark.parametrize("name", ACCEPTED)
def test_a_valid_conversation_is_answered(name: str, accepts: Accepts) -> None:
    """The server accepts what the service accepts in each era."""
    messages, eras = ACCEPTED[name]
    for era in eras:
        assert accepts("messages", body("messages", messages), era)["content"]


@pytest.mark.parametrize("name", REFUSED)
def test_a_broken_conversation_is_refused(name: str, refuses: Refuses) -> None:
    """Each rule about messages has its message, in the eras that have the rule."""
    messages, words, eras = REFUSED[name]
    for era in eras:
        refuses("messages", body("messages", messages), words, era=era)


@pytest.mark.parametrize("name", OPTIONS)
def test_a_bad_option_is_refused(name: str, refuses: Refuses) -> None:
    """Each rule about options and tools has its message, in the eras that have the rule."""
    more, words, eras = OPTIONS[name]
    for era in eras:
        refuses("messages", body("messages", "Go.", **more), words, era=era)


@pytest.mark.parametrize(("more", "eras"), GOOD)
def test_options_of_an_era_are_accepted(more: Json, eras: tuple[str, ...], accepts: Accepts) -> None:
    """Options that an era supports are accepted."""
    for era in eras:
        assert accepts("messages", body("messages", "Go.", **more), era)["type"] == "message"
