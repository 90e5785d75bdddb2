"""Every implementation that ships with Crew passes the contract of its interface."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from crew import ScriptedProvider, call
from crew.errors import Unavailable
from crew.history import estimate_tokens
from crew.history.policies import Rolling, Unbounded
from crew.interfaces import HistoryBudget, Policy, Provider, TokenCounter
from crew.runs import Finished, RunStore
from crew.runs.leases import RunLeases
from crew.store import MemoryStore, SQLiteStore
from crew.store import memory as memory_room
from tests.contracts.policy import PolicyContract
from tests.contracts.provider import ProviderContract
from tests.contracts.run_leases import RunLeasesContract
from tests.contracts.run_reader import RunReaderContract
from tests.contracts.run_store import RunStoreContract, event, state
from tests.contracts.token_counter import TokenCounterContract
from tests.support.clocks import ManualClock
from tests.support.providers import RecordingProvider
from tests.support.stores import JsonStore


class TestMemoryStore(RunStoreContract, RunReaderContract):
    """The default store."""

    @pytest.fixture
    def store(self) -> RunStore:
        return MemoryStore()


class TestSQLiteStore(RunStoreContract, RunReaderContract):
    """The store in a file."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[RunStore]:
        store = SQLiteStore(tmp_path / "runs.db")
        yield store
        store.close()


class TestSQLiteLeases(RunLeasesContract):
    """The leases of the store in a file; its clock is that of the test."""

    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock()

    @pytest.fixture
    def store(self, tmp_path: Path, clock: ManualClock) -> Iterator[SQLiteStore]:
        store = SQLiteStore(tmp_path / "runs.db", clock=clock)
        yield store
        store.close()

    @pytest.fixture
    def leases(self, store: SQLiteStore) -> RunLeases:
        return store.leases()

    @pytest.fixture
    def lapse(self, clock: ManualClock) -> Callable[[], Awaitable[None]]:
        async def advance() -> None:
            clock.now += 15.0

        return advance


class TestJsonStore(RunStoreContract):
    """The store of the tests, which keeps JSON only."""

    @pytest.fixture
    def store(self) -> RunStore:
        return JsonStore()


class TestRolling(PolicyContract):
    """The default policy."""

    policy: Policy = Rolling()


class TestUnbounded(PolicyContract):
    """No limit."""

    policy: Policy = Unbounded()

    def budget(self, limit: int, target: int) -> HistoryBudget:
        return HistoryBudget(limit=None)


class TestScripted(ProviderContract):
    """The public fake."""

    @pytest.fixture
    def provider(self) -> Provider:
        return ScriptedProvider("Hello\nthere.")

    @pytest.fixture
    def calling(self) -> Provider:
        return ScriptedProvider(call("look"), "done")

    @pytest.fixture
    def failing(self) -> Provider:
        return ScriptedProvider(Unavailable("not now"))


class TestRecording(TestScripted):
    """The recording provider of the tests."""

    @pytest.fixture
    def provider(self) -> Provider:
        return RecordingProvider("Hello\nthere.")


class _Estimating:
    def count(self, text: str) -> int:
        return estimate_tokens(text)


class TestEstimate(TokenCounterContract):
    """The estimate that is used before the first bill."""

    counter: TokenCounter = _Estimating()


async def test_memory_store_forgets_the_oldest_finished_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded: only the newest ids of finished runs are kept."""
    monkeypatch.setattr(memory_room, "REMEMBERED_IDS", 3)
    store = MemoryStore()
    over = replace(state(), next=Finished(stop_reason="completed"))

    for n in range(5):
        await store.commit(f"r{n}", 0, [event()], over)

    await store.commit("r0", 0, [event()], over)
