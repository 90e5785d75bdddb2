"""The contract of every provider, checked on the providers that ship with Crew."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from crew import ScriptedProvider, call
from crew.interfaces import Delta, ModelReply, ModelRequest, Provider, ToolSpec
from crew.message_rules import get_profile
from crew.messages import AssistantMessage, ToolCall, ToolMessage, ToolResult, UserMessage
from crew.providers import Retrying
from tests.support.remote_providers import PROTOCOLS, provider
from tests.wire import Protocol, Reply, WireServer, tool_names

Made = Callable[[], Any]
SPEC = ToolSpec(
    name="step",
    description="Go on.",
    parameters={"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
)
ANSWER = "A plain answer."


@asynccontextmanager
async def scripted() -> AsyncIterator[Provider]:
    yield ScriptedProvider(lambda request: call("step", n=1) if request.tools else ANSWER)


def remote(protocol: Protocol, *, wrapped: bool = False) -> Made:
    @asynccontextmanager
    async def made() -> AsyncIterator[Provider]:
        def responder(body: Any, *_: Any) -> Reply:
            return Reply(calls=[("step", {"n": 1})]) if "step" in tool_names(body) else Reply(text=ANSWER)

        async with WireServer(responder) as server:
            inner = provider(server, protocol, "classic")
            yield Retrying(inner) if wrapped else inner
            await inner.aclose()  # type: ignore[attr-defined]

    return made


MAKERS: dict[str, Made] = {
    "scripted": scripted,
    **{protocol: remote(protocol) for protocol in PROTOCOLS},
    "retrying": remote("chat", wrapped=True),
}


@pytest.fixture(params=MAKERS, ids=str)
async def asked(request: pytest.FixtureRequest) -> AsyncIterator[Provider]:
    async with MAKERS[request.param]() as made:
        yield made


def question(**more: Any) -> ModelRequest:
    return ModelRequest(messages=(UserMessage("Hello"),), instructions="Be kind.", agent="a", **more)


async def test_provider_has_name_model_and_profile(asked: Provider) -> None:
    """The profile exists."""
    assert isinstance(asked, Provider)
    assert asked.name
    assert asked.model
    assert get_profile(asked.profile)


async def test_reply_has_text_usage_and_finish_reason(asked: Provider) -> None:
    """The usage is that of one request and counts input and output."""
    reply = await asked.complete(question())
    assert (reply.text, reply.calls, reply.finish_reason) == (ANSWER, (), "stop")
    assert reply.usage.requests == 1
    assert reply.usage.input_tokens > 0
    assert reply.usage.output_tokens > 0


async def test_call_has_id_name_and_raw_arguments(asked: Provider) -> None:
    """The arguments are the text that the model wrote."""
    reply = await asked.complete(question(tools=(SPEC,)))
    assert reply.finish_reason == "calls"
    assert [(one.name, one.arguments.replace(" ", "")) for one in reply.calls] == [("step", '{"n":1}')]
    assert reply.calls[0].id


async def test_deltas_add_up_to_the_reply(asked: Provider) -> None:
    """Streamed or not, the reply is the same."""
    deltas = list[Delta]()
    streamed = await asked.complete(question(), deltas.append)
    plain = await asked.complete(question())
    assert "".join(delta.text for delta in deltas if delta.kind == "text") == streamed.text == plain.text
    assert streamed.usage == plain.usage


async def test_conversation_with_calls_can_be_continued(asked: Provider) -> None:
    """Calls and their results are sent in order."""
    calls = (ToolCall(id="call_1", name="step", arguments='{"n": 1}'), ToolCall(id="call_2", name="step"))
    results = (ToolResult(call_id="call_1", text="one"), ToolResult(call_id="call_2", text="", outcome="error"))
    messages = (UserMessage("Go."), AssistantMessage("I go.", calls=calls), ToolMessage(results))
    assert (await asked.complete(ModelRequest(messages=messages))).text == ANSWER


async def test_provider_serves_concurrent_requests(asked: Provider) -> None:
    """A provider keeps no state of a request."""
    async with asyncio.TaskGroup() as group:
        tasks: list[asyncio.Task[ModelReply]] = [
            group.create_task(asked.complete(question(conversation_id=str(number)))) for number in range(20)
        ]

    assert {task.result().text for task in tasks} == {ANSWER}


async def test_cancelled_request_leaves_nothing_behind(asked: Provider) -> None:
    """The next request is answered."""
    task = asyncio.ensure_future(asked.complete(question()))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert (await asked.complete(question())).text == ANSWER


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_closed_provider_opens_again(protocol: Protocol, caplog: pytest.LogCaptureFixture) -> None:
    """Closing waits for active requests; a second close does nothing."""
    async with WireServer(latency=0.02) as server:
        asked = provider(server, protocol, "classic")
        close: Any = asked.aclose  # type: ignore[attr-defined]
        task = asyncio.ensure_future(asked.complete(question()))

        while not server.count:
            await asyncio.sleep(0.001)

        await close()
        assert (await task).text == "Hello"
        assert (await asked.complete(question())).text == "Hello"
        await close()
        await close()

    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
