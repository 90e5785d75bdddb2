"""Starting and stopping the server, recorded requests, latency."""

import asyncio
import json
import time
from typing import Any

import aiohttp
import anthropic
import openai
import pytest

from tests.wire.faults import Fault
from tests.wire.model import Json, Model
from tests.wire.process import wire_process
from tests.wire.responders import always, tool_loop
from tests.wire.sdk_calls import body, client, send
from tests.wire.server import WireServer


def test_a_request_is_recorded_as_received() -> None:
    """Raw bytes, parsed body, headers, outcome, usage."""
    with WireServer(always("ok")) as server, client(server, "chat", key="sk-test") as made:
        asked = body("chat", "Grüße 🎉")
        send(made, "chat", asked)
        [request] = server.requests
        assert json.loads(request.raw) == request.body == asked
        assert (request.protocol, request.path, request.status) == ("chat", "/v1/chat/completions", 200)
        assert request.headers["authorization"] == "Bearer sk-test"
        assert request.usage.input > 0 < request.cost
        assert (request.rule, request.fault) == (None, None)


def test_each_model_has_its_own_rules() -> None:
    """One server can have models of both eras and with different windows."""
    models = {"new": Model(era="modern"), "small": Model(window=50)}
    with WireServer(models=models) as server, client(server, "chat") as made:
        send(made, "chat", body("chat", "Go.", model="old", temperature=0.5))
        for name, rule in (("new", "temperature"), ("small", "window")):
            with pytest.raises(openai.BadRequestError):
                send(made, "chat", body("chat", "Go. " * 50, model=name, temperature=0.5))
            assert server.refused[-1].rule == rule


def test_only_the_configured_key_is_accepted() -> None:
    """Any other key gets 401 with the service's message."""
    with WireServer(key="right") as server:
        for protocol, words in (("chat", "Incorrect API key"), ("messages", "invalid x-api-key")):
            with (
                client(server, protocol, key="wrong") as made,  # type: ignore[arg-type]
                pytest.raises((openai.AuthenticationError, anthropic.AuthenticationError), match=words),
            ):
                send(made, protocol, body(protocol, "Go."))  # type: ignore[arg-type]
        with client(server, "chat", key="right") as made:
            send(made, "chat", body("chat", "Go."))
        assert [request.rule for request in server.requests] == ["key", "key", None]


def test_servers_with_one_secret_accept_each_others_thinking() -> None:
    """A conversation can continue after a restart of the server."""
    thinking: Json = {"thinking": {"type": "adaptive"}}
    with (
        WireServer(tool_loop(2, thinking="hm"), model=Model(era="modern")) as server,
        client(server, "messages") as made,
    ):
        content = send(made, "messages", body("messages", "Go.", **thinking))["content"]
    result = {"type": "tool_result", "tool_use_id": content[1]["id"], "content": "ok"}
    talk = [
        {"role": "user", "content": "Go."},
        {"role": "assistant", "content": content},
        {"role": "user", "content": [result]},
    ]
    with WireServer(model=Model(era="modern")) as server, client(server, "messages") as made:
        assert send(made, "messages", body("messages", talk, **thinking))
    with (
        WireServer(model=Model(era="modern"), secret=b"other") as server,
        client(server, "messages") as made,
        pytest.raises(anthropic.BadRequestError, match="Invalid `signature`"),
    ):
        send(made, "messages", body("messages", talk, **thinking))


def test_a_failing_responder_fails_the_test() -> None:
    """A script that is too short gives the client 500 and is raised when the server stops."""

    def outrun() -> None:
        with WireServer(["one"]) as server, client(server, "chat") as made:
            send(made, "chat", body("chat", "a"))
            with pytest.raises(openai.InternalServerError):
                send(made, "chat", body("chat", "b"))

    with pytest.raises(ExceptionGroup, match="responder failed"):
        outrun()


def test_unknown_paths_and_invalid_json_are_refused() -> None:
    """With 404 and 400."""
    with WireServer() as server, client(server, "chat") as made:
        with pytest.raises(openai.NotFoundError, match="Invalid URL"):
            made.post("/nowhere", body={}, cast_to=object)
        with pytest.raises(openai.BadRequestError, match="could not parse the JSON body"):
            made.post("/chat/completions", content=b"{", cast_to=object)


async def test_a_client_that_disconnects_is_recorded() -> None:
    """Its answer counts as not delivered, and its connection is removed."""
    async with WireServer(latency=60.0) as server, aiohttp.ClientSession() as session:
        posting = asyncio.ensure_future(session.post(f"{server.openai_url}/chat/completions", json=body("chat", "a")))
        async with asyncio.timeout(10):
            while not server.requests:
                await asyncio.sleep(0.01)
        posting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await posting
        async with asyncio.timeout(10):
            while server.connections:
                await asyncio.sleep(0.01)
        assert [request.delivered for request in server.requests] == [False]
        assert server.connections == set()
        assert server.account.delivered == 0 < server.account.total


async def test_latency_and_pace() -> None:
    """Delayed answers do not block each other; a paced stream arrives event by event."""
    async with WireServer(always("word " * 20), latency=0.5) as server, aiohttp.ClientSession() as session:

        async def ask(**more: Any) -> bytes:
            async with session.post(f"{server.openai_url}/chat/completions", json=body("chat", "a", **more)) as answer:
                return await answer.read()

        start = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for _ in range(20):
                group.create_task(ask())
        assert 0.5 <= time.monotonic() - start < 5  # one after the other they would take 10 s
        server.latency, server.pace = 0.0, 0.05
        start = time.monotonic()
        assert (await ask(stream=True)).endswith(b"data: [DONE]\n\n")
        assert time.monotonic() - start > 0.25


async def test_a_slow_fault_delays_one_request() -> None:
    """Other requests are not delayed."""
    faults = {0: Fault("slow", seconds=0.1)}
    async with WireServer(faults=faults) as server, openai.AsyncOpenAI(base_url=server.openai_url, api_key="k") as ai:
        start = time.monotonic()
        await ai.chat.completions.create(model="m", messages=[{"role": "user", "content": "a"}])
        assert time.monotonic() - start >= 0.1


def test_the_server_runs_as_a_separate_process() -> None:
    """Started with a responder from the command line, it prints its port and reports its counters."""
    with wire_process("--responder", "tool_loop", "--steps", "1", "--text", "bye", "--era", "modern") as server:
        with openai.OpenAI(base_url=server.openai_url, api_key="k") as ai:
            answer = ai.chat.completions.create(model="m", messages=[{"role": "user", "content": "a"}])
        assert answer.choices[0].message.tool_calls
        figures = server.stats()
        assert (figures["requests"], figures["refused"]) == (1, [])
        assert figures["cpu_seconds"] > 0
