"""Hostile and odd services: replies are bounded, redirects are refused, and clear variations are read."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from crew import Agent, CrewExecutor, ScriptedProvider
from crew.errors import MalformedReply, Overloaded, RateLimited, RedirectRefused, ReplyTooLarge, RunError, Unavailable
from crew.interfaces import Provider
from crew.message_rules import reply_checks
from crew.messages import AssistantMessage, ToolMessage
from crew.providers import response_bounds
from crew.runs import RunResult
from crew.runs.events import Retried
from tests.support.remote_providers import PROTOCOLS, retrying_provider, run, worker
from tests.support.stores import JsonStore
from tests.wire import Fault, Protocol, Received, Reply, WireServer, tool_loop

MIB = 2**20
both_ways = pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
all_protocols = pytest.mark.parametrize("protocol", PROTOCOLS)


async def failure(model: Provider, *, streamed: bool) -> BaseException:
    """The error of a run that fails at this model."""
    executor = CrewExecutor(worker(model))

    with pytest.raises(RunError) as caught:
        await run(executor, streamed=streamed)

    await executor.aclose()
    assert caught.value.__cause__ is not None
    return caught.value.__cause__


async def closed_by_client(received: Received) -> bool:
    """Whether the client closed the connection before it had the whole answer; waits until it is known."""
    async with asyncio.timeout(5):
        while received.delivered is None:
            await asyncio.sleep(0.001)

    return not received.delivered


# --------------------------------------------------------------------------------------------- sizes


@both_ways
@all_protocols
async def test_gzip_bomb_is_refused_with_little_memory(protocol: Protocol, streamed: bool) -> None:
    """200 kB that become 200 MB: an error after 16 MiB, without a second attempt."""
    async with WireServer(faults=lambda *_: Fault("bomb")) as server:
        model = retrying_provider(server, protocol)
        await failure(model, streamed=streamed)  # loads everything that a request needs
        tracemalloc.start()

        try:
            error = await failure(model, streamed=streamed)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()

    assert isinstance(error, ReplyTooLarge)
    assert f"{'One event' if streamed else 'The response'} is larger than 16 MiB after decompression" in str(error)
    assert peak < 48 * MIB
    assert server.count == 2


@both_ways
@all_protocols
async def test_endless_answer_is_given_up_and_its_connection_closed(
    protocol: Protocol, streamed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A body without end, and a stream of valid events without end: the server sees that nobody reads on."""
    monkeypatch.setattr(response_bounds, "MAX_STREAM_BYTES", MIB)

    async with WireServer(lambda *_: "word " * 20, faults=lambda *_: Fault("endless")) as server:
        error = await failure(retrying_provider(server, protocol), streamed=streamed)
        assert isinstance(error, ReplyTooLarge)
        assert await closed_by_client(server.requests[0])

    assert ("A stream is larger than 1 MiB" if streamed else "The response is larger than 16 MiB") in str(error)
    assert server.count == 1


async def test_large_error_page_is_refused_too() -> None:
    """The text of an error is read like any other body."""
    async with WireServer(faults=lambda *_: Fault("bomb", status=500)) as server:
        error = await failure(retrying_provider(server, "chat"), streamed=True)

    assert isinstance(error, ReplyTooLarge)


async def test_backup_takes_over_from_a_reply_that_is_too_large() -> None:
    """The model is as good as unavailable."""
    async with WireServer(faults=lambda *_: Fault("bomb")) as server:
        agent = Agent("a", model=retrying_provider(server, "chat"), backup=ScriptedProvider("From the backup."))
        executor = CrewExecutor(agent)
        assert (await executor.execute("Go.")).output == "From the backup."
        await executor.aclose()


