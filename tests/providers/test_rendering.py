"""The bytes of rendered messages on each API, and that each message is rendered once."""

import json
from dataclasses import replace
from typing import Any

import pytest

from crew.interfaces import ModelRequest, ToolSpec
from crew.message_rules import PROFILES
from crew.messages import AssistantMessage, ProviderData, SystemMessage, ToolCall, ToolMessage, ToolResult, UserMessage
from crew.providers.anthropic import decode_reply as anthropic_reply
from crew.providers.anthropic_render import render_request as anthropic_wire
from crew.providers.openai_chat import render_request as chat_wire
from crew.providers.openai_responses import render_request as responses_wire
from crew.providers.wire import ModelId

ME = ModelId("anthropic", "claude")
TALK = (
    UserMessage("Hi \ud800 there"),
    AssistantMessage("I look.", calls=(ToolCall(id="c1", name="look", arguments='{"n": 1}'),)),
    ToolMessage((ToolResult(call_id="c1", text="found"),)),
)
CHAT, MESSAGES, RESPONSES = PROFILES["openai-chat"], PROFILES["anthropic-classic"], PROFILES["openai-responses"]


def test_a_chat_request_has_exactly_these_bytes() -> None:
    """Keys keep their order, lone surrogates are replaced, arguments stay the model's text."""
    spec = ToolSpec(name="look", description="Look.", parameters={"type": "object", "properties": {}})
    wire = chat_wire(
        ModelRequest(messages=TALK, instructions="Be kind.", tools=(spec,), conversation_id="c"), "m", CHAT
    )
    assert wire.decode() == (
        '{"model":"m","prompt_cache_key":"c","tools":[{"type":"function","function":{"name":"look","description":"Look.",'
        '"parameters":{"type":"object","properties":{}}}}],"messages":[{"role":"system","content":"Be kind."},'
        '{"role":"user","content":"Hi \ufffd there"},{"role":"assistant","content":"I look.","tool_calls":[{"id":"c1",'
        '"type":"function","function":{"name":"look","arguments":"{\\"n\\": 1}"}}]},'
        '{"role":"tool","tool_call_id":"c1","content":"found"}]}'
    )


def test_a_message_is_rendered_once() -> None:
    """The second request reuses the bytes of the first."""
    request = ModelRequest(messages=TALK)
    chat_wire(request, "m", CHAT)
    kept = [message.cache()["chat"] for message in TALK]
    chat_wire(replace(request, instructions="Other."), "m", CHAT)
    assert all(message.cache()["chat"] is bytes_ for message, bytes_ in zip(TALK, kept, strict=True))


def test_the_alternating_profile_merges_neighbours() -> None:
    """System text moves to the front or becomes user text, and no two neighbours have the same role."""
    messages = (SystemMessage("S1"), UserMessage("a"), UserMessage("b"), SystemMessage("S2"), AssistantMessage("c"))
    wire = json.loads(chat_wire(ModelRequest(messages=messages, instructions="I."), "m", PROFILES["alternating"]))
    assert wire["messages"] == [
        {"role": "system", "content": "I.\n\nS1"},
        {"role": "user", "content": "a\n\nb\n\n[Instruction]\nS2"},
        {"role": "assistant", "content": "c"},
    ]


THOUGHT = {"type": "thinking", "thinking": "Hm.", "signature": "sig"}


def reply(*blocks: dict[str, Any]) -> AssistantMessage:
    """Decode a reply of Anthropic into a message."""
    decoded = anthropic_reply({"content": list(blocks), "stop_reason": "tool_use", "usage": {}}, ME)
    return AssistantMessage(decoded.text, calls=decoded.calls, provider_data=decoded.provider_data)


def use(id: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": "look", "input": {}}


def blocks_of(message: AssistantMessage, model_id: ModelId = ME) -> list[dict[str, Any]]:
    wire = json.loads(anthropic_wire(ModelRequest(messages=(UserMessage("Go."), message)), model_id, MESSAGES))
    return [{k: v for k, v in block.items() if k != "cache_control"} for block in wire["messages"][1]["content"]]


def test_thinking_blocks_keep_their_original_order() -> None:
    """Thinking stays between text and calls for the model that wrote it; other models get none of it."""
    text, more = {"type": "text", "text": "One. "}, {"type": "text", "text": "Two."}
    written = [THOUGHT, text, {**THOUGHT, "thinking": "Hm 2."}, more, use("a"), use("b")]
    message = reply(*written)
    assert blocks_of(message) == written
    assert blocks_of(message, ModelId("anthropic", "other")) == [
        {"type": "text", "text": "One. Two."},
        use("a"),
        use("b"),
    ]


def test_a_changed_text_is_sent_as_changed() -> None:
    """The history's text is sent, not the original reply: a removed secret stays removed."""
    message = replace(
        reply(THOUGHT, {"type": "text", "text": "The key is 123."}, use("a")), text="The key is [secret]."
    )
    assert blocks_of(message) == [THOUGHT, {"type": "text", "text": "The key is [secret]."}, use("a")]


def trimmed(message: AssistantMessage, gone: str) -> AssistantMessage:
    """Remove a call as the engine does."""
    data = message.provider_data
    assert data is not None
    items = tuple(item for item in data.items if item.get("call_id") != gone)
    calls = tuple(call for call in message.calls if call.id != gone)
    return replace(message, calls=calls, provider_data=replace(data, items=items))


def test_thinking_before_a_removed_call_is_dropped() -> None:
    """The service refuses a turn that ends with thinking; with a call after it, the thinking stays."""
    assert blocks_of(trimmed(reply(THOUGHT, use("a"), use("b")), "b")) == [THOUGHT, use("a")]
    assert blocks_of(trimmed(reply(THOUGHT, use("a"), THOUGHT, use("b")), "b")) == [use("a")]


def test_a_responses_reply_without_one_of_its_calls_has_no_reasoning() -> None:
    """Whether the service accepts part of a turn is unknown; without reasoning and ids it does."""
    data = ProviderData(
        provider="openai-responses",
        model="m",
        items=(
            {"type": "turn", "calls": 2},
            {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"},
            {"type": "function_call", "id": "fc_1", "call_id": "a"},
            {"type": "function_call", "id": "fc_2", "call_id": "b"},
        ),
    )
    calls = (ToolCall(id="a", name="look"), ToolCall(id="b", name="look"))
    whole = AssistantMessage(calls=calls, provider_data=data)

    def items(message: AssistantMessage) -> list[tuple[str, str | None]]:
        request = ModelRequest(messages=(UserMessage("Go."), message))
        wire = json.loads(responses_wire(request, ModelId("openai-responses", "m"), RESPONSES))
        return [(item["type"], item.get("id")) for item in wire["input"][1:]]

    assert items(whole) == [("reasoning", "rs_1"), ("function_call", "fc_1"), ("function_call", "fc_2")]
    assert items(trimmed(whole, "b")) == [("function_call", None)]


@pytest.mark.parametrize("finish", ["max_tokens", "tool_use"])
def test_a_call_cut_off_by_the_output_limit_is_invalid(finish: str) -> None:
    """Anthropic's plain answer completes the JSON of the partial arguments."""
    block = {"type": "tool_use", "id": "a", "name": "pay", "input": {"amount": 10}}
    decoded = anthropic_reply({"content": [block], "stop_reason": finish, "usage": {}}, ME)
    assert decoded.calls[0].arguments == ('{"amount":10' if finish == "max_tokens" else '{"amount":10}')
