"""Every implementation of a door that ships here, run through the suite of that door."""

from __future__ import annotations

from dataclasses import replace

import pytest

from crew import ScriptedProvider, call
from crew.errors import Unavailable
from crew.history import estimate_tokens
from crew.history.policies import Rolling, Unbounded
from crew.interfaces import HistoryBudget, Policy, Provider, TokenCounter
from crew.runs import Finished, RunStore
from crew.store import MemoryStore
from crew.store import memory as memory_room
from tests.contracts.policy import PolicyContract
from tests.contracts.provider import ProviderContract
from tests.contracts.run_store import RunStoreContract, event, state
from tests.contracts.token_counter import TokenCounterContract
from tests.support.providers import RecordingProvider
from tests.support.stores import JsonStore


class TestMemoryStore(RunStoreContract):
    """Runs in memory."""

    @pytest.fixture
    def store(self) -> RunStore:
        return MemoryStore()


class TestJsonStore(RunStoreContract):
    """Runs as bytes."""

    @pytest.fixture
    def store(self) -> RunStore:
        return JsonStore()


class TestRolling(PolicyContract):
    """The default."""

    policy: Policy = Rolling()


class TestUnbounded(PolicyContract):
    """No bound at all."""

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
    """The tests' own."""

    @pytest.fixture
    def provider(self) -> Provider:
        return RecordingProvider("Hello\nthere.")


class _Estimating:
    def count(self, text: str) -> int:
        return estimate_tokens(text)


class TestEstimate(TokenCounterContract):
    """The estimate that holds until something was billed."""

    counter: TokenCounter = _Estimating()


async def test_the_memory_store_forgets_the_oldest_ids_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded: of finished runs only the newest ids are remembered."""
    monkeypatch.setattr(memory_room, "REMEMBERED_IDS", 3)
    store = MemoryStore()
    over = replace(state(), next=Finished(stop_reason="completed"))

    for n in range(5):
        await store.commit(f"r{n}", 0, [event()], over)

    await store.commit("r0", 0, [event()], over)