@both_ways
@all_protocols
@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (Reply(calls=[("step", {"n": n}) for n in range(300)]), "it has more than 256 tool calls"),
        (Reply(calls=[("s" * 300, {"n": 1})]), "the name of a call has 300 characters, more than 256"),
        (Reply(calls=[("step", {"n": 1}, "i" * 5000)]), "the id of a call has 5,000 characters, more than 4,096"),
        (Reply(calls=[("step", {"n": "x" * 2000})]), "characters, more than 1,000: "),
    ],
    ids=["calls", "name", "id", "arguments"],
)
async def test_call_beyond_a_limit_is_a_malformed_reply_that_is_retried(
    reply: Reply, words: str, protocol: Protocol, streamed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model may do better at the second attempt; nothing of the first is stored."""
    monkeypatch.setattr(reply_checks, "MAX_ARGUMENTS_CHARS", 1000)
    store = JsonStore()
    reasons: list[str] = []

    async with WireServer([reply, "Sorry. Done."]) as server:
        executor = CrewExecutor(
            worker(retrying_provider(server, protocol)),
            store=store,
            observers=[lambda event: reasons.append(event.reason) if isinstance(event, Retried) else None],
        )
        result = await run(executor, streamed=streamed)
        await executor.aclose()

    assert result.output == "Sorry. Done."
    assert len(reasons) == 1
    assert reasons[0].startswith("MalformedReply")
    assert words in reasons[0]
    assert len(store.newest.transcript) == 2


# ----------------------------------------------------------------------------------------- redirects


@both_ways
@all_protocols
async def test_redirect_to_another_server_is_refused(protocol: Protocol, streamed: bool) -> None:
    """The conversation goes only to the server that the user chose; the error names both, and nothing is retried."""
    async with WireServer() as other:
        target = f"{other.url}/v1/chat/completions"

        async with WireServer(faults=lambda *_: Fault("redirect", location=target)) as server:
            error = await failure(retrying_provider(server, protocol), streamed=streamed)

    assert isinstance(error, RedirectRefused)
    assert f"http://127.0.0.1:{server.port} redirects to http://127.0.0.1:{other.port}" in str(error)
    assert (server.count, other.count) == (1, 0)


@both_ways
async def test_later_request_is_not_redirected_either(streamed: bool) -> None:
    """Requests that reuse the head of an earlier one take another path through the HTTP client."""
    async with WireServer() as other:
        faults = {4: Fault("redirect", location=f"{other.url}/v1/chat/completions")}

        async with WireServer(tool_loop(9), faults=faults) as server:
            error = await failure(retrying_provider(server, "chat"), streamed=streamed)

    assert isinstance(error, RedirectRefused)
    assert other.count == 0


@both_ways
@all_protocols
async def test_redirect_within_the_server_is_followed_a_few_times(protocol: Protocol, streamed: bool) -> None:
    """With the same body; a loop of redirects ends."""
    paths = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}
    moved = Fault("redirect", location=paths[protocol])

    async with WireServer(faults={0: moved, 1: moved}) as server:
        executor = CrewExecutor(Agent("a", model=retrying_provider(server, protocol)))
        assert (await run(executor, "Hello", streamed=streamed)).output
        await executor.aclose()

    assert [request.raw for request in server.requests] == [server.requests[0].raw] * 3

    async with WireServer(faults=lambda *_: moved) as server:
        error = await failure(retrying_provider(server, protocol), streamed=streamed)

    assert isinstance(error, RedirectRefused)
    assert "redirects more than 5 times" in str(error)
    assert server.count == 6


async def test_redirect_that_drops_the_body_or_is_invalid_is_refused() -> None:
    """A 301 turns the request into a GET."""
    for location, status, words in [
        ("/v1/chat/completions", 301, "redirects to /v1/chat/completions with status 301, which drops the request"),
        ("https://127.0.0.1/v1", 308, "redirects to https://127.0.0.1, and the conversation is not sent"),
        ("//evil.example/v1", 307, "redirects to http://evil.example, and the conversation is not sent"),
        ("http://[::1", 307, "redirects to an invalid address, 'http://[::1'"),
    ]:
        async with WireServer(faults={0: Fault("redirect", location=location, status=status)}) as server:
            error = await failure(retrying_provider(server, "chat"), streamed=False)

        assert isinstance(error, RedirectRefused), error
        assert words in str(error)


# ---------------------------------------------------------------------------------- variations of replies


async def steps(
    protocol: Protocol, rewrite: Callable[[Any], Any], *, streamed: bool, calls: int = 2
) -> tuple[RunResult, list[Received]]:
    """A run whose first reply has several calls and is rewritten; the server checks the second request."""
    asked = Reply(text="I take steps.", calls=[("step", {"n": n}) for n in range(calls)])

    async with WireServer([asked, "Done."], faults={0: Fault("rewritten", rewrite=rewrite)}) as server:
        executor = CrewExecutor(worker(retrying_provider(server, protocol)))
        result = await run(executor, streamed=streamed)
        await executor.aclose()

    assert not server.refused
    return result, server.requests


def each(value: Any, change: Callable[[dict[str, Any]], None]) -> Any:
    """The value, after each object in it was changed."""
    if isinstance(value, dict):
        change(value)

    for inner in list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else ():
        each(inner, change)

    return value


def check_two_steps(result: RunResult) -> None:
    assert result.output == "Done."
    reply, results = result.transcript[1], result.transcript[2]
    assert isinstance(reply, AssistantMessage)
    assert isinstance(results, ToolMessage)
    assert reply.text == "I take steps."
    assert [json.loads(call.arguments) for call in reply.calls] == [{"n": 0}, {"n": 1}]
    assert [one.text for one in results.results] == ["step 0 is done", "step 1 is done"]


def without_index(data: Any) -> Any:
    return each(data, lambda value: "function" in value and value.pop("index", None))


def with_one_index(data: Any) -> Any:
    return each(data, lambda value: value.update(index=0) if "function" in value else None)


def integer_ids(data: Any) -> Any:
    def change(value: dict[str, Any]) -> None:
        for name in ("id", "call_id"):
            if str(value.get(name)).startswith(("call_", "toolu_")):
                value[name] = 7000 + int(value[name][-2:], 16)

    return each(data, change)


def arguments_as_objects(data: Any) -> Any:
    def change(value: dict[str, Any]) -> None:
        if isinstance(value.get("arguments"), str) and value["arguments"].endswith("}"):
            value["arguments"] = json.loads(value["arguments"])
        elif isinstance(value.get("input"), dict) and value["input"]:
            value["input"] = json.dumps(value["input"])

    return each(data, change)


def content_as_parts(data: Any) -> Any:
    def change(value: dict[str, Any]) -> None:
        if isinstance(value.get("content"), str) and value["content"] and value.get("type") != "message":
            value["content"] = [{"type": "thinking", "thinking": []}, {"type": "text", "text": value["content"]}]
        elif isinstance(value.get("content"), list) and value.get("type") == "message" and value.get("role"):
            texts = [part["text"] for part in value["content"] if part.get("type") == "output_text"]

            if texts:
                value["content"] = "".join(texts)

    return each(data, change)


@pytest.mark.parametrize("rewrite", [without_index, with_one_index], ids=["no index", "one index"])
async def test_streamed_parallel_calls_are_told_apart_without_an_index(rewrite: Callable[[Any], Any]) -> None:
    """By their ids."""
    result, _ = await steps("chat", rewrite, streamed=True)
    check_two_steps(result)


@both_ways
@all_protocols
@pytest.mark.parametrize("rewrite", [integer_ids, arguments_as_objects, content_as_parts])
async def test_variation_with_a_clear_meaning_is_read(
    rewrite: Callable[[Any], Any], protocol: Protocol, streamed: bool
) -> None:
    """Integer ids, arguments as objects (on Messages, as a text) and content as parts (or as a text)."""
    if (protocol, rewrite) == ("messages", content_as_parts) or (
        (protocol, streamed, rewrite) == ("messages", True, arguments_as_objects)
    ):
        return  # blocks are the usual form, and streamed arguments are texts

    result, _ = await steps(protocol, rewrite, streamed=streamed)
    check_two_steps(result)


async def test_content_of_messages_may_be_a_text() -> None:
    """Instead of a list of blocks."""

    def rewrite(data: Any) -> Any:
        return {**data, "content": "".join(block["text"] for block in data["content"])}

    async with WireServer(lambda *_: "Plain.", faults={0: Fault("rewritten", rewrite=rewrite)}) as server:
        executor = CrewExecutor(Agent("a", model=retrying_provider(server, "messages")))
        assert (await executor.execute("Hello")).output == "Plain."
        await executor.aclose()

    assert server.count == 1


@all_protocols
async def test_plain_answer_to_a_streamed_request_is_read(protocol: Protocol) -> None:
    """Some servers ignore `stream`."""
    async with WireServer(lambda *_: "Whole.", faults={0: Fault("unstreamed")}) as server:
        executor = CrewExecutor(Agent("a", model=retrying_provider(server, protocol)))
        result = await run(executor, "Hello", streamed=True)
        await executor.aclose()

    assert result.output == "Whole."
    assert server.count == 1


@both_ways
@all_protocols
@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"error": {"type": "overloaded_error", "message": "Try later."}}, Overloaded),
        ({"error": {"code": 429, "message": "Try later."}}, RateLimited),
        ({"error": {"code": 502, "message": "Try later."}}, Unavailable),
        ({"error": "Try later."}, Unavailable),
        ({"detail": "Try later."}, MalformedReply),
    ],
    ids=["type", "429", "502", "a text", "no reply"],
)
async def test_error_with_status_200_is_typed_and_retried(
    error: Any, kind: type[Exception], protocol: Protocol, streamed: bool
) -> None:
    """The second attempt succeeds."""
    reasons: list[str] = []

    async with WireServer(lambda *_: "Done.", faults={0: Fault("error_body", error=error)}) as server:
        executor = CrewExecutor(
            Agent("a", model=retrying_provider(server, protocol)),
            observers=[lambda event: reasons.append(event.reason) if isinstance(event, Retried) else None],
        )
        assert (await run(executor, streamed=streamed)).output == "Done."
        await executor.aclose()

    assert len(reasons) == 1
    assert reasons[0].startswith(kind.__name__)
    assert kind is MalformedReply or "Try later" in reasons[0]
