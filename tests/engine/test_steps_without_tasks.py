"""A step that never waits needs no task, and stays fair and cancellable."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from crew import Agent, CrewExecutor, Limits, ScriptedProvider, call, tool
from crew.runs import Event, RunState
from crew.runs.interfaces import commits_immediately
from crew.store import MemoryStore, SQLiteStore


@tool(effect="read")
async def look() -> str:
    """Look."""
    return "found"


class WaitingStore(MemoryStore):
    """Waits at its third commit until the test opens the gate."""

    def __init__(self) -> None:
        super().__init__()
        self.reached, self.gate = asyncio.Event(), asyncio.Event()
        self.commits = 0

    async def commit(self, run_id: str, version: int, events: Sequence[Event], state: RunState) -> None:
        self.commits += 1

        if self.commits == 3:
            self.reached.set()
            await self.gate.wait()

        await super().commit(run_id, version, events, state)


async def test_run_that_never_waits_can_be_cancelled() -> None:
    """Model, tool and store return at once, without end; other tasks still get their turn."""
    endless = ScriptedProvider(lambda request: call("look"))
    executor = CrewExecutor(Agent("solo", model=endless, tools=[look]), limits=Limits(rounds=None))
    run = asyncio.ensure_future(executor.execute("Go.", run_id="r"))

    for _ in range(10):
        await asyncio.sleep(0)

    await executor.cancel("r")
    assert (await run).stop_reason == "cancelled"


async def test_a_subclass_that_overrides_commit_is_no_longer_immediate(tmp_path: Path) -> None:
    """A subclass of MemoryStore whose commit waits is not cancelled half-way."""
    assert commits_immediately(MemoryStore())
    assert not commits_immediately(SQLiteStore(tmp_path / "runs.db"))

    store = WaitingStore()
    assert not commits_immediately(store)
    agent = Agent("solo", model=ScriptedProvider(call("look"), "Done."), tools=[look])
    executor = CrewExecutor(agent, store=store)
    run = asyncio.ensure_future(executor.execute("Go.", run_id="r"))
    await store.reached.wait()
    run.cancel()
    store.gate.set()

    with pytest.raises(asyncio.CancelledError):
        await run

    assert (await store.load("r")).version == 3, "the commit under way came to its end"
