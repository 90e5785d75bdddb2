"""A reply of a wrong shape is a `MalformedReply`, wherever in the reply the mistake is, streamed or not."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crew.errors import ProviderError
from crew.interfaces import ModelReply, ModelRequest
from crew.messages import UserMessage
from crew.providers import Anthropic, OpenAIChat, OpenAIResponses
from tests.support.remote_providers import KEY, PROTOCOLS
from tests.wire import Protocol

HELLO = ModelRequest(messages=(UserMessage("Hello"),))
ODD: Any = st.sampled_from([None, True, 7, -1.5, "x", [], ["x"], {}, {"type": "text"}, [{}], [None]])
PROVIDERS = {"chat": OpenAIChat, "responses": OpenAIResponses, "messages": Anthropic}

CALL = {"type": "function_call", "id": "f", "call_id": "a", "name": "step", "arguments": "{}"}
MESSAGE = {"type": "message", "id": "m", "content": [{"type": "output_text", "text": "Hi."}]}
RESPONSE: dict[str, Any] = {
    "id": "r",
    "model": "m",
    "status": "completed",
    "output": [MESSAGE, CALL],
    "usage": {"input_tokens": 3, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 1}},
}
CHAT_CALL = {"index": 0, "id": "a", "type": "function", "function": {"name": "step", "arguments": "{}"}}
CHAT_USAGE = {"prompt_tokens": 3, "completion_tokens": 2}
BLOCKS = [{"type": "text", "text": "Hi."}, {"type": "tool_use", "id": "a", "name": "step", "input": {}}]

STREAMS: dict[str, list[Any]] = {
    "chat": [
        {"id": "r", "model": "m", "choices": [{"index": 0, "delta": {"content": "Hi.", "tool_calls": [CHAT_CALL]}}]},
        {"id": "r", "model": "m", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": CHAT_USAGE},
    ],
    "responses": [
        {"type": "response.output_text.delta", "delta": "Hi."},
        {"type": "response.completed", "response": RESPONSE},
    ],
    "messages": [
        {"type": "message_start", "message": {"id": "r", "model": "m", "usage": {"input_tokens": 3}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hi."}},
        {"type": "content_block_start", "index": 1, "content_block": {**BLOCKS[1]}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}},
        {"type": "message_stop"},
    ],
}
PLAIN: dict[str, Any] = {
    "chat": {
        "id": "r",
        "model": "m",
        "choices": [{"message": {"content": "Hi.", "tool_calls": [CHAT_CALL]}, "finish_reason": "stop"}],
        "usage": CHAT_USAGE,
    },
    "responses": RESPONSE,
    "messages": {"id": "r", "model": "m", "content": BLOCKS, "stop_reason": "end_turn", "usage": {"input_tokens": 3}},
}


@asynccontextmanager
async def server_with(answer: bytes, kind: str) -> AsyncIterator[str]:
    """A server that gives this answer to every request."""

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {len(answer)}\r\nconnection: close\r\n\r\n"
        writer.write(head.encode() + answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(respond, "127.0.0.1", 0)

    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def complete(protocol: Protocol, answer: Any, *, streamed: bool) -> ModelReply:
    if streamed:
        names = [event.get("type", "") if isinstance(event, dict) else "" for event in answer]
        events = zip(names, map(json.dumps, answer), strict=True)
        body = "".join(f"event: {name}\ndata: {data}\n\n" for name, data in events)
        data, kind = (body + ("data: [DONE]\n\n" if protocol == "chat" else "")).encode(), "text/event-stream"
    else:
        data, kind = json.dumps(answer).encode(), "application/json"

    async with server_with(data, kind) as url:
        base_url = url if protocol == "messages" else f"{url}/v1"
        provider = PROVIDERS[protocol]("m", base_url=base_url, api_key=KEY)

        try:
            return await provider.complete(HELLO, (lambda delta: None) if streamed else None)
        finally:
            await provider.aclose()


def places(value: Any, before: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, one in inner for place in [(*before, key), *places(one, (*before, key))]]


@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_valid_reply_is_read(protocol: Protocol, streamed: bool) -> None:
    """The replies that the next test changes are accepted."""
    reply = await complete(protocol, (STREAMS if streamed else PLAIN)[protocol], streamed=streamed)
    assert (reply.text, [call.name for call in reply.calls], reply.usage.input_tokens) == ("Hi.", ["step"], 3)


@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_reply_with_one_wrong_value_is_read_or_malformed(
    protocol: Protocol, streamed: bool, data: st.DataObject
) -> None:
    """Another value anywhere, also in the last event of a stream: the reply has the right types, or is an error."""
    answer = deepcopy((STREAMS if streamed else PLAIN)[protocol])
    *before, last = data.draw(st.sampled_from(places(answer)))
    spot = answer

    for key in before:
        spot = spot[key]

    if isinstance(spot, dict) and data.draw(st.booleans(), label="removed"):
        del spot[last]
    else:
        spot[last] = data.draw(ODD)

    try:
        reply = asyncio.run(complete(protocol, answer, streamed=streamed))
    except ProviderError:
        return

    assert isinstance(reply.text, str)
    assert all(isinstance(text, str) for call in reply.calls for text in (call.id, call.name, call.arguments))
    assert isinstance(reply.usage.input_tokens + reply.usage.output_tokens, int)


async def test_a_last_event_without_output_is_malformed() -> None:
    """Retried like other malformed replies, and reported by its reason."""
    stream = [STREAMS["responses"][0], {"type": "response.completed", "response": {"id": "r"}}]

    with pytest.raises(ProviderError, match=r"a stream event of an unknown shape .KeyError..output"):
        await complete("responses", stream, streamed=True)
