"""Invariant 9: a run can be cancelled at any moment and leaves nothing but a state that can be resumed."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from crew import CrewExecutor, call, tool
from crew.errors import UnknownRun
from crew.message_rules import validate
from crew.messages import AssistantMessage
from crew.runs import Event, Finished, RunState
from crew.runs.events import Asked
from crew.tools import Tool
from tests.support.providers import RecordingProvider
from tests.support.runs import executor_for
from tests.support.stores import JsonStore
from tests.support.tools import look

LINES = [[call("look", n=1), call("look", n=2)], call("look", n=3), "the answer"]


class SteppedLoop:
    """An event loop that advances one turn at a time, so that a test can cancel at every await point."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.troubles: list[dict[str, Any]] = []
        self.loop.set_exception_handler(lambda _, context: self.troubles.append(context))

    def step(self) -> None:
        self.loop.call_soon(self.loop.stop)
        self.loop.run_forever()

    def run(
        self, coroutine: Coroutine[Any, Any, Any], interrupt: Callable[[asyncio.Task[Any]], None], after: int
    ) -> Any:
        """Start, advance by `after` turns, interrupt, run to the end; None if the task had ended before."""
        task = self.loop.create_task(coroutine)

        for _ in range(after):
            self.step()

        if task.done():
            return None

        interrupt(task)
        self.loop.run_until_complete(asyncio.wait([task]))
        return task

    def close(self) -> None:
        self.step()
        assert asyncio.all_tasks(self.loop) == set()
        assert self.troubles == []
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()


def fresh() -> tuple[CrewExecutor, RecordingProvider, JsonStore]:
    provider, store = RecordingProvider(*LINES), JsonStore()
    return executor_for(provider, look, store=store, max_messages_per_request=5), provider, store


def check_resumes(stepped: SteppedLoop, store: JsonStore) -> None:
    """A new executor resumes the newest commit and returns the right answer."""
    provider = RecordingProvider(*LINES)
    executor = executor_for(provider, look, store=store, max_messages_per_request=5)
    continuation = executor.resume("r") if store.snapshots else executor.execute("the goal", run_id="r")
    result = stepped.loop.run_until_complete(continuation)
    assert result.output == "the answer"
    assert len(result.transcript) == 6
    assert all(validate(shown) == [] for shown in provider.shown)


@pytest.mark.parametrize("way", ["execute", "stream", "async for"])
def test_caller_cancelled_at_every_await_point(way: str, caplog: pytest.LogCaptureFixture) -> None:
    """No task is left, nothing is logged, the state is committed, and the run can be resumed."""

    async def work(executor: CrewExecutor) -> str:
        if way == "execute":
            return str((await executor.execute("the goal", run_id="r")).output)

        if way == "stream":
            async with executor.execute_stream("the goal", run_id="r") as events:
                async for _ in events:
                    pass
        else:
            events = executor.execute_stream("the goal", run_id="r")

            async for _ in events:
                pass

        return str(events.result.output)

    points = 0

    while True:
        stepped = SteppedLoop()
        executor, _, store = fresh()
        task = stepped.run(work(executor), lambda task: task.cancel(), points)

        if task is None:
            stepped.close()
            break

        assert task.cancelled() or task.result() == "the answer"
        stepped.step()
        assert asyncio.all_tasks(stepped.loop) == set(), f"after {points} turns"
        assert len(store.states) == len(store.snapshots)
        check_resumes(stepped, store)
        stepped.close()
        points += 1

    assert points > 20
    assert [r for r in caplog.records if r.levelno >= logging.ERROR] == []


