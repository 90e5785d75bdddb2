"""Thinking blocks: signed by the server, and accepted only unchanged."""

from collections.abc import Iterator

import anthropic
import pytest

from tests.wire.model import Json, Model
from tests.wire.replies import Reply
from tests.wire.responders import tool_loop
from tests.wire.sdk_calls import Client, body, client, continued, send
from tests.wire.server import WireServer

USER: Json = {"role": "user", "content": "Go."}
MANUAL: Json = {"thinking": {"type": "enabled", "budget_tokens": 1024}}
MODELS = {"modern": Model(era="modern"), "stiff": Model(interleaved=False)}


@pytest.fixture(scope="module")
def thinker() -> Iterator[Client]:
    with WireServer(tool_loop(5), models=MODELS) as server, client(server, "messages") as made:
        yield made


@pytest.fixture(scope="module")
def loop(thinker: Client) -> list[Json]:
    """User, thinking and call, result, thinking and call, result."""
    messages = [USER]
    for _ in range(2):
        messages = continued("messages", messages, send(thinker, "messages", body("messages", messages, **MANUAL)))
    return messages


def says(thinker: Client, messages: list[Json], **more: object) -> str:
    with pytest.raises(anthropic.BadRequestError) as caught:
        send(thinker, "messages", body("messages", messages, **{**MANUAL, **more}))
    return caught.value.message


def edited(messages: list[Json], index: int, content: list[Json]) -> list[Json]:
    return [*messages[:index], {**messages[index], "content": content}, *messages[index + 1 :]]


def test_a_tool_loop_with_verbatim_thinking_continues(thinker: Client, loop: list[Json]) -> None:
    """Every turn with calls starts with thinking, which is accepted verbatim."""
    assert [[part["type"] for part in turn["content"]] for turn in loop[1::2]] == [["thinking", "tool_use"]] * 2
    assert send(thinker, "messages", body("messages", loop, **MANUAL))["stop_reason"] == "tool_use"


@pytest.mark.parametrize("index", [1, 3])
def test_a_turn_of_the_open_loop_must_start_with_thinking(index: int, thinker: Client, loop: list[Json]) -> None:
    """With thinking enabled, a turn with calls but without thinking is refused anywhere in the loop."""
    words = f"messages.{index}.content.0.type: Expected `thinking` or `redacted_thinking`, but found `tool_use`."
    assert words in says(thinker, edited(loop, index, loop[index]["content"][1:]))


def test_a_closed_loop_needs_no_thinking(thinker: Client, loop: list[Json]) -> None:
    """Turns before the newest user message may be sent without it."""
    bare = edited(edited(loop, 1, loop[1]["content"][1:]), 3, loop[3]["content"][1:])
    again = [*bare, {"role": "assistant", "content": "Done."}, USER]
    assert send(thinker, "messages", body("messages", again, **MANUAL))["content"]


def test_disabled_thinking_needs_no_thinking(thinker: Client, loop: list[Json]) -> None:
    """Without the option, blocks are accepted but not required."""
    bare = edited(edited(loop, 1, loop[1]["content"][1:]), 3, loop[3]["content"][1:])
    for messages in (bare, loop):
        reply = send(thinker, "messages", body("messages", messages))
        assert [part["type"] for part in reply["content"]] == ["tool_use"]


def test_any_edit_breaks_the_signature(thinker: Client, loop: list[Json]) -> None:
    """Another text, signature or model is refused at any position."""
    block, call = loop[1]["content"]
    for broken in ({**block, "thinking": block["thinking"] + " "}, {**block, "signature": "c2ln"}):
        words = says(thinker, edited(loop, 1, [broken, call]))
        assert "messages.1.content.0: Invalid `signature` in `thinking` block" in words
    assert "Invalid `signature` in `thinking` block" in says(thinker, loop, model="other")


def test_thinking_of_another_turn_is_a_modification(thinker: Client, loop: list[Json]) -> None:
    """The newest turn with merged or duplicated blocks is refused, although each signature is valid."""
    first, last = loop[1]["content"], loop[3]["content"]
    words = "`thinking` or `redacted_thinking` blocks in the latest assistant message cannot be modified"
    assert words in says(thinker, edited(loop, 3, [first[0], *last]))


def test_several_blocks_must_keep_their_order() -> None:
    """A turn with visible and redacted thinking must be sent back complete and in order."""
    reply = Reply(thinking=["One.", "[redacted]", "Two."], calls=[("step", {"n": 1})])
    with WireServer([reply, *["x"] * 3]) as server, client(server, "messages") as made:
        messages = continued("messages", [USER], send(made, "messages", body("messages", [USER], **MANUAL)))
        parts = messages[1]["content"]
        assert [part["type"] for part in parts] == ["thinking", "redacted_thinking", "thinking", "tool_use"]
        swapped = [parts[2], parts[1], parts[0], parts[3]]
        for broken in (swapped, parts[1:]):
            assert "cannot be modified" in says(made, edited(messages, 1, broken))
        assert send(made, "messages", body("messages", messages, **MANUAL))["content"]


def test_adaptive_thinking_may_be_dropped_but_not_edited(thinker: Client) -> None:
    """The modern era verifies signatures but requires no block."""
    with WireServer(tool_loop(3, thinking="hm"), model=MODELS["modern"]) as server, client(server, "messages") as made:
        adaptive = {"thinking": {"type": "adaptive"}}
        messages = continued("messages", [USER], send(made, "messages", body("messages", [USER], **adaptive)))
        block, call = messages[1]["content"]
        assert send(made, "messages", body("messages", edited(messages, 1, [call]), **adaptive))["content"]
        broken = edited(messages, 1, [{**block, "thinking": "x"}, call])
        assert "Invalid `signature`" in says(made, broken, **adaptive)


def test_without_interleaving_only_the_first_turn_thinks(thinker: Client) -> None:
    """Older models think once in a loop; only that block is required."""
    messages = [USER]
    for kinds in (["thinking", "tool_use"], ["tool_use"], ["tool_use"]):
        reply = send(thinker, "messages", body("messages", messages, model="stiff", **MANUAL))
        assert [part["type"] for part in reply["content"]] == kinds
        messages = continued("messages", messages, reply)
