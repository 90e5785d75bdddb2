"""Conversations through the SDKs' high-level methods, plain and streamed: no valid request is refused."""

import asyncio
import json
from typing import Any

import anthropic
import openai
import pytest

from tests.wire.conftest import PROTOCOLS
from tests.wire.model import Era, Json, Model, Protocol
from tests.wire.replies import Reply
from tests.wire.responders import by_agent, newest, scripted, tool_loop
from tests.wire.sdk_calls import body, client, continued, send, stream, tool
from tests.wire.server import WireServer

USER: Json = {"role": "user", "content": "Go."}


def assembled(protocol: Protocol, events: list[Json]) -> Json:
    """A streamed answer put together by hand, as a client without helpers does it."""
    if protocol == "responses":
        return dict(events[-1]["response"])
    if protocol == "messages":
        return _message(events)
    message: Json = {"role": "assistant", "content": "", "tool_calls": []}
    for event in events:
        for choice in event["choices"]:
            message["content"] += choice["delta"].get("content") or ""
            for part in choice["delta"].get("tool_calls", ()):
                if part["index"] == len(message["tool_calls"]):
                    message["tool_calls"].append({key: value for key, value in part.items() if key != "index"})
                else:
                    message["tool_calls"][part["index"]]["function"]["arguments"] += part["function"]["arguments"]
    return {"choices": [{"message": {key: value for key, value in message.items() if value}}]}


def _message(events: list[Json]) -> Json:
    blocks: list[Json] = []
    raws: dict[int, str] = {}
    for event in events:
        if event["type"] == "content_block_start":
            blocks.append(dict(event["content_block"]))
        if event["type"] == "content_block_delta":
            delta, block = event["delta"], blocks[event["index"]]
            for key in ("text", "thinking", "signature"):
                if key in delta:
                    block[key] += delta[key]
            raws[event["index"]] = raws.get(event["index"], "") + delta.get("partial_json", "")
    for index, raw in raws.items():
        if raw:
            blocks[index]["input"] = json.loads(raw)
    return {"content": blocks}


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("era", ["classic", "modern"])
@pytest.mark.parametrize("how", ["plain", "streamed"])
def test_a_tool_loop_runs_to_its_end(protocol: Protocol, era: Era, how: str) -> None:
    """Answers that are sent back verbatim are accepted at every step, with and without thinking."""
    kind = {"type": "adaptive"} if era == "modern" else {"type": "enabled", "budget_tokens": 1024}
    more = {"thinking": kind} if protocol == "messages" else {}
    messages = [USER]
    with (
        WireServer(tool_loop(6, width=2, thinking="hm", text="All done."), model=Model(era=era)) as server,
        client(server, protocol) as made,
    ):
        for _ in range(4):
            asked = body(protocol, messages, **more)
            answer = (
                send(made, protocol, asked) if how == "plain" else assembled(protocol, stream(made, protocol, asked))
            )
            messages = continued(protocol, messages, answer)
        assert "All done." in json.dumps(messages[-1])
        assert [request.status for request in server.requests] == [200] * 4
        assert not server.refused


async def test_the_async_helpers_of_openai_understand_the_answers() -> None:
    """`create`, `stream` and `parse` of the SDK decode what the server sends."""
    responder = scripted([Reply("Hi", calls=[("step", {"n": 1})])] * 2 + ["Hello there, this is a longer text."] * 2)
    async with WireServer(responder) as server, openai.AsyncOpenAI(base_url=server.openai_url, api_key="k") as ai:
        asked: Any = {"model": "m", "messages": [USER], "tools": [tool("chat")]}
        whole = await ai.chat.completions.create(**asked)
        assert whole.choices[0].message.tool_calls
        given: Any = {"model": "m", "input": "Go.", "tools": [tool("responses", strict=False)]}
        items = (await ai.responses.create(**given)).output
        assert [item.type for item in items] == ["message", "function_call"]
        async with ai.chat.completions.stream(model="m", messages=[{"role": "user", "content": "Go."}]) as events:
            final = await events.get_final_completion()
        assert final.choices[0].message.content == "Hello there, this is a longer text."
        async with ai.responses.stream(model="m", input="Go.") as parts:
            response = await parts.get_final_response()
        assert response.output_text == "Hello there, this is a longer text."


async def test_the_async_helpers_of_anthropic_understand_the_answers() -> None:
    """`create`, `stream` and `count_tokens` of the SDK decode what the server sends."""
    responder = scripted([Reply("Hi", calls=[("step", {"n": 1})], thinking="hm")] * 3)
    async with WireServer(responder) as server, anthropic.AsyncAnthropic(base_url=server.url, api_key="k") as ai:
        asked: Any = body("messages", "Go.", thinking={"type": "enabled", "budget_tokens": 1024})
        whole = await ai.messages.create(**asked)
        async with ai.messages.stream(**asked) as events:
            final = await events.get_final_message()
        assert [part.type for part in whole.content] == [part.type for part in final.content]
        assert [part.type for part in final.content] == ["thinking", "text", "tool_use"]
        counted = await ai.messages.count_tokens(model="m", messages=asked["messages"], tools=asked["tools"])
        assert counted.input_tokens == whole.usage.input_tokens


async def test_conversations_run_side_by_side() -> None:
    """Stateless responders serve concurrent conversations, each with its own agent."""
    responder = by_agent({"miner": tool_loop(3), "poet": lambda *_: "A rose."})

    async def mine(ai: openai.AsyncOpenAI) -> str:
        messages: list[Any] = [{"role": "system", "content": "You are the miner."}, USER]
        while True:
            asked: Any = {"model": "m", "messages": messages, "tools": [tool("chat")]}
            message = (await ai.chat.completions.create(**asked)).choices[0].message
            if not message.tool_calls:
                return message.content or ""
            messages.append(message.model_dump(exclude_none=True, exclude={"annotations"}))
            messages += [{"role": "tool", "tool_call_id": one.id, "content": "ok"} for one in message.tool_calls]

    async with WireServer(responder) as server, openai.AsyncOpenAI(base_url=server.openai_url, api_key="k") as ai:
        async with asyncio.TaskGroup() as group:
            runs = [group.create_task(mine(ai)) for _ in range(10)]
        assert [run.result() for run in runs] == ["done"] * 10
        assert (len(server.requests), server.refused) == (40, [])


def test_the_newest_calls_read_the_same_in_every_protocol() -> None:
    """`newest` gives a responder the same end of a conversation in every protocol."""
    for protocol in PROTOCOLS:
        with WireServer(tool_loop(4, width=2)) as server, client(server, protocol) as made:
            messages = [USER]
            for _ in range(2):
                messages = continued(protocol, messages, send(made, protocol, body(protocol, messages)))
            found = newest(body(protocol, messages), protocol)
            assert (found.text, found.results) == (None, ["ok", "ok"])
            assert found.calls == [("step", {"n": 3}), ("step", {"n": 4})]
            assert newest(body(protocol, [*messages[:1]]), protocol).text == "Go."
