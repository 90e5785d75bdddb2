"""Malformed bodies are answered or refused; they never make the server fail."""

import json
from typing import Any

import anthropic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.wire.conftest import PROTOCOLS
from tests.wire.connection import Request
from tests.wire.model import Json, Model, Protocol
from tests.wire.responders import always
from tests.wire.sdk_calls import body, client, continued, send, tool
from tests.wire.server import WireServer

ODD: Any = st.sampled_from([None, True, 7, 1.5, "", "x", [], ["x"], {}, {"type": "text"}, {"x": 1}, [{}], [None]])


def valid(protocol: Protocol) -> Json:
    """A request with a bit of everything."""
    call = {"id": "a", "type": "function", "function": {"name": "step", "arguments": "{}"}}
    answers: dict[Protocol, Json] = {
        "chat": {"choices": [{"message": {"role": "assistant", "content": "Hm.", "tool_calls": [call]}}]},
        "responses": {"output": [{"type": "function_call", "call_id": "a", "name": "step", "arguments": "{}"}]},
        "messages": {"content": [{"type": "tool_use", "id": "a", "name": "step", "input": {}}]},
    }
    talk = continued(protocol, [{"role": "user", "content": "Go."}], answers[protocol])
    return body(protocol, talk, tool_choice="auto" if protocol != "messages" else {"type": "auto"})


def paths(value: Any, before: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, one in inner for place in [(*before, key), *paths(one, (*before, key))]]


def answer(server: WireServer, protocol: Protocol, asked: Json) -> int:
    """The status of an answer, without a socket."""
    path = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}[protocol]
    server._handle(Request("POST", path, {"anthropic-version": "1"}, json.dumps(asked).encode()))
    return server.requests[-1].status


@pytest.mark.parametrize("protocol", PROTOCOLS)
@given(data=st.data())
def test_no_body_breaks_the_server(protocol: Protocol, data: st.DataObject) -> None:
    """A valid request with one value replaced gets 200, 400 or 404."""
    server = WireServer(always("ok"))
    asked = json.loads(json.dumps(valid(protocol)))  # a copy: tools share their schema
    assert answer(server, protocol, asked) == 200
    *before, last = data.draw(st.sampled_from(paths(asked)))
    spot: Any = asked
    for key in before:
        spot = spot[key]
    spot[last] = data.draw(ODD)
    assert answer(server, protocol, asked) in (200, 400, 404), server.requests[-1].message


def test_a_model_can_require_tools() -> None:
    """With `demand_tools`, a history with tool blocks needs tools."""
    with WireServer(model=Model(demand_tools=True)) as server, client(server, "messages") as made:
        asked = valid("messages")
        send(made, "messages", asked)
        bare = {key: value for key, value in asked.items() if not key.startswith("tool")}
        with pytest.raises(anthropic.BadRequestError, match="must define tools"):
            send(made, "messages", bare)


def test_count_tokens_checks_the_request() -> None:
    """`count_tokens` refuses unknown fields, and prompts that `messages` would refuse."""
    with WireServer() as server, client(server, "messages") as made:
        bad: list[Json] = [body("messages", "Go."), body("messages", [], max_tokens=None), {"messages": []}]
        for asked in bad:
            with pytest.raises(anthropic.BadRequestError):
                made.post("/v1/messages/count_tokens", body=asked, cast_to=object)
        counted = {**body("messages", "Go.", max_tokens=None), "tools": [tool("messages")]}
        assert made.post("/v1/messages/count_tokens", body=counted, cast_to=object)
        assert [request.rule for request in server.requests] == [
            "unknown_field",
            "empty_messages",
            "missing_field",
            None,
        ]
