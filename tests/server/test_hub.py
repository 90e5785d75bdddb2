"""The hub drives runs; readers never delay them, and what a slow reader costs is bounded."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

from crew import Agent, Context, CrewExecutor, ScriptedProvider, call, tool
from crew.errors import RunActive, RunError, RunExists
from crew.interfaces import Delta, ModelReply, ModelRequest, OnDelta
from crew.runs.events import Asked, TextDelta, ToolProgress
from crew.runs.interfaces import StoredEvent
from crew.runs.leases import Lease, LeaseHolder
from crew.runs.state import pending_pauses
from crew.server import ServerSettings
from crew.server.application import create_context
from crew.server.follow import ENDED, Followed, Heartbeat, RunStopped
from crew.server.hub import RunHub, Subscription
from crew.server.sse import EventResponse, encode_all
from crew.store import MemoryStore, SQLiteStore
from crew.store.sqlite_leases import SQLiteLeases
from tests.support.http_service import client_of


def delta(number: int, run_id: str = "r") -> TextDelta:
    return TextDelta(run_id=run_id, sequence=number, text=f"{number} ")


def asked(run_id: str = "r") -> Asked:
    return Asked(run_id=run_id, provider="p", model="m", messages=1, tokens_estimated=1)


def test_a_reader_that_does_not_read_has_a_bounded_buffer() -> None:
    """It loses the rest of the reply under way, not a piece in its middle, and gets the next reply whole."""
    reader = Subscription(limit=10)

    for number in range(1_000):
        reader.publish(delta(number))
        assert len(reader._buffer) <= 10

    assert list(reader.take()) == []
    reader.publish(delta(1_000))
    assert list(reader.take()) == [], "a piece without the ones before it is useless"
    reader.publish(asked())
    reader.publish(delta(1_001))
    assert list(reader.take()) == [delta(1_001)]


def test_only_the_replies_that_were_lost_are_incomplete() -> None:
    """A branch whose pieces all arrived goes on."""
    reader = Subscription(limit=2)

    for number in range(3):
        reader.publish(delta(number, "r/slow"))

    reader.publish(delta(3, "r/other"))
    assert [event.run_id for event in reader.take()] == ["r/other"]


class Typewriter:
    """A model that waits at each character until the test lets it go on."""

    name, model, profile = "typewriter", "typewriter", "strictest"

    def __init__(self, text: str) -> None:
        self.text, self.go, self.written = text, asyncio.Semaphore(0), asyncio.Semaphore(0)

    async def complete(self, request: ModelRequest, on_delta: OnDelta | None = None) -> ModelReply:
        assert on_delta is not None, "the hub always streams"

        for character in self.text:
            await self.go.acquire()
            on_delta(Delta(text=character))
            self.written.release()

        return ModelReply(text=self.text)


async def read(items: Any, kind: str, count: int) -> list[Any]:
    """Read until so many events of a kind have arrived."""
    found: list[Any] = []

    async with asyncio.timeout(30):
        async for item in items:
            event = item.event if isinstance(item, StoredEvent) else item

            if getattr(event, "kind", "") == kind:
                found.append(event)

            if len(found) == count:
                break

    return found


async def test_a_new_reader_gets_the_whole_text_of_the_reply_under_way() -> None:
    """One that reconnects is asked to drop its part first: no piece is missing and none is there twice."""
    model = Typewriter("abcdef")
    context = create_context(CrewExecutor(Agent("a", model=model)), ServerSettings(insecure_no_token=True))
    stream = context.executors["a"].execute_stream("Hi", run_id="r")
    await context.hub.start("r", stream)

    for _ in range(3):
        model.go.release()
        await model.written.acquire()

    async with asyncio.timeout(30):
        while True:  # the hub may get the last piece a little later than the model has written it
            [first] = await read(context.follow("r"), "text_delta", 1)

            if first.text == "abc":
                break

            assert "abc".startswith(first.text)
            await asyncio.sleep(0.01)  # a read from memory alone would not let the hub continue

    assert first.channel == "text"
    restart, again = await read(context.follow("r", reconnects=True), "text_delta", 2)
    assert (restart.channel, again.text) == ("restart", "abc")

    for _ in range(3):
        model.go.release()

    late: list[Followed] = [item async for item in context.follow("r")]
    assert isinstance(late[-1], RunStopped)
    await context.hub.aclose()


async def test_a_new_reader_gets_the_newest_progress_of_running_calls() -> None:
    """It need not wait for the next report; that of a call that returned is gone."""
    reported, resume = asyncio.Event(), asyncio.Event()

    @tool(effect="read")
    async def copy(context: Context[Any], number: int) -> str:
        """Copy files."""
        context.emit({"progress": 1, "total": 3})
        context.emit({"progress": 2, "total": 3})

        if number:
            reported.set()
            await resume.wait()

        return "Copied."

    script = ScriptedProvider(call("copy", number=0), call("copy", number=1), "Done.")
    executor, hub = CrewExecutor(Agent("a", model=script, tools=[copy])), RunHub()
    await hub.start("r", executor.execute_stream("Go.", run_id="r"))
    await asyncio.wait_for(reported.wait(), 10)

    with hub.subscribe("r") as reader:
        [newest] = reader.take()
        assert isinstance(newest, ToolProgress)
        assert (newest.data, newest.key) == ({"progress": 2, "total": 3}, "r:3.0")
        resume.set()

    await hub.wait_until_released("r", 10)
    assert not hub.drives("r")


async def test_errors_before_the_first_event_are_raised_and_later_ones_are_events() -> None:
    """The failure of the first run is stored; the second one does not start."""
    executor = CrewExecutor(Agent("a", model=ScriptedProvider()))
    hub = RunHub()

    await hub.start("r", executor.execute_stream("Hi", run_id="r"))

    async with asyncio.timeout(30):
        while hub.drives("r"):
            await asyncio.sleep(0)

    with pytest.raises(RunExists):
        await hub.start("r", executor.execute_stream("Hi", run_id="r"))

    assert hub.active_runs == 0


async def test_a_run_that_fails_before_its_first_commit_is_an_error() -> None:
    """The lease of a run can't be read, for example: nothing was resumed, and the caller is told so."""

    class Leases(SQLiteLeases):
        async def acquire(self, lease: Lease, replaces: LeaseHolder | None = None) -> LeaseHolder | None:
            raise ValueError("no lease")

    store = SQLiteStore(":memory:")
    agent = Agent("a", model=ScriptedProvider("Which?", "Done."), wait_for_signal=True)
    executor = CrewExecutor(agent, store=store)
    await executor.execute("Hi", run_id="r")
    store.leases().__class__ = Leases

    with pytest.raises(RunError, match="no lease"):
        await RunHub().start("r", executor.resume_stream("r"))

    await executor.aclose()
    store.close()


