"""The rules of Responses: each rejection through the SDK, with the service's message."""

from collections.abc import Iterator

import openai
import pytest

from tests.wire.conftest import Accepts, Refuses
from tests.wire.model import Json, Model
from tests.wire.replies import Reply
from tests.wire.responders import tool_loop
from tests.wire.sdk_calls import Client, body, client, continued, send, tool
from tests.wire.server import WireServer

USER: Json = {"role": "user", "content": "Go."}
CALL: Json = {"type": "function_call", "call_id": "a", "name": "step", "arguments": "{}"}
OUTPUT: Json = {"type": "function_call_output", "call_id": "a", "output": "ok"}
ASSISTANT: Json = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hi"}]}

ACCEPTED = {
    "a loop": [USER, CALL, OUTPUT],
    "an output that comes later": [USER, CALL, ASSISTANT, OUTPUT],
    "an item of another's making": [USER, {**CALL, "id": "fc_1"}, OUTPUT],
    "parts": [{"role": "user", "content": [{"type": "input_text", "text": "a"}]}, ASSISTANT, USER],
    "an easy assistant": [USER, {"role": "assistant", "content": "Hi"}, USER],
    "output in parts": [USER, CALL, {**OUTPUT, "output": [{"type": "input_text", "text": "a"}]}],
}
REFUSED: dict[str, tuple[list[Json], str, Json]] = {
    "an output without call": (
        [USER, OUTPUT],
        "No tool call found for function call output with call_id a.",
        {"param": "input"},
    ),
    "an output before its call": ([OUTPUT, CALL], "No tool call found for function call output with call_id a.", {}),
    "a call without output": ([USER, CALL], "No tool output found for function call a.", {"param": "input"}),
    "two outputs": ([CALL, OUTPUT, OUTPUT], "No tool call found for function call output", {}),
    "a call id twice": ([CALL, OUTPUT, CALL, OUTPUT], "Duplicate function call found with call_id a.", {}),
    "an item twice": (
        [{**CALL, "id": "fc_1"}, OUTPUT, {**CALL, "id": "fc_1", "call_id": "b"}, {**OUTPUT, "call_id": "b"}],
        "Duplicate item found with id fc_1. Remove duplicate items from your input and try again.",
        {},
    ),
    "an unknown item": (
        [{"type": "tool_use"}],
        "Invalid value: 'tool_use'. Supported values are: ",
        {"code": "invalid_value"},
    ),
    "a user's part from the assistant": (
        [{"role": "assistant", "content": [{"type": "input_text", "text": "x"}]}],
        "Invalid value: 'input_text'. Supported values are: 'output_text' and 'refusal'.",
        {"param": "input[0].content[0]"},
    ),
    "a helper's field": (
        [USER, {**CALL, "parsed_arguments": {}}, OUTPUT],
        "Unknown parameter: 'input[1].parsed_arguments'.",
        {"param": "input[1].parsed_arguments", "code": "unknown_parameter"},
    ),
    "a call's id of another kind": (
        [{**CALL, "id": "call_1"}, OUTPUT],
        "Invalid 'input[0].id': 'call_1'. Expected an ID that begins with 'fc'.",
        {},
    ),
    "a long call id": (
        [{**CALL, "call_id": "a" * 65}, {**OUTPUT, "call_id": "a" * 65}],
        "Expected a string with maximum length 64",
        {"code": "string_above_max_length"},
    ),
    "a bad name in history": ([{**CALL, "name": "a b"}, OUTPUT], "'input[0].name': string does not match pattern", {}),
    "a tool message": ([{"role": "tool", "content": "x"}], "Invalid value: 'tool'.", {}),
    "nothing": ([], "Invalid 'input': empty array", {"code": "empty_array"}),
    "no output": ([CALL, {"type": "function_call_output", "call_id": "a"}], "'input[1].output'", {}),
}
OPTIONS: dict[str, tuple[Json, str, str]] = {
    "an unknown field": ({"messages": []}, "Unknown parameter: 'messages'.", "classic"),
    "a temperature": ({"temperature": 0.2}, "Unsupported parameter: 'temperature' is not supported", "modern"),
    "an effort": ({"reasoning": {"effort": "low"}}, "Unsupported parameter: 'reasoning.effort'", "classic"),
    "little output": ({"max_output_tokens": 5}, "integer below minimum value. Expected a value >= 16", "classic"),
    "an earlier response": (
        {"previous_response_id": "resp_1"},
        "Previous response with id 'resp_1' not found.",
        "classic",
    ),
    "a nested tool": ({"tools": [tool("chat")]}, "Missing required parameter: 'tools[0].name'.", "classic"),
    "a choice without tools": ({"tools": None, "tool_choice": "auto"}, "only allowed when 'tools'", "classic"),
    "a loose strict schema": (
        {"tools": [tool("responses", strict=True)]},
        "Invalid schema for function 'step'",
        "classic",
    ),
    "a loose output format": (
        {"text": {"format": {"type": "json_schema", "name": "x", "strict": True, "schema": {"type": "object"}}}},
        "Invalid schema for response_format 'x'",
        "classic",
    ),
    "stream options without stream": ({"stream_options": {}}, "only allowed when 'stream' is enabled", "classic"),
    "a choice that is no tool": (
        {"tool_choice": {"type": "function", "name": "x"}},
        "Tool choice 'x' not found in 'tools' parameter.",
        "classic",
    ),
    "129 tools": ({"tools": [tool("responses", f"t{n}") for n in range(129)]}, "array too long", "classic"),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_a_valid_conversation_is_answered(name: str, accepts: Accepts) -> None:
    """The server accepts what the service accepts."""
    assert accepts("responses", body("responses", ACCEPTED[name]))["output"]


@pytest.mark.parametrize("name", REFUSED)
def test_a_broken_conversation_is_refused(name: str, refuses: Refuses) -> None:
    """Each rule about items has its message."""
    items, words, expected = REFUSED[name]
    refuses("responses", body("responses", items), words, **expected)


@pytest.mark.parametrize("name", OPTIONS)
def test_a_bad_option_is_refused(name: str, refuses: Refuses) -> None:
    """Each rule about options and tools has its message, in the eras that have the rule."""
    more, words, era = OPTIONS[name]
    refuses("responses", body("responses", "Go.", **more), words, era=era)


@pytest.fixture(scope="module")
def reasoner() -> Iterator[Client]:
    with (
        WireServer(tool_loop(9, width=2, thinking="hm"), model=Model(era="modern")) as server,
        client(server, "responses") as made,
    ):
        yield made


@pytest.fixture(scope="module")
def loop(reasoner: Client) -> list[Json]:
    """The user, then reasoning, two calls, two outputs."""
    answer = send(reasoner, "responses", body("responses", [USER]))
    return continued("responses", [USER], answer)


def says(reasoner: Client, items: list[Json], model: str = "m") -> str:
    with pytest.raises(openai.APIStatusError) as caught:
        send(reasoner, "responses", body("responses", items, model=model))
    return caught.value.message


def test_verbatim_reasoning_is_accepted(reasoner: Client, loop: list[Json]) -> None:
    """Reasoning, its items and their outputs are accepted unchanged."""
    assert [item.get("type") for item in loop] == [
        None,
        "reasoning",
        *["function_call"] * 2,
        *["function_call_output"] * 2,
    ]
    assert send(reasoner, "responses", body("responses", loop))["output"]


def test_reasoning_needs_its_following_item(reasoner: Client, loop: list[Json]) -> None:
    """A reasoning item alone, or before an item that the model did not write, is refused."""
    words = f"Item '{loop[1]['id']}' of type 'reasoning' was provided without its required following item."
    assert words in says(reasoner, loop[:2])
    assert words in says(reasoner, [*loop[:2], USER])


def test_reasoning_is_followed_by_an_item_of_its_turn(reasoner: Client, loop: list[Json]) -> None:
    """A call of another turn, recognised by its item id or call id, is refused after it."""
    other = [
        item for item in send(reasoner, "responses", body("responses", loop))["output"] if item["type"] != "reasoning"
    ]
    bare = [{key: value for key, value in item.items() if key != "id"} for item in other]
    outputs = [{"type": "function_call_output", "call_id": item["call_id"], "output": "ok"} for item in other]
    for items in (other, bare):
        assert "without its required following item" in says(reasoner, [*loop[:2], *items, *outputs])


def test_an_item_needs_its_reasoning(reasoner: Client, loop: list[Json]) -> None:
    """A call with the item id of a turn with reasoning is refused without that reasoning."""
    words = says(reasoner, [loop[0], *loop[2:]])
    assert (
        f"Item '{loop[2]['id']}' of type 'function_call' was provided without its required 'reasoning' item:" in words
    )
    assert loop[1]["id"] in words


def test_reasoning_can_be_dropped_together_with_item_ids(reasoner: Client, loop: list[Json]) -> None:
    """Items without ids need no reasoning (assumed)."""
    bare = [
        {key: value for key, value in item.items() if key != "id"} for item in loop if item.get("type") != "reasoning"
    ]
    assert send(reasoner, "responses", body("responses", bare))["output"]


def test_edited_or_foreign_reasoning_is_refused(reasoner: Client, loop: list[Json]) -> None:
    """The signature covers model, id and summary."""
    words = "could not be verified. Reason: Encrypted content could not be decrypted or parsed."
    edited = {**loop[1], "summary": [{"type": "summary_text", "text": "other"}]}
    assert words in says(reasoner, [loop[0], edited, *loop[2:]])
    assert words in says(reasoner, [loop[0], {**loop[1], "encrypted_content": "gAAA"}, *loop[2:]])
    assert words in says(reasoner, loop, model="other")


def test_unstored_reasoning_is_not_found(reasoner: Client, loop: list[Json]) -> None:
    """A reasoning item without encrypted content is unknown to the service: 404."""
    bare = {key: value for key, value in loop[1].items() if key != "encrypted_content"}
    assert f"Item with id '{bare['id']}' not found. Items are not persisted" in says(
        reasoner, [loop[0], bare, *loop[2:]]
    )


def test_a_message_needs_its_reasoning_too() -> None:
    """The rule applies to `msg_…` items as to calls."""
    with (
        WireServer([Reply("Hi", thinking="hm"), "x"], model=Model(era="modern")) as server,
        client(server, "responses") as made,
    ):
        message = send(made, "responses", body("responses", [USER]))["output"][1]
        assert "of type 'message' was provided without its required 'reasoning' item" in says(
            made, [USER, message, USER]
        )
