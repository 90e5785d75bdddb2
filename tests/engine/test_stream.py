"""One loop: `execute` is `execute_stream` read to its end."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from crew import Agent, Context, CrewError, CrewExecutor, RunError, ScriptedProvider, call, tool
from crew.errors import UnknownRun
from crew.runs import Event
from crew.runs.events import RunFailed, RunFinished, TextDelta, ToolProgress
from crew.store import SQLiteStore
from tests.support.clocks import TickingClock
from tests.support.providers import RecordingProvider
from tests.support.runs import collect, executor_for
from tests.support.stores import SlowStore
from tests.support.tools import look

LINES = [[call("look", n=n) for n in range(3)], call("nowhere"), "first line\nsecond line\nthird line"]


async def test_execute_equals_the_stream_read_to_its_end() -> None:
    """Output, history, transcript and usage are equal, including message ids."""
    one = await executor_for(RecordingProvider(*LINES), look, max_messages_per_request=6).execute("go", run_id="r")
    executor = executor_for(RecordingProvider(*LINES), look, max_messages_per_request=6)
    events, other = await collect(executor.execute_stream("go", run_id="r"))
    assert one.output == other.output
    assert one.history == other.history
    assert one.transcript == other.transcript
    assert one.usage == other.usage
    assert one.metrics == other.metrics
    assert [e.text for e in events if isinstance(e, TextDelta)] == ["first line\n", "second line\n", "third line"]


async def test_plain_async_for_reads_the_whole_run() -> None:
    """Without `async with` the events are the same; a second iteration is empty."""
    stream = executor_for(RecordingProvider(*LINES), look).execute_stream("go")

    with pytest.raises(CrewError, match="not read to its end"):
        _ = stream.result

    events = [event async for event in stream]
    assert isinstance(events[-1], RunFinished)
    assert stream.result.output.startswith("first line")
    assert [event async for event in stream] == []


async def test_iteration_can_continue_inside_async_with() -> None:
    """A `break` inside `async with` does not end the stream."""
    async with executor_for(RecordingProvider(*LINES), look).execute_stream("go") as stream:
        first = await anext(aiter(stream))
        rest = [event async for event in stream]

    assert first.sequence == 1
    assert [e.sequence for e in rest] == list(range(2, len(rest) + 2))
    assert stream.result.stop_reason == "completed"


async def test_events_hold_run_agent_sequence_and_time() -> None:
    """Sequence numbers increase by one, and times never decrease."""
    executor = executor_for(RecordingProvider(*LINES), look, clock=TickingClock())
    events, _ = await collect(executor.execute_stream("go", run_id="r"))
    assert {e.run_id for e in events} == {"r"}
    assert {e.agent for e in events} == {"solo"}
    assert [e.sequence for e in events] == list(range(1, len(events) + 1))
    assert [e.at for e in events] == sorted(e.at for e in events)


async def test_failure_is_the_last_event_and_is_raised() -> None:
    """The stream emits it, then raises an error that holds the result so far; `result` raises it too."""
    seen: list[Event] = []
    broken = RecordingProvider(call("look", n=1), ValueError("broken"))
    stream = executor_for(broken, look, observers=[seen.append]).execute_stream("go")

    with pytest.raises(RunError, match="broken") as caught:
        _ = [event async for event in stream]

    assert isinstance(seen[-1], RunFailed)
    assert caught.value.result.stop_reason == "failed"
    assert len(caught.value.result.transcript) == 3

    with pytest.raises(RunError):
        _ = stream.result


async def test_events_emitted_during_a_commit_keep_their_order() -> None:
    """Sequence numbers stay unique and ordered, and every event is stored."""

    @tool
    async def chatty(n: int, context: Context[Any]) -> str:
        """Talk all the time, and fail now and then."""
        for step in range(5 + 15 * n):
            context.emit(step)
            await asyncio.sleep(0)

        raise OSError("again")

    chatty = tool(retries=1)(chatty.function)
    store = SlowStore()
    provider = RecordingProvider([call("chatty", n=n) for n in range(4)], "done")
    executor = executor_for(provider, chatty, store=store)
    events, _ = await collect(executor.execute_stream("go", run_id="r"))
    assert [e.sequence for e in events] == list(range(1, len(events) + 1))
    kept = [e for e in events if not isinstance(e, TextDelta | ToolProgress)]
    assert store.events == kept
    assert len([e for e in events if isinstance(e, ToolProgress)]) == 2 * (5 + 20 + 35 + 50)


async def test_unread_stream_never_runs() -> None:
    """The run starts with the first read."""
    provider = RecordingProvider("hi")
    executor_for(provider).execute_stream("go")
    await asyncio.sleep(0)
    assert provider.requests == []


async def test_stream_knows_its_run_before_it_starts() -> None:
    """The id can be shown or stored before the first event."""
    executor = CrewExecutor(Agent("a", model=ScriptedProvider("Hi", "Hi")))
    stream = executor.execute_stream("Go")
    given = executor.execute_stream("Go", run_id="mine")
    assert given.run_id == "mine"
    assert stream.run_id
    assert {event.run_id async for event in stream} == {stream.run_id}
    assert stream.result.run_id == stream.run_id


@pytest.mark.parametrize("when", ["at once", "in a tool", "at its end"])
async def test_cancelled_stream_ends_with_a_result(when: str) -> None:
    """The rest of the events can be read, and the run is cancelled for good, unlike one whose stream is left."""

    @tool
    async def wait() -> str:
        """Wait."""
        await asyncio.sleep(0 if when == "at its end" else 60)
        return "done"

    executor = CrewExecutor(Agent("a", model=ScriptedProvider(call("wait"), "Hi"), tools=[wait]))
    kinds = []

    async with executor.execute_stream("Go") as events:
        if when == "at once":
            await events.cancel()

        async for event in events:
            kinds.append(event.kind)

            if when == "in a tool" and event.kind == "tools_started":
                await events.cancel()

        await events.cancel()

    wanted = "completed" if when == "at its end" else "cancelled"
    assert events.result.stop_reason == wanted
    assert kinds[-1] == "run_finished"

    with pytest.raises(UnknownRun):
        await executor.resume(events.run_id)


async def test_stream_that_is_cancelled_before_it_is_read_has_a_result() -> None:
    """The run is recorded as cancelled."""
    executor = CrewExecutor(Agent("a", model=ScriptedProvider("Hi")))
    stream = executor.execute_stream("Go")
    await stream.cancel()
    assert stream.result.stop_reason in ("cancelled", "completed")
    resumed = executor.resume_stream("unknown")

    with pytest.raises(UnknownRun):
        async for _ in resumed:
            pass

    assert resumed.run_id == "unknown"


@pytest.mark.parametrize("when", ["before it is read", "after it has ended", "after the pause of a new run"])
async def test_cancelled_stream_of_a_paused_run_cancels_it(when: str, tmp_path: Path) -> None:
    """As `executor.cancel` does; answers that were passed to a stream that has not begun are not applied."""
    paid: list[str] = []

    @tool(approval=True)
    async def pay() -> str:
        """Pay."""
        paid.append("paid")
        return "paid"

    agent = Agent("a", model=ScriptedProvider(call("pay"), "Hi"), tools=[pay])

    async with CrewExecutor(agent, store=tmp_path / "runs.db") as executor:
        stream = executor.execute_stream("Go", run_id="r")
        kinds = [event.kind async for event in stream]

        if when != "after the pause of a new run":
            answers = {stream.result.pauses[0].id: True} if when == "before it is read" else {}
            stream = executor.resume_stream("r", answers)
            kinds = [] if answers else [event.kind async for event in stream]

        assert kinds[-1:] == ([] if when == "before it is read" else ["paused"])
        await stream.cancel()
        await stream.cancel()
        assert (stream.result.stop_reason, stream.result.pauses, paid) == ("cancelled", (), [])

        if when == "before it is read":
            assert [event.kind async for event in stream] == ["cancelled", "run_finished"]

        assert isinstance(executor.store, SQLiteStore)
        assert (await executor.store.run("r")).info.status == "cancelled"


@pytest.mark.parametrize("is_stored", [False, True])
@pytest.mark.parametrize("when", ["resumed to its end", "under way again", "cancelled already", "twice at once"])
async def test_stream_that_ended_with_a_pause_is_cancelled_as_the_run_is_now(
    when: str, is_stored: bool, tmp_path: Path
) -> None:
    """A run that was resumed elsewhere is cancelled there; one that has ended stays as it is, without an error."""
    started = asyncio.Event()

    @tool(approval=True)
    async def pay() -> str:
        """Pay."""
        started.set()
        await asyncio.sleep(60 if when == "under way again" else 0)
        return "paid"

    agent = Agent("a", model=ScriptedProvider(call("pay"), "Hi"), tools=[pay])

    async with CrewExecutor(agent, store=tmp_path / "runs.db" if is_stored else None) as executor:
        stream = executor.execute_stream("Go", run_id="r")
        assert [event.kind async for event in stream][-1] == "paused"
        answers = {stream.result.pauses[0].id: True}

        if when == "resumed to its end":
            await executor.resume("r", answers)
        elif when == "under way again":
            resumed = asyncio.create_task(executor.resume("r", answers))
            await started.wait()
        elif when == "cancelled already":
            await executor.cancel("r")

        await asyncio.gather(*[stream.cancel() for _ in range(2 if when == "twice at once" else 1)])
        wanted = "completed" if when == "resumed to its end" else "cancelled"
        assert (stream.result.stop_reason, stream.result.pauses) == (wanted, ())

        if when == "under way again":
            assert (await resumed).stop_reason == "cancelled"
