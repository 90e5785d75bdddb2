"""`CrewClient` has the methods of `CrewExecutor`, over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from crew import Agent, Approve, Context, CrewExecutor, RequestParameters, RunError, ScriptedProvider, call, tool
from crew.client import CrewClient, ServiceError
from crew.errors import ConversationPaused, DefinitionError, InvalidInput, UnknownPause, UnknownRun
from tests.support.gateway import Gateway, gateway
from tests.support.http_service import SECRET, served


@tool(approval=True)
def refund(amount: int) -> str:
    """Pay money back."""
    return f"Paid {amount}."


@pytest.fixture
async def client() -> AsyncIterator[CrewClient]:
    """A client of a clerk that asks for an approval in each conversation."""
    script = ScriptedProvider(call("refund", amount=80), lambda request: "It is\npaid.")
    executor = CrewExecutor(Agent("clerk", model=script, tools=[refund]))

    async with served(executor) as url, CrewClient(url, SECRET) as client:
        yield client


async def test_execute_and_resume_return_the_run(client: CrewClient) -> None:
    """Output, usage and pauses have the names of `RunResult`."""
    paused = await client.execute(
        "Refund me.", metadata={"customer": 1}, parameters=RequestParameters(max_tokens=9_000)
    )
    assert (paused.stop_reason, paused.metadata) == ("paused", {"customer": 1})
    done = await client.resume(paused.run_id, {paused.pauses[0].id: Approve(arguments={"amount": 50})})
    assert (done.stop_reason, done.output, done.usage.requests) == ("completed", "It is\npaid.", 2)
    assert "Paid 50." in str((await client.transcript(done.run_id))[2])
    listed, cursor = await client.runs(status="completed")
    assert ([run.run_id for run in listed], cursor) == ([done.run_id], None)
    assert (await client.run(done.run_id)).output == done.output


async def test_streams_yield_the_events_of_this_part_of_the_run(client: CrewClient) -> None:
    """A resume begins with `resumed`; text arrives as it is generated."""
    async with client.execute_stream("Refund me.", run_id="r1", conversation="c1") as events:
        kinds = [event.kind async for event in events]

    assert (kinds[0], kinds[-1]) == ("run_started", "paused")
    pause = events.result.pauses[0].id
    resumed = await client.resume_stream("r1", {pause: True})
    found = [event async for event in resumed]
    assert (found[0].kind, found[-1].kind) == ("resumed", "run_finished")
    assert [event.text for event in found if event.kind == "text_delta"] == ["It is\n", "paid."]
    conversation = await client.conversation("c1")
    assert [message.role for message in conversation.messages] == ["user", "assistant", "tool", "assistant"]


async def test_a_question_has_its_choices() -> None:
    """As the `Pause` of a `RunResult`."""

    @tool(asks=True)
    async def choose(context: Context[None]) -> str:
        """Ask for a size."""
        return await context.ask_user("Which size?", choices=["small", "large"])

    executor = CrewExecutor(Agent("clerk", model=ScriptedProvider(call("choose"), "Done."), tools=[choose]))

    async with served(executor) as url, CrewClient(url, SECRET) as client:
        [pause] = (await client.execute("Hi")).pauses

    assert pause.choices == ("small", "large")


async def test_invalid_ids_are_refused_before_a_request() -> None:
    """They would be another path; nothing listens at this address."""
    client = CrewClient("http://127.0.0.1:9")
    calls = (client.run, client.cancel, client.resume, client.transcript, client.conversation)

    for method in calls:
        with pytest.raises(InvalidInput, match="must be 1–128 characters"):
            await method("r1/transcript")

    with pytest.raises(InvalidInput, match="run id must be 1–128 characters"):
        client.execute_stream("Hello.", run_id="")

    await client.aclose()


async def test_errors_are_those_of_the_executor(client: CrewClient) -> None:
    """Each error of the service is raised with its facts."""
    with pytest.raises(InvalidInput) as invalid:
        await client.execute(" ", agent="nobody!")

    assert [one.rule for one in invalid.value.violations] == ["blank", "agent"]

    with pytest.raises(UnknownRun):
        await client.run("unknown")

    paused = await client.execute("Refund me.", conversation="c2")

    with pytest.raises(ConversationPaused) as waiting:
        await client.execute("And?", conversation="c2")

    assert waiting.value.pauses[0].id == paused.pauses[0].id

    with pytest.raises(UnknownPause) as unknown:
        await client.resume(paused.run_id, {"x": True})

    assert unknown.value.pending == (paused.pauses[0].id,)
    assert (await client.cancel(paused.run_id)).stop_reason == "cancelled"


async def test_a_failed_run_raises_a_run_error_with_the_run() -> None:
    """Like `CrewExecutor.execute`."""
    async with (
        served(CrewExecutor(Agent("clerk", model=ScriptedProvider()))) as url,
        CrewClient(url, SECRET) as client,
    ):
        with pytest.raises(RunError, match="ScriptExhausted") as failed:
            await client.execute("Hi")

        assert failed.value.result.status == "failed"


async def test_a_service_that_is_away_is_an_error() -> None:
    """The address and the reason are in the text."""
    async with CrewClient("http://127.0.0.1:9", SECRET, reconnect_seconds=0.1) as client:
        with pytest.raises(ServiceError, match="Is it running"):
            await client.run("x")

        with pytest.raises(ServiceError, match="Is it running"):
            await client.execute("Hi")


@dataclass
class Waiter:
    """A crew whose tool waits until the test lets it continue, behind a proxy."""

    gateway: Gateway
    url: str
    calls: int = 0
    has_started: asyncio.Event = field(default_factory=asyncio.Event)
    may_end: asyncio.Event = field(default_factory=asyncio.Event)


@asynccontextmanager
async def waiter() -> AsyncIterator[Waiter]:
    """The waiter, served with a heartbeat of 10 ms."""

    @tool
    async def wait() -> str:
        """Wait."""
        made.calls += 1
        made.has_started.set()
        await made.may_end.wait()
        return "done"

    executor = CrewExecutor(Agent("waiter", model=ScriptedProvider(call("wait"), "Done."), tools=[wait]))

    async with served(executor, heartbeat_seconds=0.01) as url, gateway(url) as (proxy, address), asyncio.timeout(60):
        made = Waiter(proxy, address)
        yield made


async def until(condition: object) -> None:
    """Wait until a function returns True."""
    while not condition():  # type: ignore[operator]
        await asyncio.sleep(0.01)


async def test_a_stream_reconnects_after_a_long_silence() -> None:
    """The time to reconnect begins with the cut: a run may be silent for longer, with heartbeats only."""
    async with waiter() as crew, CrewClient(crew.url, SECRET, reconnect_seconds=0.2) as client:
        run = asyncio.create_task(client.execute("Work."))
        await crew.has_started.wait()
        await asyncio.sleep(0.3)  # longer than reconnect_seconds
        connections = crew.gateway.accepted
        crew.gateway.cut()
        await until(lambda: run.done() or crew.gateway.accepted > connections)
        crew.may_end.set()
        assert (await run).output == "Done."


@pytest.mark.parametrize("status", [502, 503, 504])
async def test_a_proxy_that_does_not_reach_the_service_is_an_outage(status: int) -> None:
    """While the service starts again, its proxy answers itself: the client waits, and the run is executed once."""
    async with waiter() as crew, CrewClient(crew.url, SECRET) as client:

        async def fail_twice() -> None:
            crew.gateway.status, before = status, crew.gateway.refused
            crew.gateway.cut()
            await until(lambda: run.done() or crew.gateway.refused >= before + 2)
            crew.gateway.status = None

        crew.gateway.status = status
        run = asyncio.create_task(client.execute("Work."))
        await fail_twice()  # the request that starts the run
        await crew.has_started.wait()
        await fail_twice()  # the stream of its events
        crew.may_end.set()
        assert ((await run).output, crew.calls) == ("Done.", 1)
        run = asyncio.create_task(client.run((await run).run_id))
        await fail_twice()  # a plain request
        assert (await run).status == "completed"


async def test_a_proxy_that_never_reaches_the_service_is_an_error() -> None:
    """The time to reconnect is limited; the error has the status of the proxy."""
    async with waiter() as crew, CrewClient(crew.url, SECRET, reconnect_seconds=0.2) as client:
        crew.gateway.status = 502

        with pytest.raises(ServiceError, match=r"a proxy answered with status 502\. Is it running") as failed:
            await client.execute("Work.")

        assert failed.value.status == 502
        assert crew.gateway.refused > 1


@asynccontextmanager
async def answering(headers: str, body: str = "") -> AsyncIterator[tuple[str, list[str]]]:
    """The address of a server that answers every request with 200 and closes the connection, and the requests."""
    requests: list[str] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append((await reader.readuntil(b"\r\n\r\n")).decode())
        writer.write(f"HTTP/1.1 200 OK\r\nconnection: close\r\n{headers}\r\n\r\n{body}".encode())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)

    async with server, asyncio.timeout(60):
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", requests


async def test_streams_without_a_line_are_an_outage() -> None:
    """The headers of a stream are no sign of life: a proxy that closes each stream at once is given up."""
    async with (
        answering("content-type: text/event-stream") as (url, requests),
        CrewClient(url, SECRET, reconnect_seconds=0.3) as client,
    ):
        with pytest.raises(ServiceError, match="the connection was closed"):
            await client.execute("Hi")

        assert len(requests) > 1


@pytest.mark.parametrize("headers", ["content-type: text/html; charset=utf-8", "x-proxy: 1"])
async def test_a_page_instead_of_a_stream_is_an_error(headers: str) -> None:
    """A proxy in maintenance, or the address of another server: to connect again would not help."""
    async with answering(headers, "<html>Maintenance</html>\n\n") as (url, requests), CrewClient(url, SECRET) as client:
        with pytest.raises(ServiceError, match="instead of text/event-stream"):
            await client.execute("Hi")

        assert len(requests) == 1


async def test_a_token_is_used_without_its_line_end() -> None:
    """As the file of a secret has one."""
    async with answering("content-type: text/html") as (url, requests), CrewClient(url, f" {SECRET}\r\n") as client:
        with pytest.raises(ServiceError):
            await client.execute("Hi")

        assert f"Authorization: Bearer {SECRET}\r\n" in requests[0]


@pytest.mark.parametrize("token", ["", " \n", "my-secret\nother", "my-secret-ü", "my-secret\0"])
def test_a_token_that_is_no_header_is_refused_and_not_shown(token: str) -> None:
    """The HTTP library would print the whole header at the first request."""
    with pytest.raises(DefinitionError, match="token must be printable ASCII") as refused:
        CrewClient("http://127.0.0.1:9", token)

    assert "my-secret" not in str(refused.value)


async def test_texts_may_hold_every_kind_of_line_separator() -> None:
    """Server-sent events have lines that end with a line feed; other separators are part of the text."""
    text = "one\u2028two\x85three\u2029four\x0bfive\x1csix\rseven"

    async with (
        served(CrewExecutor(Agent("clerk", model=ScriptedProvider(text)))) as url,
        CrewClient(url, SECRET) as client,
    ):
        assert (await client.execute("one\u2028two")).output == text


async def test_answers_that_came_too_late_are_refused(client: CrewClient) -> None:
    """Somebody else answered first: the answers of this client were not used, and it is not told otherwise."""
    paused = await client.execute("Refund me.")
    late = await client.resume_stream(paused.run_id, {paused.pauses[0].id: True})
    await client.resume(paused.run_id, {paused.pauses[0].id: False})

    with pytest.raises(UnknownRun):
        await late.drain()