async def test_a_run_is_driven_once() -> None:
    """A second start of the same id is refused while the first one is under way; aclose leaves it resumable."""
    gate = asyncio.Event()

    @tool(effect="read")
    async def wait() -> str:
        """Wait."""
        await gate.wait()
        return "done"

    executor = CrewExecutor(Agent("a", model=ScriptedProvider(call("wait"), "Done."), tools=[wait]))
    hub = RunHub()
    await hub.start("r", executor.execute_stream("Hi", run_id="r"), token="t")
    assert (hub.drives("r"), hub.runs_of("t"), hub.active_runs) == (True, 1, 1)

    with pytest.raises(RunActive):
        await hub.start("r", executor.resume_stream("r"))

    await hub.aclose()
    assert (hub.drives("r"), hub.runs_of("t")) == (False, 0)
    gate.set()
    assert (await executor.resume("r")).output == "Done."


async def test_a_reader_that_leaves_does_not_touch_the_run() -> None:
    """Hundreds of readers come and go; the run ends as if there were none."""
    executor = CrewExecutor(Agent("a", model=ScriptedProvider("Hello.")))
    context = create_context(executor, ServerSettings(insecure_no_token=True))
    events: list[Followed] = []
    await context.hub.start("r", executor.execute_stream("Hi", run_id="r"))

    for _ in range(200):
        async with aclosing(context.follow("r")) as items:
            events.append(await anext(items))

    assert context.hub.readers == 0
    assert not context.tails._tails
    async with asyncio.timeout(30):
        rest = [item async for item in context.follow("r")]

    assert rest[-1] == RunStopped(run_id="r", status="completed")


