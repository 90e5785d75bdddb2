"""The contract of the leases of a store: derive a class, and provide `store`, `leases` and `lapse`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from crew.errors import RunActive, RunExists
from crew.runs import Finished
from crew.runs.leases import Lease, LeaseHolder, LeasingStore, RunLeases
from crew.runs.processes import this_holder
from tests.contracts.run_store import state


def lease(executor: str, run_id: str = "r") -> Lease:
    """A lease of an executor in this test."""
    return Lease(run_id=run_id, holder=LeaseHolder(host="h", pid=7, started="boot/1", executor=executor))


class RunLeasesContract:
    """`lapse` waits until a lease that was not renewed meanwhile has lapsed."""

    @pytest.fixture
    def store(self) -> Any:
        raise NotImplementedError

    @pytest.fixture
    def leases(self) -> RunLeases:
        raise NotImplementedError

    @pytest.fixture
    def lapse(self) -> Callable[[], Awaitable[None]]:
        raise NotImplementedError

    async def test_lease_has_one_holder(self, leases: RunLeases) -> None:
        """The second one gets the first; other runs are free, and the holder itself may take it again."""
        assert await leases.acquire(lease("a")) is None
        assert await leases.acquire(lease("b")) == lease("a").holder
        assert await leases.acquire(lease("b", "other")) is None
        assert await leases.acquire(lease("a")) is None
        assert await leases.find("r") == lease("a")
        assert list(await leases.list()) == [lease("b", "other"), lease("a")]

    async def test_released_lease_is_free(self, leases: RunLeases) -> None:
        """Only its holder can release it."""
        await leases.acquire(lease("a"))
        await leases.release(lease("b"))
        assert await leases.find("r") == lease("a")
        await leases.release(lease("a"))
        assert await leases.find("r") is None
        assert await leases.acquire(lease("b")) is None

    async def test_lapsed_lease_is_listed_and_free(
        self, leases: RunLeases, lapse: Callable[[], Awaitable[None]]
    ) -> None:
        """Until another one takes it, its holder may renew it; afterwards not."""
        await leases.acquire(lease("a"))
        await lapse()
        assert [(one.holder.executor, one.lapsed) for one in await leases.list()] == [("a", True)]
        assert list(await leases.renew([lease("a")])) == [lease("a")]
        assert await leases.find("r") == lease("a")
        await lapse()
        assert await leases.acquire(lease("b")) is None
        assert list(await leases.renew([lease("a")])) == []
        await leases.release(lease("a"))
        assert await leases.find("r") == lease("b")

    async def test_lease_is_replaced_only_if_its_holder_is_the_expected_one(self, leases: RunLeases) -> None:
        """Of two that take over from one holder, one succeeds."""
        await leases.acquire(lease("a"))
        assert await leases.acquire(lease("b"), lease("a").holder) is None
        assert await leases.acquire(lease("c"), lease("a").holder) == lease("b").holder

    async def test_cancellation_is_requested_of_the_holder(self, leases: RunLeases) -> None:
        """A new holder does not inherit the request."""
        held = [lease("a"), lease("a", "other")]

        for one in held:
            await leases.acquire(one)

        assert list(await leases.cancel_requests(held)) == []
        await leases.request_cancel("r")
        await leases.request_cancel("unknown")
        assert list(await leases.cancel_requests(held)) == [lease("a")]
        assert list(await leases.cancel_requests([lease("b")])) == []
        await leases.acquire(lease("b"), lease("a").holder)
        assert list(await leases.cancel_requests([lease("b")])) == []

    async def test_first_commit_takes_the_lease(self, leases: RunLeases, store: Any) -> None:
        """Both are stored or neither: a run id that is taken keeps its lease, that of an erased run is replaced."""
        assert isinstance(store, LeasingStore)
        await leases.acquire(lease("erased"))
        await store.commit_first("r", [], state("r"), lease("a"))
        assert await leases.find("r") == lease("a")
        assert (await store.load("r")).version == 1

        with pytest.raises(RunExists):
            await store.commit_first("r", [], state("r"), lease("b"))

        assert await leases.find("r") == lease("a")

    async def test_run_of_a_live_owner_can_not_be_forgotten(
        self, leases: RunLeases, store: Any, lapse: Callable[[], Awaitable[None]]
    ) -> None:
        """Not with its conversation either. It can when it ended, or when its owner is dead."""
        await store.commit_first("r", [], state("r"), lease("a"))

        for is_conversation in (False, True):
            with pytest.raises(RunActive, match=r"'r' belongs to process 7 on h: .*cancel it first") as caught:
                await store.forget("r", conversation=is_conversation)

            assert (caught.value.run_id, caught.value.owner) == ("r", "process 7 on h")

        assert (await store.load("r")).version == 1
        assert await leases.find("r") == lease("a")
        await lapse()
        assert await store.forget("r") == 1
        assert await leases.find("r") is None

    async def test_run_that_ended_can_be_forgotten_before_its_lease_is_released(self, store: Any) -> None:
        """And a run whose process on this host is gone, before the lease lapses."""
        await store.commit_first("r", [], replace(state("r"), next=Finished(stop_reason="completed")), lease("a"))
        assert await store.forget("r") == 1
        gone = replace(this_holder("a"), pid=2**22 + 1)
        await store.commit_first("r", [], state("r"), Lease(run_id="r", holder=gone))
        assert await store.forget("r") == 1
