"""`MemoryStore` is bounded: the oldest runs leave, and nothing that is under way is lost."""

from __future__ import annotations

import asyncio
import gc
import logging
from dataclasses import replace
from typing import Any

import pytest

from crew import Agent, CrewExecutor, RunError, RunResult, ScriptedProvider, call, tool
from crew.errors import DefinitionError, RunConflict, RunExists, RunExpired, UnknownRun
from crew.runs import AwaitInput, Finished
from crew.runs.events import RunFailed
from crew.store import MemoryStore
from tests.contracts.run_store import event, state
from tests.support.runs import executor_for

any_: Any = lambda given: given  # noqa: E731 - hides wrong types from the type checker


@tool(approval=True)
def pay() -> str:
    """Pay."""
    return "paid"


def payer(store: MemoryStore) -> CrewExecutor:
    """An executor whose runs pause once."""
    return executor_for(ScriptedProvider(lambda r: call("pay") if len(r.messages) == 1 else "done"), pay, store=store)


async def pause(executor: CrewExecutor, *run_ids: str) -> list[RunResult]:
    """Start these runs; each pauses."""
    return [await executor.execute("Pay.", run_id=run_id) for run_id in run_ids]


async def test_the_oldest_pause_leaves_and_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    """A warning names it, resuming or cancelling it raises `RunExpired`, and its id stays taken."""
    executor = payer(MemoryStore(max_unfinished=2))

    with caplog.at_level(logging.WARNING, logger="crew"):
        results = await pause(executor, "one", "two")
        assert not caplog.records
        results += await pause(executor, "three")

    (warning,) = caplog.records
    assert warning.getMessage().startswith("Run one, which waits for an answer, left the memory")
    assert "MemoryStore(max_unfinished=2)" in warning.getMessage()

    with pytest.raises(RunExpired, match=r"'one' is no longer in memory: MemoryStore\(max_unfinished=2\)") as caught:
        await executor.resume("one", {results[0].pauses[0].id: True})

    assert isinstance(caught.value, UnknownRun)
    assert (caught.value.run_id, caught.value.kept) == ("one", 2)

    with pytest.raises(RunExpired):
        await executor.cancel("one")

    with pytest.raises(RunExists):
        await executor.execute("Pay.", run_id="one")

    for result in results[1:]:
        assert (await executor.resume(result.run_id, {result.pauses[0].id: True})).output == "done"


async def test_the_run_with_the_oldest_commit_leaves_first() -> None:
    """Not the one that was started first: a resume makes a run the newest again."""
    executor = payer(MemoryStore(max_unfinished=2))
    first, _ = await pause(executor, "one", "two")
    held = await executor.resume("one")  # no answer: it stays paused
    assert held.stop_reason == "paused"
    await pause(executor, "three")
    assert (await executor.resume("one", {first.pauses[0].id: True})).output == "done"

    with pytest.raises(RunExpired):
        await executor.resume("two")


async def test_active_runs_beyond_the_bound_end_as_usual(caplog: pytest.LogCaptureFixture) -> None:
    """A run that is under way commits again: its state returns, and the bound holds all the time."""
    store, gate, started = MemoryStore(max_unfinished=2), asyncio.Event(), 0

    @tool
    async def wait() -> str:
        """Wait for the others."""
        nonlocal started
        started += 1

        if started == 10:
            gate.set()

        await gate.wait()
        assert len(store) <= 2
        return "ok"

    executor = executor_for(ScriptedProvider(call("wait"), call("wait"), "done"), wait, store=store)
    results = await asyncio.gather(*[executor.execute("Go.", run_id=f"r{n}") for n in range(10)])
    assert {result.output for result in results} == {"done"}
    assert len(store) == 0
    assert not caplog.records

    with pytest.raises(UnknownRun) as caught:
        await executor.resume("r0")

    assert type(caught.value) is UnknownRun


async def test_the_newest_finished_runs_can_be_read() -> None:
    """They can't be resumed, and their ids stay taken, also of those that left."""
    store = MemoryStore(max_finished=2)
    executor = executor_for(ScriptedProvider("done"), store=store)

    for run_id in ("one", "two", "three"):
        await executor.execute("Go.", run_id=run_id)

    for run_id in ("two", "three"):
        assert (await store.run(run_id)).state.transcript[-1].text == "done"  # type: ignore[union-attr]

    with pytest.raises(UnknownRun):
        await store.run("one")

    for run_id in ("one", "three"):
        with pytest.raises(UnknownRun):
            await executor.resume(run_id)

        with pytest.raises(RunExists):
            await executor.execute("Go.", run_id=run_id)


