"""Invariant 11 within one process: each run under way has a lease, and two stores on one file are two owners."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from crew import Agent, Crew, CrewExecutor, Parallel, RunError, RunResult, ScriptedProvider, call, tool
from crew.errors import DefinitionError, InvalidInput, RunActive, RunExists, StoreError, UnknownRun
from crew.runs.leases import Lease
from crew.runs.processes import is_gone, this_holder
from crew.store import MemoryStore, SQLiteStore
from crew.store.sqlite_leases import SQLiteLeases
from crew.tools import Tool
from tests.support.clocks import ManualClock, wait_until
from tests.support.stores import JsonStore


class Gate:
    """A write that waits until the test opens it."""

    def __init__(self) -> None:
        self.entered, self.opened, self.calls = asyncio.Event(), asyncio.Event(), 0

    @property
    def tool(self) -> Tool:
        @tool
        async def write() -> str:
            """Write."""
            self.calls += 1
            self.entered.set()
            await self.opened.wait()
            return "written"

        return write


def writer(write: Tool, *lines: Any) -> Agent:
    return Agent("writer", model=ScriptedProvider(*(lines or (call("write"), "done"))), tools=[write])


def lease_tasks() -> list[asyncio.Task[Any]]:
    return [task for task in asyncio.all_tasks() if task.get_name() == "crew-leases"]


async def held(path: Path) -> Sequence[Lease]:
    store = SQLiteStore(path)
    return await store.leases().list()


async def test_run_under_way_has_one_lease_and_leaves_none(tmp_path: Path) -> None:
    """Whether it ends, pauses, fails, or its task is cancelled: no lease and no task stays behind."""
    path, gate = tmp_path / "runs.db", Gate()
    executor = CrewExecutor(writer(gate.tool), store=SQLiteStore(path))
    run = asyncio.create_task(executor.execute("go", run_id="r"))
    await gate.entered.wait()
    assert [(lease.run_id, lease.holder.pid) for lease in await held(path)] == [("r", os.getpid())]
    assert len(lease_tasks()) == 1
    gate.opened.set()
    assert (await run).output == "done"
    assert (await held(path), lease_tasks()) == ([], [])

    @tool(approval=True)
    async def write() -> str:
        """Write."""
        return "written"

    paused = await CrewExecutor(writer(write), store=SQLiteStore(path)).execute("go", run_id="p")
    assert (paused.stop_reason, await held(path)) == ("paused", [])

    with pytest.raises(RunError):
        await CrewExecutor(writer(write, RuntimeError("no")), store=SQLiteStore(path)).execute("go", run_id="f")

    assert await held(path) == []
    stuck = Gate()
    stopped = asyncio.create_task(CrewExecutor(writer(stuck.tool), store=SQLiteStore(path)).execute("go", run_id="c"))
    await stuck.entered.wait()
    stopped.cancel()

    with pytest.raises(asyncio.CancelledError):
        await stopped

    assert (await held(path), lease_tasks()) == ([], [])
    await executor.cancel("p")
    assert await held(path) == []


async def test_runs_of_one_event_loop_share_one_task(tmp_path: Path) -> None:
    """Twenty runs of two executors on one store."""
    store, gates = SQLiteStore(tmp_path / "runs.db"), [Gate() for _ in range(20)]
    executors = [CrewExecutor(writer(gate.tool), store=store) for gate in gates]
    runs = [asyncio.create_task(executor.execute("go")) for executor in executors]

    for gate in gates:
        await gate.entered.wait()

    assert len(await store.leases().list()) == 20
    assert len(lease_tasks()) == 1

    for gate in gates:
        gate.opened.set()

    await asyncio.gather(*runs)
    assert lease_tasks() == []


def test_event_loops_of_several_threads_renew_their_own_leases(tmp_path: Path) -> None:
    """A loop that ends, or is blocked, must not end the leases of another thread's runs."""
    path, outputs = tmp_path / "runs.db", list[str]()
    store, ends = SQLiteStore(path, lease_seconds=1.5), {name: threading.Event() for name in ("short", "long")}

    def run(name: str) -> None:
        @tool(effect="read")
        async def wait() -> str:
            """Wait."""
            while not ends[name].is_set():
                await asyncio.sleep(0.01)

            return "waited"

        agent = Agent("waiter", model=ScriptedProvider(call("wait"), "done"), tools=[wait])
        outputs.append(CrewExecutor(agent, store=store).execute_sync("go", run_id=name).output)

    threads = {name: threading.Thread(target=run, args=(name,)) for name in ends}

    for thread in threads.values():
        thread.start()

    wait_until(lambda: set(expiries(path)) == {"short", "long"})
    ends["short"].set()
    threads["short"].join()
    [(run_id, expiry)] = expiries(path).items()
    assert run_id == "long"
    wait_until(lambda: expiries(path)["long"] > expiry)  # it was renewed, by the loop of its own thread
    ends["long"].set()
    threads["long"].join()
    assert outputs == ["done", "done"]
    assert expiries(path) == {}
    store.close()


