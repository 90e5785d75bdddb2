"""Thousands of runs share one event loop: none holds it for long, and runs finish one after the other."""

from __future__ import annotations

import asyncio
import gc
import itertools
import threading
from collections.abc import Sequence

import pytest

from crew import Agent, CrewExecutor, ScriptedProvider, call, tool
from crew.engine.fairness import STEPS_AT_ONCE, Gate, RunOrder
from crew.errors import DefinitionError
from crew.interfaces import ModelReply, ModelRequest, OnDelta
from crew.messages import UserMessage
from crew.runs import Event, RunState
from crew.store import MemoryStore
from crew.telemetry.run_metrics import RunMetrics
from tests.support.tools import look

RUNS = 400


class Together(ScriptedProvider):
    """Answers the first request of all runs at the same time."""

    def __init__(self, *lines: object, runs: int = RUNS) -> None:
        super().__init__(*lines)
        self.asked, self.runs, self.all_asked = 0, runs, asyncio.Event()

    async def complete(self, request: ModelRequest, on_delta: OnDelta | None = None) -> ModelReply:
        self.asked += 1

        if self.asked == self.runs:
            self.all_asked.set()

        await self.all_asked.wait()
        return await super().complete(request, on_delta)


class StepsPerTurn(MemoryStore):
    """Counts the steps in each turn of the event loop."""

    def __init__(self) -> None:
        super().__init__()
        self.steps, self.most, self.total = 0, 0, 0

    def commits_immediately(self) -> bool:
        return True

    async def commit(self, run_id: str, version: int, events: Sequence[Event], state: RunState) -> None:
        self.steps += 1
        self.total += 1
        await super().commit(run_id, version, events, state)

    async def count(self) -> None:
        """Take every turn of the loop."""
        while True:
            self.most, self.steps = max(self.most, self.steps), 0
            await asyncio.sleep(0)


async def test_turn_of_the_loop_performs_64_steps() -> None:
    """Also if hundreds of runs start, and get their replies, in the same turn; other tasks wait no longer."""
    store = StepsPerTurn()
    executor = CrewExecutor(Agent("a", model=Together(call("look", n=1), "Done."), tools=[look]), store=store)
    counting = asyncio.ensure_future(store.count())
    results = await asyncio.gather(*(executor.execute("Go.") for _ in range(RUNS)))
    counting.cancel()
    assert {result.output for result in results} == {"Done."}
    assert store.total == 5 * RUNS
    assert store.most <= STEPS_AT_ONCE


