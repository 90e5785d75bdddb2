"""Many waits of one store look for the commits of other processes together, not each by itself."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from crew import Agent, CrewExecutor, ScriptedProvider
from crew.store import SQLiteStore
from crew.store.event_waiters import EventWaiters

COUNT = 50


async def settle() -> None:
    """Let every task run until it waits."""
    for _ in range(20):
        await asyncio.sleep(0)


class Polled:
    """A store whose polls last until the test ends them."""

    def __init__(self) -> None:
        self.waiters, self.go = EventWaiters(), asyncio.Event()
        self.polls = self.checks = 0
        self.is_stored = False

    async def check(self) -> bool:
        self.checks += 1
        return self.is_stored

    async def poll(self) -> None:
        self.polls += 1
        await self.go.wait()

    def start_wait(self, number: int) -> asyncio.Task[bool]:
        return asyncio.ensure_future(self.waiters.wait(f"r{number % 7}", self.check, None, poll=self.poll))


async def test_one_wait_polls_for_all() -> None:
    """The others sleep until they are woken."""
    store = Polled()
    waits = [store.start_wait(number) for number in range(COUNT)]
    await settle()
    assert (store.polls, store.checks) == (1, COUNT)
    store.is_stored = True
    store.waiters.notify_all()
    store.go.set()
    assert await asyncio.wait_for(asyncio.gather(*waits), 20) == [True] * COUNT


async def test_another_wait_polls_when_the_polling_one_ends() -> None:
    """In whichever order they are cancelled, one of those that are left polls."""
    store = Polled()
    waits = [store.start_wait(number) for number in range(COUNT)]
    random.Random(3).shuffle(waits)
    *others, last = waits
    await settle()

    while others:
        for wait in others[:2]:  # two at once: the one that is woken to poll may be the other one
            wait.cancel()

        del others[:2]
        await settle()
        [polling] = store.waiters._pollers.values()
        assert any(polling is stored for listed in store.waiters._waiting.values() for _, stored in listed)

    store.is_stored = True
    store.go.set()
    assert await asyncio.wait_for(last, 20)
    assert not store.waiters._pollers
    assert not store.waiters._waiting


async def test_an_error_of_the_poll_reaches_all_waits() -> None:
    """The file is gone, for example: each wait then fails as if it had looked itself."""
    waiters = EventWaiters()

    async def check() -> bool:
        return False

    async def poll() -> None:
        raise OSError("gone")

    waits = [waiters.wait("r", check, None, poll=poll) for _ in range(COUNT)]
    found = await asyncio.wait_for(asyncio.gather(*waits, return_exceptions=True), 20)
    assert {str(error) for error in found} == {"gone"}


async def test_waits_on_a_file_share_their_polls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each wait reads its events at its start and after a commit of another connection, and not in between."""
    store, other = SQLiteStore(tmp_path / "runs.db"), SQLiteStore(tmp_path / "runs.db")
    reads, polls = 0, asyncio.Semaphore(0)
    loop = asyncio.get_running_loop()

    def count(statement: str) -> None:
        nonlocal reads
        reads += "FROM events" in statement

        if "data_version" in statement:
            loop.call_soon_threadsafe(polls.release)

    store._file.set_trace_callback(count)
    monkeypatch.setattr("crew.store.event_waiters.POLL_SECONDS", 0.01)
    waits = [asyncio.ensure_future(store.wait_for_events(f"r{number % 2}")) for number in range(COUNT)]

    async with asyncio.timeout(60):
        for _ in range(20):
            await polls.acquire()

        # One for each wait at its start and with the first poll, and one with each poll for the wait that polls.
        assert reads <= 2 * COUNT + 25

        for run_id in ("r0", "r1"):
            await CrewExecutor(Agent("a", model=ScriptedProvider("Hi.")), store=other).execute("Hi", run_id=run_id)

        assert await asyncio.gather(*waits) == [True] * COUNT

    store.close()
    other.close()