def expiries(path: Path) -> dict[str, float]:
    """When the lease of each run expires."""
    with closing(sqlite3.connect(path)) as file:
        return dict(file.execute("SELECT run_id, expires FROM leases").fetchall())


async def test_run_of_another_owner_is_refused_until_its_lease_lapses(tmp_path: Path) -> None:
    """By the clock of the store. Its first owner is then refused at its next write."""
    clock, monotonic, gate = ManualClock(), ManualClock(), Gate()
    path = tmp_path / "runs.db"
    first = CrewExecutor(
        writer(gate.tool, call("write"), call("write"), "done"),
        store=SQLiteStore(path, clock=clock),
        monotonic=monotonic,
    )
    run = asyncio.create_task(first.execute("go", run_id="r"))
    await gate.entered.wait()
    taken = Gate()
    taken.opened.set()
    second = CrewExecutor(
        writer(taken.tool, call("write"), call("write"), "done"), store=SQLiteStore(path, clock=clock)
    )

    with pytest.raises(RunActive) as caught:
        await second.resume("r")

    assert caught.value.owner == str(this_holder(""))

    with pytest.raises(RunExists):
        await second.execute("go", run_id="r")

    clock.now += 15
    paused = await second.resume("r")
    assert [pause.reason for pause in paused.pauses] == ["in_doubt"]
    gate.opened.set()

    with pytest.raises(StoreError):
        await run

    assert (gate.calls, taken.calls) == (1, 0)
    done = await second.resume("r", {paused.pauses[0].id: {"done": "written"}})
    assert (done.output, taken.calls) == ("done", 1)


async def test_lost_lease_ends_a_parallel_group_without_an_effect(tmp_path: Path) -> None:
    """The branch does not fail, whatever the group does with failures: the run belongs to another process."""
    monotonic, calls, other = ManualClock(), list[str](), SQLiteStore(tmp_path / "runs.db")

    @tool
    async def write() -> str:
        """Write."""
        calls.append("write")
        return "written"

    def take_over(_: object) -> Any:
        # The lease was lost, and the clock of the owner shows that it had lapsed.
        taken = threading.Thread(target=lambda: asyncio.run(_take(other.leases())))
        taken.start()
        taken.join()
        monotonic.now += 15
        return call("write")

    members = [Agent(name, model=ScriptedProvider(take_over, "done"), tools=[write]) for name in ("a", "b")]
    crew = Crew("group", agents=members, groups=[Parallel("both", branches=members)], entry="both")
    executor = CrewExecutor(crew, store=SQLiteStore(tmp_path / "runs.db"), monotonic=monotonic)

    with pytest.raises(RunActive):
        await executor.execute("go", run_id="r")

    assert calls == []
    branches = (await other.load("r")).state.children.values()
    assert "finished" not in {branch.next.kind for branch in branches}  # neither has failed


async def _take(leases: SQLiteLeases) -> None:
    found = await leases.find("r")
    assert found is not None
    await leases.acquire(Lease(run_id="r", holder=replace(found.holder, executor="other")), found.holder)


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), "15"])
def test_lease_seconds_must_be_a_positive_number(tmp_path: Path, seconds: Any) -> None:
    """Any other value is refused."""
    with pytest.raises(DefinitionError, match="lease_seconds"):
        SQLiteStore(tmp_path / "runs.db", lease_seconds=seconds)


def test_process_is_gone_if_its_pid_belongs_to_another_one() -> None:
    """A process of another host, boot or namespace of pids is never known to be gone."""
    own = this_holder("e")
    scope = own.started.rpartition("/")[0]
    assert not is_gone(own)
    assert is_gone(replace(own, pid=2**22 + 1))
    assert is_gone(replace(own, started=f"{scope}/1")) == (scope != "")
    assert not is_gone(replace(own, pid=2**22 + 1, host="another"))
    assert not is_gone(replace(own, pid=2**22 + 1, started="another boot/1/1"))


# ---------------------------------------------------------------------------------------------- existing runs


def answering(text: str = "done") -> Agent:
    return Agent("solo", model=ScriptedProvider(text))