class YieldingStore(MemoryStore):
    """A commit takes a few turns of the event loop, one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = asyncio.Lock()

    async def commit(self, run_id: str, version: int, events: Sequence[Event], state: RunState) -> None:
        async with self.lock:
            await asyncio.sleep(0)
            await super().commit(run_id, version, events, state)


@pytest.mark.parametrize("kind", [MemoryStore, YieldingStore], ids=["memory", "slow store"])
async def test_runs_finish_as_they_go(kind: type[MemoryStore]) -> None:
    """The older run goes first: when half of the runs have ended, about half of all requests have been sent."""
    lines = [call("look", n=n) for n in range(4)]
    asked, sent_at_end = [0], list[int]()

    class Model(ScriptedProvider):
        async def complete(self, request: ModelRequest, on_delta: OnDelta | None = None) -> ModelReply:
            asked[0] += 1
            await asyncio.sleep(0)
            return await super().complete(request, on_delta)

    executor = CrewExecutor(Agent("a", model=Model(*lines, "Done."), tools=[look]), store=kind())

    async def one() -> None:
        await executor.execute("Go.")
        sent_at_end.append(asked[0])

    await asyncio.gather(*(one() for _ in range(RUNS)))
    assert asked[0] == 5 * RUNS
    assert sent_at_end[RUNS // 10] < 0.5 * asked[0]
    assert sent_at_end[RUNS // 2] < 0.8 * asked[0]


async def test_result_of_a_tool_is_kept_if_the_run_is_cancelled_while_it_waits() -> None:
    """A write that returned is not in doubt because the run waited for its turn."""
    returned, go_on = [0], asyncio.Event()

    @tool
    async def pay() -> str:
        """Pay."""
        returned[0] += 1

        if returned[0] == RUNS:
            go_on.set()

        await go_on.wait()
        return "paid"

    executor = CrewExecutor(Agent("a", model=ScriptedProvider(call("pay"), "Done."), tools=[pay]))
    runs = [asyncio.ensure_future(executor.execute("Go.", run_id=f"r{n}")) for n in range(RUNS)]
    await go_on.wait()

    for _ in range(3):  # the tools have returned, and most of their runs wait for a turn
        await asyncio.sleep(0)

    await executor.cancel(f"r{RUNS - 1}")
    last = await runs[-1]
    assert (last.stop_reason, last.in_doubt) == ("cancelled", ())
    assert last.history[-1].results[0].text == "paid"  # type: ignore[union-attr]
    assert {(await run).output for run in runs[:-1]} == {"Done."}


async def test_store_that_hangs_does_not_hold_up_other_executors() -> None:
    """Its runs wait for it; the event loop and other stores do not."""

    class HangingStore(MemoryStore):
        async def commit(self, run_id: str, version: int, events: Sequence[Event], state: RunState) -> None:
            await asyncio.Event().wait()

    agent = Agent("a", model=ScriptedProvider("Done."))
    hanging = CrewExecutor(agent, store=HangingStore())
    stuck = [asyncio.ensure_future(hanging.execute("Go.")) for _ in range(2 * STEPS_AT_ONCE)]
    await asyncio.sleep(0.01)
    assert (await CrewExecutor(agent, store=YieldingStore()).execute("Go.")).output == "Done."
    assert not any(run.done() for run in stuck)

    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()


async def test_measurements_of_a_run_end_with_it() -> None:
    """No cycle keeps them, and the state of the run, until the garbage collector stops the event loop for them."""

    def measurements() -> list[object]:
        # Not isinstance: lazy objects of an SDK would import its modules.
        return [found for found in gc.get_objects() if type(found) is RunMetrics]

    gc.collect()
    gc.disable()

    try:
        before = measurements()  # of runs of other tests; the list keeps them, so that no new one gets their id
        await CrewExecutor(Agent("a", model=ScriptedProvider("Done."))).execute("Go.")
        known = {id(found) for found in before}
        assert not [found for found in measurements() if id(found) not in known]
    finally:
        gc.enable()


async def test_cancelled_wait_takes_no_place() -> None:
    """Neither before the place is given nor just after."""
    gate = Gate()

    for n in range(STEPS_AT_ONCE):
        await gate.enter(RunOrder(n))

    waiting = [asyncio.ensure_future(gate.enter(RunOrder(n))) for n in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    gate.leave()
    await asyncio.sleep(0)  # the place is given to the second
    waiting[1].cancel()
    await asyncio.wait(waiting, timeout=5)
    assert [task.cancelled() for task in waiting] == [True, True, False]


# ------------------------------------------------------------------------------------------ admission


class Watched(ScriptedProvider):
    """Knows which runs are under way."""

    def __init__(self, *lines: object) -> None:
        super().__init__(*lines)
        self.active, self.most, self.order = 0, 0, list[str]()

    async def complete(self, request: ModelRequest, on_delta: OnDelta | None = None) -> ModelReply:
        self.order.append(request.run_id)
        self.active += 1
        self.most = max(self.most, self.active)
        await asyncio.sleep(0.001)
        self.active -= 1
        return await super().complete(request, on_delta)


async def test_runs_beyond_the_maximum_wait_in_the_order_of_their_start() -> None:
    """`max_concurrent_runs` bounds how many are under way."""
    model = Watched("Done.")
    executor = CrewExecutor(Agent("a", model=model), max_concurrent_runs=3)
    names = [f"r{n}" for n in range(20)]
    await asyncio.gather(*(executor.execute("Go.", run_id=name) for name in names))
    assert (model.most, model.order) == (3, names)


@pytest.mark.parametrize("way", ["ask", "ask_sync"])
async def test_run_that_is_started_inside_a_run_does_not_wait(way: str) -> None:
    """The outer one waits for it: with a maximum of one, both would wait forever."""

    async def ask() -> str:
        """Ask."""
        return str((await executor.execute("Help.", run_id="nested")).output)

    def ask_sync() -> str:
        """Ask."""
        return str(executor.execute_sync("Help.", run_id="nested").output)

    def reply(request: ModelRequest) -> object:
        return "Found." if request.run_id == "nested" or request.turn else call(way)

    executor = CrewExecutor(Agent("a", model=ScriptedProvider(reply), tools=[ask, ask_sync]), max_concurrent_runs=1)

    async with asyncio.timeout(30):
        assert (await executor.execute("Go.")).output == "Found."


async def test_cancelled_run_that_waited_has_its_goal_and_frees_its_place() -> None:
    """It was never under way; its result is valid, and the next run gets its turn."""
    go_on = asyncio.Event()

    class Slow(ScriptedProvider):
        async def complete(self, request: ModelRequest, on_delta: OnDelta | None = None) -> ModelReply:
            await go_on.wait()
            return await super().complete(request, on_delta)

    executor = CrewExecutor(Agent("a", model=Slow("Done.")), max_concurrent_runs=1)
    first, second, third = (asyncio.ensure_future(executor.execute("Go.", run_id=f"r{n}")) for n in range(3))
    await asyncio.sleep(0.01)
    await executor.cancel("r1")
    result = await second
    assert (result.stop_reason, [message.text for message in result.history if isinstance(message, UserMessage)]) == (
        "cancelled",
        ["Go."],
    )
    go_on.set()
    assert [(await run).output for run in (first, third)] == ["Done.", "Done."]


def test_maximum_counts_the_runs_of_all_threads() -> None:
    """`execute_sync` on many threads: each has its own event loop, and one maximum applies."""
    active, most, lock = [0], [0], threading.Lock()
    calls, two_at_once = itertools.count(), threading.Barrier(2)

    class Model(ScriptedProvider):
        async def complete(self, request: ModelRequest, on_delta: OnDelta | None = None) -> ModelReply:
            with lock:
                active[0] += 1
                most[0] = max(most[0], active[0])
                first_calls = next(calls) < 2

            if first_calls:  # each on its own thread and event loop
                two_at_once.wait(30)

            await asyncio.sleep(0.005)

            with lock:
                active[0] -= 1

            return await super().complete(request, on_delta)

    executor = CrewExecutor(Agent("a", model=Model("Done.")), max_concurrent_runs=2)
    outputs: list[object] = []
    threads = [threading.Thread(target=lambda: outputs.append(executor.execute_sync("Go.").output)) for _ in range(8)]

    for thread in threads:
        thread.start()

    for thread in threads:
        thread.join(30)

    assert (outputs, most[0]) == (["Done."] * 8, 2)


@pytest.mark.parametrize("value", [0, -1, "many", True])
def test_invalid_maximum_is_refused(value: object) -> None:
    """With the value."""
    with pytest.raises(DefinitionError, match="max_concurrent_runs"):
        CrewExecutor(Agent("a", model=ScriptedProvider("Hi.")), max_concurrent_runs=value)  # type: ignore[arg-type]