async def test_an_idle_stream_has_heartbeats() -> None:
    """A proxy does not take it for dead; `follow` waits for a paused run to be resumed."""

    @tool(approval=True)
    def pay() -> str:
        """Pay."""
        return "paid"

    executor = CrewExecutor(Agent("a", model=ScriptedProvider(call("pay"), "Done."), tools=[pay]))
    settings = ServerSettings(insecure_no_token=True, heartbeat_seconds=0.02)
    context = create_context(executor, settings)
    await context.hub.start("r", executor.execute_stream("Hi", run_id="r"))

    async with asyncio.timeout(30), aclosing(context.follow("r", until=ENDED)) as items:
        beats = 0

        while beats < 3:
            beats += isinstance(await anext(items), Heartbeat)

        [pause] = pending_pauses((await context.reader.run("r")).state)
        await context.hub.start("r", executor.resume_stream("r", {pause.id: True}))
        rest = [item async for item in items]
        assert rest[-1] == RunStopped(run_id="r", status="completed")


async def test_a_client_that_takes_nothing_is_disconnected() -> None:
    """The response ends, and its reader is gone: nothing is kept for the client."""
    executor = CrewExecutor(Agent("a", model=ScriptedProvider("Hello.")))
    context = create_context(executor, ServerSettings(insecure_no_token=True))
    await executor.execute("Hi", run_id="r")
    response = EventResponse(encode_all(context.follow_batches("r")), send_seconds=0.05)
    never = asyncio.Event()

    async def receive() -> dict[str, object]:
        await never.wait()
        return {"type": "http.disconnect"}

    async def send(message: object) -> None:
        if message["type"] == "http.response.body":  # type: ignore[index]
            await never.wait()

    async with asyncio.timeout(30):
        scope = {"type": "http", "asgi": {"spec_version": "2.3"}, "method": "GET", "path": "/", "headers": []}
        await response(scope, receive, send)

    assert context.hub.readers == 0


async def test_a_run_in_memory_stays_while_it_is_read() -> None:
    """More runs end than the store keeps, before a slow reader goes on; the run leaves some time after its end."""
    store = MemoryStore(max_finished=1)
    executor = CrewExecutor(Agent("a", model=ScriptedProvider("Hello.")), store=store)
    hub = RunHub(hold=store.hold, held_seconds=0)
    context = replace(create_context(executor, ServerSettings(insecure_no_token=True)), hub=hub)
    await hub.start("r", executor.execute_stream("Hi", run_id="r"))

    async with asyncio.timeout(20), aclosing(context.follow("r")) as items:
        found = [await anext(items)]
        await hub.wait_until_released("r", 10)

        for run_id in ("one", "two"):
            await executor.execute("Hi", run_id=run_id)

        found += [item async for item in items]

    assert found[-1] == RunStopped(run_id="r", status="completed")
    await executor.execute("Hi", run_id="three")
    assert [info.run_id for info in (await store.runs()).runs] == ["three"]


async def test_a_client_reads_the_result_of_its_run_from_memory() -> None:
    """All runs of a burst end before their clients ask, and the store keeps one of them for later."""
    executor = CrewExecutor(Agent("a", model=ScriptedProvider("Hello.")), store=MemoryStore(max_finished=1))

    async with client_of(executor) as client:
        body = {"model": "a", "messages": [{"role": "user", "content": "Hi"}]}
        answers = await asyncio.gather(*(client.post("/v1/chat/completions", json=body) for _ in range(20)))
        assert {answer.status_code for answer in answers} == {200}
        started = await asyncio.gather(*(client.post("/runs?stream=1", json={"input": "Hi"}) for _ in range(20)))
        read = await asyncio.gather(*(client.get(answer.headers["location"]) for answer in started))
        assert {answer.json()["output"] for answer in read} == {"Hello."}