async def test_a_process_does_not_grow_with_its_runs(caplog: pytest.LogCaptureFixture) -> None:
    """After a warm-up, runs that finish, pause or fail leave no objects behind; see benchmarks/memory.py."""
    store = MemoryStore(max_finished=3, max_unfinished=6)

    executors = [
        executor_for(ScriptedProvider("done"), store=store),
        payer(store),
        executor_for(ScriptedProvider(any_(lambda request: 1 / 0)), store=store),
    ]

    async def run(times: int) -> int:
        for _ in range(times):
            for executor in executors:
                try:
                    await executor.execute("Go.")
                except RunError:
                    pass

        gc.collect()
        return len(gc.get_objects())

    with caplog.at_level(logging.CRITICAL + 1, logger="crew"):  # pytest keeps what is logged
        warm = await run(10)
        assert await run(30) <= warm + 30


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"max_finished": -1}, "max_finished must be 0 or a positive integer, not -1"),
        ({"max_unfinished": 0}, "max_unfinished must be a positive integer, not 0"),
        ({"max_unfinished": "5"}, "max_unfinished must be a positive integer, not '5'"),
        ({"max_age": 0}, "max_age must be a number of seconds above 0, not 0"),
        ({"max_finished": None}, "max_finished must be 0 or a positive integer, not None"),
    ],
)
def test_bounds_must_be_numbers(values: Any, words: str) -> None:
    """What is accepted is in the message."""
    with pytest.raises(DefinitionError, match=words):
        MemoryStore(**values)


async def test_runs_and_conversations_leave_by_their_age(caplog: pytest.LogCaptureFixture) -> None:
    """Finished, failed, paused and abandoned ones, by the times of the commits; a later commit makes a run young."""
    store, failed = MemoryStore(max_age=60), RunFailed(run_id="failed", agent="a", sequence=2, error="down")

    async def commit(run_id: str, at: float, version: int = 0, **fields: Any) -> None:
        await store.commit(run_id, version, [event()], replace(state(run_id), last_event_at=at, **fields))

    over = Finished(stop_reason="completed")
    await commit("finished", 100, next=over)
    await commit("turn", 101, next=over, conversation_id="c", turn=1)
    await commit("failed", 102)
    await store.append_events("failed", 1, [failed])
    await commit("paused", 103, next=AwaitInput(pause_id="p"))
    await commit("abandoned", 104)
    await commit("renewed", 105)
    await commit("renewed", 160, version=1)
    assert {info.run_id for info in (await store.runs()).runs} == {
        *("finished", "turn", "failed", "paused", "abandoned", "renewed")
    }
    await commit("new", 164.5)
    assert {info.run_id for info in (await store.runs()).runs} == {"renewed", "new"}
    assert [record.getMessage().split(",")[0] for record in caplog.records] == ["Run paused"]

    with pytest.raises(RunExpired, match=r"MemoryStore\(max_unfinished=1000, max_age=60\)") as caught:
        await store.load("paused")

    assert caught.value.max_age == 60

    with pytest.raises(
        RunExpired, match=r"'c' is no longer in memory: MemoryStore\(max_conversations=1000, max_age=60"
    ):
        await store.last_turn("c")

    with pytest.raises(UnknownRun):
        await store.events("finished")


async def test_commit_of_a_run_that_was_erased_or_has_finished_says_so() -> None:
    """This store has no leases, so it erases runs that are under way, too; of finished ones it knows no version."""
    store = MemoryStore()
    await store.commit("r", 0, [event()], state())
    assert await store.forget("r") == 1

    with pytest.raises(RunConflict, match="Run 'r' has finished or was erased; expected version 1"):
        await store.commit("r", 1, [event()], state())

    await CrewExecutor(Agent("a", model=ScriptedProvider("Hi.")), store=store).execute("Hi", run_id="done")

    with pytest.raises(RunConflict, match="Run 'done' has finished or was erased"):
        await store.commit("done", 1, [event()], state("done"))


async def test_a_run_that_is_held_stays_beyond_its_end() -> None:
    """The others leave as if it were not there; it leaves with the commit after its last release."""
    store = MemoryStore(max_finished=1)
    executor = CrewExecutor(Agent("a", model=ScriptedProvider("Hi.")), store=store)
    releases = [store.hold("held") for _ in range(2)]

    for run_id in ("held", "one", "two"):
        await executor.execute("Hi", run_id=run_id)

    assert [info.run_id for info in (await store.runs()).runs] == ["two", "held"]
    assert await store.events("held")
    releases[0]()
    releases[0]()  # without effect: the other one still holds it
    await executor.execute("Hi", run_id="three")
    assert (await store.run("held")).state.run_id == "held"
    releases[1]()
    releases[1]()
    await executor.execute("Hi", run_id="four")
    assert [info.run_id for info in (await store.runs()).runs] == ["four"]

    with pytest.raises(UnknownRun):
        await store.run("held")
