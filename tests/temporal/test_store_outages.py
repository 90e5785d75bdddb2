"""A store that is away for a while, on a real Temporal server: no effect is repeated, none is in doubt."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest
from temporalio.client import Client

from crew import Agent, ScriptedProvider, call, tool
from crew.errors import StoreError
from crew.runs.events import Event, ToolsStarted
from crew.runs.interfaces import EffectRecords
from crew.store import SQLiteStore
from crew.temporal import CrewWorker, TemporalExecutor

pytestmark = pytest.mark.servers

OUTAGE_ATTEMPTS = 3


class Outage:
    """The store fails while this is `active`; it ends after some failed attempts, unless it is `held`."""

    def __init__(self, *, held: bool = False) -> None:
        self.active, self.held, self.failures = False, held, 0
        self.failed = asyncio.Event()

    def check(self, run_id: str) -> None:
        if not self.active:
            return

        self.failures += 1
        self.failed.set()
        self.active = self.held or self.failures < OUTAGE_ATTEMPTS
        raise StoreError(run_id, "the database is down")


class FailingRecords:
    """Outcomes of effects that can't be read or written during an outage."""

    def __init__(self, records: EffectRecords, outage: Outage) -> None:
        self._records, self._outage = records, outage

    async def get(self, run_id: str, key: str) -> bytes | None:
        self._outage.check(run_id)
        return await self._records.get(run_id, key)

    async def put(self, run_id: str, key: str, data: bytes) -> bytes:
        self._outage.check(run_id)
        return await self._records.put(run_id, key, data)


class FailingStore(SQLiteStore):
    """A store with outages; `begins` says which commit one follows."""

    def __init__(self, path: str, outage: Outage, begins: Callable[[Sequence[Event]], bool] = lambda _: False) -> None:
        super().__init__(path)
        self._outage, self._begins = outage, begins

    def effects(self) -> Any:
        return FailingRecords(super().effects(), self._outage)

    async def commit(self, run_id: str, version: int, events: Sequence[Event], state: Any, *rest: Any) -> Any:
        self._outage.check(run_id)
        await super().commit(run_id, version, events, state, *rest)
        self._outage.active = self._outage.active or (not self._outage.failures and self._begins(events))


@pytest.mark.parametrize("effect", ["read", "write"])
async def test_an_outcome_waits_for_the_store(client: Client, store_file: str, effect: Any) -> None:
    """The store fails right after the effect: its outcome is stored later, and the effect happens once."""
    outage, performed = Outage(), 0

    @tool(effect=effect)
    async def pay() -> str:
        """Pay."""
        nonlocal performed
        performed += 1
        outage.active = performed == 1
        return "paid"

    def clerk() -> Agent:
        return Agent("clerk", model=ScriptedProvider(call("pay"), "Done."), tools=[pay])

    async with CrewWorker(client, clerk(), store=FailingStore(store_file, outage), task_queue=store_file):
        executor = TemporalExecutor(client, clerk(), store=store_file, task_queue=store_file)
        result = await executor.execute("Go.")

    assert (result.stop_reason, result.pauses, performed) == ("completed", (), 1)
    assert outage.failures == OUTAGE_ATTEMPTS


async def test_writes_that_did_not_start_are_not_in_doubt(client: Client, store_file: str) -> None:
    """The store fails after the calls were recorded as started, and before the first of them runs."""
    outage, performed = Outage(), []

    @tool
    async def pay(n: int) -> str:
        """Pay."""
        performed.append(n)
        return "paid"

    def clerk() -> Agent:
        return Agent("clerk", model=ScriptedProvider([call("pay", n=n) for n in range(3)], "Done."), tools=[pay])

    store = FailingStore(store_file, outage, lambda events: any(isinstance(one, ToolsStarted) for one in events))

    async with CrewWorker(client, clerk(), store=store, task_queue=store_file):
        executor = TemporalExecutor(client, clerk(), store=store_file, task_queue=store_file)
        result = await executor.execute("Go.")

    assert (result.stop_reason, result.pauses, sorted(performed)) == ("completed", (), [0, 1, 2])
    assert outage.failures == OUTAGE_ATTEMPTS


async def test_a_run_is_cancelled_while_it_waits_for_the_store(client: Client, store_file: str) -> None:
    """The cancellation is recorded as soon as the store is back; the caller of `execute` gets the result."""
    outage = Outage(held=True)

    @tool(approval=True)
    async def pay() -> str:
        """Pay."""
        return "paid"

    def reply(_: object) -> Any:
        outage.active = True
        return call("pay")

    def clerk() -> Agent:
        return Agent("clerk", model=ScriptedProvider(reply, "Done."), tools=[pay])

    async with CrewWorker(client, clerk(), store=FailingStore(store_file, outage), task_queue=store_file):
        executor = TemporalExecutor(client, clerk(), store=store_file, task_queue=store_file)
        running = asyncio.ensure_future(executor.execute("Go.", run_id="r"))
        await outage.failed.wait()
        cancelling = asyncio.ensure_future(executor.cancel("r"))

        with suppress(TimeoutError):  # long enough for the request to reach the workflow
            await asyncio.wait_for(asyncio.shield(cancelling), 1)

        assert not cancelling.done()
        outage.active = outage.held = False
        await cancelling
        assert (await running).stop_reason == "cancelled"

    assert (await SQLiteStore(store_file).run("r")).info.status == "cancelled"