async def test_finished_run_is_returned_instead_of_started(tmp_path: Path) -> None:
    """With `on_existing="return"`; no model is called, and the id stays refused without it."""
    executor = CrewExecutor(answering(), store=SQLiteStore(tmp_path / "runs.db"))
    first = await executor.execute("go", run_id="r", on_existing="return")
    other = CrewExecutor(Agent("solo", model=ScriptedProvider()), store=SQLiteStore(tmp_path / "runs.db"))
    again = await other.execute("go", run_id="r", on_existing="return")
    assert (again.output, again.stop_reason, again.usage) == ("done", "completed", first.usage)
    assert again.transcript == first.transcript

    with pytest.raises(RunExists):
        await other.execute("go", run_id="r")

    with pytest.raises(InvalidInput, match="another input, 'go'"):
        await other.execute("stop", run_id="r", on_existing="return")

    another = CrewExecutor(Agent("another", model=ScriptedProvider()), store=SQLiteStore(tmp_path / "runs.db"))

    with pytest.raises(InvalidInput, match="belongs to the crew 'solo', not to 'another'"):
        await another.execute("go", run_id="r", on_existing="return")


@pytest.mark.parametrize("make_store", [MemoryStore, JsonStore])
async def test_paused_run_is_returned_with_its_pauses(make_store: Callable[[], Any]) -> None:
    """Also by a store that reads only unfinished runs; its input is compared too."""

    @tool(approval=True)
    async def write() -> str:
        """Write."""
        return "written"

    executor = CrewExecutor(writer(write), store=make_store())
    paused = await executor.execute("go", run_id="r")
    again = await executor.execute("go", run_id="r", on_existing="return")
    assert (again.stop_reason, again.pauses) == ("paused", paused.pauses)

    with pytest.raises(InvalidInput):
        await executor.execute("stop", run_id="r", on_existing="return")


async def test_run_under_way_is_returned_as_running(tmp_path: Path) -> None:
    """Whichever process runs it. Of two that start it at the same time, one runs it."""
    gate = Gate()
    executors = [CrewExecutor(writer(gate.tool), store=SQLiteStore(tmp_path / "runs.db")) for _ in range(2)]
    starts = [asyncio.create_task(executors[0].execute("go", run_id="r", on_existing="return")) for _ in range(2)]
    await gate.entered.wait()
    done, [running] = await asyncio.wait(starts, return_when=asyncio.FIRST_COMPLETED)
    assert [task.result().stop_reason for task in done] == ["running"]
    assert (await executors[1].execute("go", run_id="r", on_existing="return")).stop_reason == "running"
    gate.opened.set()
    assert (await running).output == "done"
    assert gate.calls == 1


@pytest.mark.parametrize(("on_existing", "run_id"), [("return", None), ("resume", "r")])
async def test_on_existing_needs_a_known_value_and_a_run_id(on_existing: Any, run_id: str | None) -> None:
    """Else the setting would have no effect."""
    with pytest.raises(InvalidInput, match="on_existing"):
        await CrewExecutor(answering()).execute("go", run_id=run_id, on_existing=on_existing)


async def test_recover_leaves_runs_that_have_not_lost_their_owner(tmp_path: Path) -> None:
    """Failed and paused runs were released; a run of another crew, or one that has ended, is not resumed."""
    path, clock = tmp_path / "runs.db", ManualClock()
    store = SQLiteStore(path, clock=clock)

    with pytest.raises(RunError):
        await CrewExecutor(Agent("solo", model=ScriptedProvider(RuntimeError("no"))), store=store).execute("go")

    assert await CrewExecutor(answering(), store=store).recover() == {}
    assert await CrewExecutor(answering()).recover() == {}
    await CrewExecutor(answering(), store=store).execute("go", run_id="ended")

    for executor, run_id in (("dead", "ended"), ("other", "elsewhere")):
        await store.leases().acquire(Lease(run_id=run_id, holder=this_holder(executor)))

    with pytest.raises(RunError):
        await CrewExecutor(Agent("x", model=ScriptedProvider(RuntimeError("no"))), store=store).execute(
            "go", run_id="theirs"
        )

    await store.leases().acquire(Lease(run_id="theirs", holder=this_holder("dead")))
    clock.now += 15
    assert await CrewExecutor(answering(), store=store).recover() == {}
    assert [lease.run_id for lease in await store.leases().list()] == ["theirs"]
    recovered = await CrewExecutor(Agent("x", model=ScriptedProvider("back")), store=store).recover()
    assert {run_id: outcome.output for run_id, outcome in recovered.items()} == {"theirs": "back"}