def test_caller_cancelled_twice_at_every_await_point() -> None:
    """A second cancellation, while the run is being stopped, leaves no task behind."""
    points = 0

    while True:
        stepped = SteppedLoop()
        executor, _, store = fresh()

        def twice(task: asyncio.Task[Any], stepped: SteppedLoop = stepped, points: int = points) -> None:
            task.cancel()

            for _ in range(points % 3 + 1):
                stepped.step()

            task.cancel()

        task = stepped.run(executor.execute("the goal", run_id="r"), twice, points // 3)

        if task is None:
            stepped.close()
            break

        assert asyncio.all_tasks(stepped.loop) == set(), f"after {points} turns"
        assert task.cancelled() or task.result().output == "the answer"
        check_resumes(stepped, store)
        stepped.close()
        points += 1

    assert points > 60


def test_resume_cancelled_at_every_await_point() -> None:
    """An answer is consumed completely or not at all, and no write is repeated."""
    outcomes = set()
    points = 0

    while True:
        stepped, store, sent = SteppedLoop(), JsonStore(), list[int]()

        @tool(approval="always", effect="read")
        async def send(n: int, sent: list[int] = sent) -> str:
            """Send."""
            sent.append(n)
            return "sent"

        def executor(store: JsonStore = store, send: Tool = send) -> CrewExecutor:
            return executor_for(RecordingProvider(call("send", n=1), "the answer"), send, store=store)

        paused = stepped.loop.run_until_complete(executor().execute("go", run_id="r"))
        answers = {paused.pauses[0].id: True}
        task = stepped.run(executor().resume("r", answers), lambda task: task.cancel(), points)

        if task is None:
            stepped.close()
            break

        again = stepped.loop.run_until_complete(executor().resume("r"))
        outcomes.add(again.stop_reason)

        if again.stop_reason == "paused":
            assert sent == []
            again = stepped.loop.run_until_complete(executor().resume("r", answers))

        assert again.output == "the answer"
        assert len(sent) in (1, 2)  # a read that was cut off is made again
        stepped.close()
        points += 1

    assert outcomes == {"paused", "completed"}


def test_executor_cancel_at_every_await_point() -> None:
    """`executor.cancel`: the run returns "cancelled" with a valid history, and is finished in the store."""
    points = 0
    outcomes = set()

    while True:
        stepped = SteppedLoop()
        executor, _, store = fresh()
        ending: list[asyncio.Task[None]] = []

        def end(task: asyncio.Task[Any], executor: CrewExecutor = executor, into: Any = ending) -> None:
            into.append(task.get_loop().create_task(executor.cancel("r")))

        task = stepped.run(executor.execute("the goal", run_id="r"), end, points)

        if task is None:
            stepped.close()
            break

        cancel = ending[0]
        stepped.loop.run_until_complete(asyncio.wait([cancel]))
        result = task.result()
        outcomes.add(result.stop_reason)

        if cancel.exception() is not None:
            # The run had not started, or had ended, and so was not cancelled.
            assert isinstance(cancel.exception(), UnknownRun)
            assert result.stop_reason == "completed"
        elif result.stop_reason == "cancelled":
            assert isinstance(store.newest.next, Finished)

        if result.history:
            last = result.history[-1]
            ended = result.history[:-1] if isinstance(last, AssistantMessage) and not last.calls else result.history
            assert validate(ended) == []

        stepped.close()
        points += 1

    assert outcomes == {"completed", "cancelled"}
    assert points > 20


async def test_open_calls_of_a_cancelled_run_get_results() -> None:
    """The history of a cancelled run can be passed to the next run."""
    started = asyncio.Event()

    async def wait() -> str:
        """Wait for ever."""
        started.set()
        await asyncio.Event().wait()
        return ""

    provider = RecordingProvider([call("wait"), call("look", n=1)], "never")
    executor = executor_for(provider, wait, look)
    running = asyncio.ensure_future(executor.execute("the goal", run_id="r"))
    await started.wait()
    await executor.cancel("r")
    result = await running
    assert result.stop_reason == "cancelled"
    texts = [r.text for r in result.history[-1].results]  # type: ignore[union-attr]
    assert texts[0].startswith("[Stopped while it ran: the run was cancelled. It is not known whether it took effect")
    assert validate(result.history) == []

    with pytest.raises(UnknownRun):
        await executor.resume("r")

    next_one = executor_for(RecordingProvider(lambda request: "went on"), look)
    assert (await next_one.execute("and now?", history=result.history)).output == "went on"


async def test_paused_run_can_be_cancelled_once() -> None:
    """`cancel` finishes a paused run without answers; a second `cancel` is refused."""

    @tool(approval="always")
    def send() -> str:
        """Send."""
        return "sent"

    executor = executor_for(RecordingProvider(call("send"), "never"), send)
    paused = await executor.execute("go")
    await executor.cancel(paused.run_id)

    with pytest.raises(UnknownRun):
        await executor.cancel(paused.run_id)


class GatedStore(JsonStore):
    """The commit of the first event of one kind waits until `gate` is set."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.reached, self.gate = kind, asyncio.Event(), asyncio.Event()

    async def commit(self, run_id: str, version: int, events: Sequence[Event], state: RunState) -> None:
        if any(event.kind == self.kind for event in events):
            self.reached.set()
            await self.gate.wait()

        await super().commit(run_id, version, events, state)


async def test_a_result_that_waits_for_another_commit_is_not_lost() -> None:
    """A run is cancelled while one result is stored and the next one waits: both calls are known to have ended."""

    @tool(effect="write")
    async def pay(n: int) -> str:
        """Pay."""
        return f"paid {n}"

    store = GatedStore("tool_returned")
    executor = executor_for(RecordingProvider([call("pay", n=1), call("pay", n=2)], "never"), pay, store=store)
    running = asyncio.ensure_future(executor.execute("go", run_id="r"))
    await store.reached.wait()

    for _ in range(20):  # the other call has returned, and waits
        await asyncio.sleep(0)

    cancelling = asyncio.ensure_future(executor.cancel("r"))
    await asyncio.sleep(0)
    store.gate.set()
    await cancelling
    result = await running
    assert (result.stop_reason, result.in_doubt) == ("cancelled", ())
    assert [one.text for one in result.history[-1].results] == ["paid 1", "paid 2"]  # type: ignore[union-attr]


async def test_a_run_that_is_cancelled_twice_returns_once_as_cancelled() -> None:
    """A second `cancel` waits for the first one; it does not interrupt the run while its end is stored."""
    store = GatedStore("cancelled")
    started = asyncio.Event()

    async def wait() -> str:
        """Wait for ever."""
        started.set()
        await asyncio.Event().wait()
        return ""

    executor = executor_for(RecordingProvider(call("wait"), "never"), wait, store=store)
    running = asyncio.ensure_future(executor.execute("go", run_id="r"))
    await started.wait()
    first = asyncio.ensure_future(executor.cancel("r"))
    await store.reached.wait()
    second = asyncio.ensure_future(executor.cancel("r"))
    await asyncio.sleep(0)
    store.gate.set()
    await asyncio.gather(first, second)
    assert (await running).stop_reason == "cancelled"


async def test_tool_can_cancel_its_run() -> None:
    """Cancelling from inside a tool has the same result."""
    executor: CrewExecutor

    async def stop() -> str:
        """Stop it all."""
        await executor.cancel("r")
        return "not reached"

    executor = executor_for(RecordingProvider(call("stop"), "never"), stop)
    assert (await executor.execute("go", run_id="r")).stop_reason == "cancelled"


@pytest.mark.parametrize("entered", [True, False])
async def test_break_out_of_a_stream_cancels_the_run(entered: bool, caplog: pytest.LogCaptureFixture) -> None:
    """The run is cancelled, its state is committed, no task is left and no error is logged."""
    troubles: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: troubles.append(context))
    before = asyncio.all_tasks()
    executor, _, _ = fresh()

    if entered:
        async with executor.execute_stream("the goal", run_id="r") as events:
            async for _ in events:
                break
    else:
        async for _ in executor.execute_stream("the goal", run_id="r"):
            break

        for _ in range(20):
            await asyncio.sleep(0)

    assert asyncio.all_tasks() == before
    assert (await executor.resume("r")).output == "the answer"
    assert troubles == []
    assert [r for r in caplog.records if r.levelno >= logging.ERROR] == []


async def test_break_out_of_a_failed_stream_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """An error that the caller did not await is not logged as "never retrieved"."""
    troubles: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: troubles.append(context))
    executor = executor_for(RecordingProvider(ValueError("broken")))

    async def leave() -> None:
        async with executor.execute_stream("go") as events:
            async for event in events:
                if isinstance(event, Asked):
                    # The run has failed by now, and its error is never retrieved.
                    for _ in range(20):
                        await asyncio.sleep(0)

                    break

    await leave()

    for _ in range(20):
        await asyncio.sleep(0)

    gc.collect()
    assert troubles == []
    # The failure may be logged, but not as an exception that was never retrieved.
    assert [r for r in caplog.records if r.levelno >= logging.ERROR and not r.message.startswith("run.failed")] == []


async def test_closing_the_executor_stops_its_runs() -> None:
    """`aclose`, or the end of `async with`, stops active runs; they can be resumed."""
    started = asyncio.Event()
    store = JsonStore()

    async def slow(n: int = 0) -> str:
        """Wait."""
        started.set()
        await asyncio.Event().wait()
        return ""

    read = tool(effect="read")(slow)

    async with executor_for(RecordingProvider(call("slow"), "done"), read, store=store) as executor:
        running = asyncio.ensure_future(executor.execute("go", run_id="r"))
        await started.wait()

    with pytest.raises(asyncio.CancelledError):
        await running

    @tool(name="slow", effect="read")
    def quick(n: int = 0) -> str:
        """Do not wait."""
        return "quick"

    assert (
        await executor_for(RecordingProvider(call("slow"), "done"), quick, store=store).resume("r")
    ).output == "done"
