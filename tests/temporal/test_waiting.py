"""A run on Temporal that makes no progress tells its reader why, and goes on when the reason is gone."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from crew import Agent, RunResult, ScriptedProvider, call, tool
from crew.runs.events import Warned
from crew.store import SQLiteStore
from crew.temporal import CrewWorker, TemporalExecutor
from scripts.temporal_server import free_port, running_temporal

pytestmark = [pytest.mark.servers, pytest.mark.usefixtures("early_warnings")]


@tool
def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"


def clerk(**options: Any) -> Agent:
    return Agent("clerk", model=ScriptedProvider(call("pay", amount=5), "Paid."), tools=[pay], **options)


class Watched:
    """A run whose warnings are collected."""

    def __init__(self, client: Client, store_file: str, run_id: str, crew: Agent | None = None) -> None:
        self.warnings: asyncio.Queue[str] = asyncio.Queue()
        self.executor = TemporalExecutor(
            client, crew or clerk(), store=store_file, task_queue=run_id, observers=[self._observe]
        )
        self.task = asyncio.create_task(self.executor.execute("Pay.", run_id=run_id))

    def _observe(self, event: object) -> None:
        if isinstance(event, Warned):
            self.warnings.put_nowait(event.text)

    async def finish(self) -> RunResult:
        result = await asyncio.wait_for(self.task, 180)
        await self.executor.aclose()
        return result


async def until(run: Watched, words: str) -> str:
    """The first warning with these words; the run is still under way."""
    async with asyncio.timeout(90):
        while words not in (text := await run.warnings.get()):
            pass

    assert not run.task.done()
    return text


async def test_a_run_that_no_worker_takes_says_so(client: Client, store_file: str) -> None:
    """The warning names the task queue and the command that starts a worker."""
    run = Watched(client, store_file, "no-worker")
    text = await until(run, "No worker has taken")
    assert "'no-worker'" in text
    assert "crew worker" in text

    async with CrewWorker(client, clerk(), store=store_file, task_queue="no-worker"):
        assert (await run.finish()).output == "Paid."


async def test_a_run_of_another_definition_says_so(client: Client, store_file: str) -> None:
    """The warning names both definitions; a worker with the right one continues the run."""
    run = Watched(client, store_file, "definition")

    async with CrewWorker(client, clerk(instructions="Be polite."), store=store_file, task_queue="definition"):
        await until(run, "another definition of the crew 'clerk'")

    async with CrewWorker(client, clerk(), store=store_file, task_queue="definition"):
        assert (await run.finish()).output == "Paid."


async def test_a_worker_with_another_store_says_so(client: Client, store_file: str, tmp_path: Path) -> None:
    """The run waits for a worker that shares its store."""
    run = Watched(client, store_file, "store")

    async with CrewWorker(client, clerk(), store=str(tmp_path / "other.db"), task_queue="store"):
        await until(run, "No worker can continue the run")

    async with CrewWorker(client, clerk(), store=store_file, task_queue="store"):
        assert (await run.finish()).output == "Paid."


class FailingStore(SQLiteStore):
    """Fails whenever the process of a worker stores something, while `fails` is set; not as a store should."""

    fails = True

    async def commit(self, *arguments: Any) -> None:
        if self.fails:
            raise OSError("the disk is gone")

        await super().commit(*arguments)


async def test_a_failing_store_says_so_and_no_write_is_in_doubt(client: Client, store_file: str) -> None:
    """What fails before an effect starts is repeated: the payment is made once, and no person is asked."""
    run = Watched(client, store_file, "disk")
    store = FailingStore(store_file)

    async with CrewWorker(client, clerk(), store=store, task_queue="disk"):
        await until(run, "the disk is gone")
        store.fails = False
        result = await run.finish()

    assert (result.output, result.stop_reason) == ("Paid.", "completed")
    store.close()


async def test_a_server_that_is_killed_and_comes_back_loses_nothing(tmp_path: Path, temporal_address: str) -> None:
    """The caller waits with a warning; the run goes on where it was, and every payment is made once."""
    assert temporal_address, "the program is installed"
    port, store_file, paid = free_port(), str(tmp_path / "runs.db"), list[int]()

    @tool
    async def pay_next(amount: int) -> str:
        """Pay an amount."""
        paid.append(amount)
        return f"paid {amount}"

    crew = Agent(
        "clerk",
        model=ScriptedProvider(*(call("pay_next", amount=n) for n in range(8)), "Paid."),
        tools=[pay_next],
    )

    with contextlib.ExitStack() as servers:
        address = await asyncio.to_thread(servers.enter_context, running_temporal(port, tmp_path / "temporal.db"))
        client = await Client.connect(address)
        run = Watched(client, store_file, "outage", crew)

        async with CrewWorker(client, crew, store=store_file, task_queue="outage"):
            while len(paid) < 3:
                await asyncio.sleep(0.01)

            await asyncio.to_thread(servers.close)
            await until(run, "The Temporal server does not answer")
            await asyncio.to_thread(servers.enter_context, running_temporal(port, tmp_path / "temporal.db"))
            result = await run.finish()

    assert (result.output, result.stop_reason) == ("Paid.", "completed")
    assert paid == [*range(8)]