async def test_damaged_run_does_not_end_recover(tmp_path: Path) -> None:
    """Its outcome is its error; the other runs are resumed, also those that began before it was found."""
    path, clock = tmp_path / "runs.db", ManualClock()
    store = SQLiteStore(path, clock=clock)

    for run_id in ("a", "b", "c"):
        with pytest.raises(RunError):
            await CrewExecutor(Agent("x", model=ScriptedProvider(RuntimeError("no"))), store=store).execute(
                "go", run_id=run_id
            )

        await store.leases().acquire(Lease(run_id=run_id, holder=this_holder("dead")))

    clock.now += 15

    with sqlite3.connect(path) as file:
        file.execute("UPDATE runs SET state = substr(state, 1, 50) WHERE run_id = 'b'")

    file.close()
    damaged = SQLiteStore(path, clock=clock)
    recovered = await CrewExecutor(Agent("x", model=ScriptedProvider("one", "two")), store=damaged).recover()
    assert isinstance(recovered.pop("b"), StoreError)
    assert {run_id: outcome.stop_reason for run_id, outcome in recovered.items()} == {
        "a": "completed",
        "c": "completed",
    }


async def test_recover_resumes_interrupted_runs_if_asked(tmp_path: Path) -> None:
    """A service that was stopped with `aclose` released its leases; live, paused and failed runs are not touched."""
    path, gates = tmp_path / "runs.db", [Gate(), Gate()]
    executors = [CrewExecutor(writer(gate.tool), store=path) for gate in gates]
    runs = [asyncio.create_task(one.execute("go", run_id=id)) for one, id in zip(executors, "ab", strict=True)]
    await asyncio.gather(*(gate.entered.wait() for gate in gates))
    await executors[0].aclose()
    await asyncio.wait(runs[:1])

    for line in (RuntimeError("no"), "Which?"):
        agent = Agent("writer", model=ScriptedProvider(line), wait_for_signal=True)
        await asyncio.gather(CrewExecutor(agent, store=path).execute("go"), return_exceptions=True)

    restarted = CrewExecutor(Agent("writer", model=ScriptedProvider("done"), tools=[Gate().tool]), store=path)
    assert await restarted.recover() == {}
    other = CrewExecutor(answering(), store=path)
    assert await other.recover(interrupted=True) == {}
    recovered = await restarted.recover(interrupted=True)
    assert {id: outcome.pauses[0].reason for id, outcome in recovered.items()} == {"a": "in_doubt"}
    gates[1].opened.set()
    assert (await runs[1]).output == "done"

    for executor in (*executors, restarted, other):
        await executor.aclose()


async def test_new_run_takes_its_lease_with_its_first_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one transaction: a process that is killed right after its first commit leaves a lease for `recover`."""
    acquired: list[str] = []
    acquire = SQLiteLeases.acquire

    async def count(self: SQLiteLeases, lease: Lease, *rest: Any) -> Any:
        acquired.append(lease.run_id)
        return await acquire(self, lease, *rest)

    monkeypatch.setattr(SQLiteLeases, "acquire", count)
    path, gate = tmp_path / "runs.db", Gate()
    executor = CrewExecutor(writer(gate.tool), store=path)
    stream = executor.execute_stream("Go.", run_id="r")

    async for event in stream:
        if event.kind == "run_started":
            assert [lease.run_id for lease in await held(path)] == ["r"]
            break

    assert acquired == []
    await executor.aclose()


async def cancelled_at_its_release(store: SQLiteStore, *lines: str, **options: Any) -> tuple[RunResult, object]:
    """Cancel a run while its lease is released: its result, and the error of `cancel`."""
    releasing, opened = asyncio.Event(), asyncio.Event()
    release = store.leases().release

    async def release_slowly(lease: Lease) -> None:
        releasing.set()
        await opened.wait()
        await release(lease)

    store.leases().release = release_slowly  # type: ignore[method-assign]  # a slow disk
    executor = CrewExecutor(Agent("a", model=ScriptedProvider(*lines), **options), store=store)
    running = asyncio.ensure_future(executor.execute("go", run_id="r"))
    await releasing.wait()
    cancelling = asyncio.ensure_future(executor.cancel("r"))
    await asyncio.sleep(0)
    opened.set()
    [error] = await asyncio.gather(cancelling, return_exceptions=True)
    return await running, error


async def test_a_run_that_has_just_ended_keeps_its_result(tmp_path: Path) -> None:
    """It can't be cancelled any more, and its caller gets the result."""
    result, error = await cancelled_at_its_release(SQLiteStore(tmp_path / "runs.db"), "done")
    assert result.output == "done"
    assert isinstance(error, UnknownRun)


async def test_a_run_that_has_just_paused_is_cancelled(tmp_path: Path) -> None:
    """Its caller gets the pauses; then the run is cancelled like any paused one."""
    store = SQLiteStore(tmp_path / "runs.db")
    result, error = await cancelled_at_its_release(store, "Which?", wait_for_signal=True)
    assert (result.stop_reason, error) == ("paused", None)
    assert (await store.run("r")).info.status == "cancelled"
