"""Leases of the runs under way: taken, renewed and released; and cancellations that other processes request."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from crew.engine.concurrency import carried_result, carry_errors, wait_until_done
from crew.errors import RunActive, describe
from crew.runs.interfaces import RunStore
from crew.runs.leases import Lease, LeaseHolder, LeasingStore, RunLeases
from crew.runs.processes import is_gone, this_holder

log = logging.getLogger("crew")

Value = TypeVar("Value")

POLL_SECONDS = 0.5
"""How often the holder of a lease looks for requests to cancel its run, unless the store notifies it."""

CANCEL_SECONDS = 15.0
"""How long `cancel` waits for the process that owns the run."""


@dataclass(slots=True, kw_only=True, eq=False)
class HeldLease:
    """A lease that this process holds until `valid_until`, by its own monotonic clock, or until another one took it."""

    lease: Lease
    leases: RunLeases
    monotonic: Callable[[], float]
    request_cancel: Callable[[], None]
    valid_until: float
    is_lost: bool = False

    def is_due(self) -> bool:
        """Whether a third of its time has passed."""
        return self.monotonic() >= self.valid_until - self.leases.seconds * 2 / 3

    async def check(self) -> None:
        """Raise `RunActive` if another process took the run over. A lease that lapsed is renewed first.

        The process may have been stopped, or its event loop blocked, for longer than the lease lasts.
        """
        if self.is_lost or self.monotonic() >= self.valid_until:
            await _renew(self.leases, [self])

        if self.is_lost:
            found = await self.leases.find(self.lease.run_id)
            owner = "another process, which took it over" if found is None else str(found.holder)
            raise RunActive(self.lease.run_id, owner)


async def _renew(leases: RunLeases, held: list[HeldLease]) -> None:
    """Renew these leases. Their time counts from before the request: the store may get it late."""
    valid_until = [one.monotonic() + leases.seconds for one in held]
    kept = {one.run_id for one in await leases.renew([one.lease for one in held])}

    for one, until in zip(held, valid_until, strict=True):
        one.is_lost = one.lease.run_id not in kept
        one.valid_until = one.valid_until if one.is_lost else until


class _Renewal:
    """The one task of an event loop that renews the leases of a store; it exists while a lease is held."""

    def __init__(self, leases: RunLeases) -> None:
        self._leases = leases
        self._held: list[HeldLease] = []
        self._task: asyncio.Task[None] | None = None

    def add(self, held: HeldLease) -> None:
        self._held.append(held)

        if self._task is None or self._task.done():
            # Not in the context of this run: the task may outlive it.
            self._task = asyncio.create_task(self._keep(), name="crew-leases", context=contextvars.Context())

    def remove(self, held: HeldLease) -> asyncio.Task[None] | None:
        """Forget a lease; if it was the last one, returns the task, which ends then."""
        self._held.remove(held)
        task = self._task

        if self._held or task is None:
            return None

        self._task = None
        task.cancel()
        return task

    @property
    def is_empty(self) -> bool:
        return not self._held

    async def _keep(self) -> None:
        seconds = min(POLL_SECONDS, self._leases.seconds / 3)

        while True:
            try:
                await self._leases.wait_for_requests(seconds)
                await self.tick()
            except Exception as error:  # the store boundary: a lease that can't be renewed lapses
                log.warning("The leases of runs can't be renewed: %s", describe(error))
                await asyncio.sleep(seconds)

    async def tick(self) -> None:
        """Renew the leases if one is due, and cancel the runs whose cancellation was requested."""
        held = [*self._held]

        if any(one.is_due() for one in held):
            await _renew(self._leases, held)

        requested = {one.run_id for one in await self._leases.cancel_requests([one.lease for one in held])}

        for one in held:
            if one.lease.run_id in requested and one in self._held:
                one.request_cancel()


_RENEWALS: dict[tuple[asyncio.AbstractEventLoop, int], _Renewal] = {}
"""By event loop and store, while a lease is held: each key is used by the thread of its loop only."""


class LeaseKeeper:
    """Takes the leases of one executor. All executors of an event loop share one task for each store."""

    def __init__(self, store: Callable[[], RunStore], monotonic: Callable[[], float]) -> None:
        self._store, self._monotonic, self._executor = store, monotonic, uuid.uuid4().hex

    @classmethod
    def of_store(cls, store: Callable[[], RunStore], monotonic: Callable[[], float]) -> LeaseKeeper | None:
        """For the store that this function returns, which may be reopened; None if it has no leases."""
        return cls(store, monotonic) if isinstance(store(), LeasingStore) else None

    @property
    def _leases(self) -> RunLeases:
        store = self._store()
        assert isinstance(store, LeasingStore)
        return store.leases()

    @asynccontextmanager
    async def hold(
        self, run_id: str, request_cancel: Callable[[], None], *, is_new: bool = False, take_over: bool = False
    ) -> AsyncIterator[HeldLease]:
        """Hold the lease of a run. Raises `RunActive` if another live process has it, unless `take_over`.

        The lease of a new run is not taken here: the first commit takes it.
        """
        lease, leases = Lease(run_id=run_id, holder=this_holder(self._executor)), self._leases
        now = self._monotonic()

        if not is_new:
            await _finish(_acquire(leases, lease, take_over=take_over))

        held = HeldLease(
            lease=lease,
            leases=leases,
            monotonic=self._monotonic,
            request_cancel=request_cancel,
            valid_until=now + leases.seconds,
        )
        key = (asyncio.get_running_loop(), id(leases))
        renewal = _RENEWALS.setdefault(key, _Renewal(leases))
        renewal.add(held)

        try:
            yield held
        finally:
            task = renewal.remove(held)

            if renewal.is_empty:
                _RENEWALS.pop(key, None)

            # A coroutine that is closed because its loop is gone can't await: its lease lapses.
            if not isinstance(sys.exception(), GeneratorExit):
                await _finish(_release(leases, lease, task))

    async def owner(self, run_id: str) -> LeaseHolder | None:
        """The live owner of a run; None if it has none, or is owned by this executor."""
        found = await self._leases.find(run_id)

        if found is None or found.lapsed or found.holder == this_holder(self._executor) or is_gone(found.holder):
            return None

        return found.holder

    async def cancel_elsewhere(self, run_id: str) -> bool:
        """Ask the owner of a run to cancel it, and wait until it no longer owns the run; False if it has no owner."""
        owner = await self.owner(run_id)

        if owner is None:
            return False

        await self._leases.request_cancel(run_id)
        loop, seconds = asyncio.get_running_loop(), 0.02
        deadline = loop.time() + CANCEL_SECONDS

        while await self.owner(run_id) == owner:
            if loop.time() >= deadline:
                raise RunActive(run_id, f"{owner}, which did not cancel it within {CANCEL_SECONDS:g} s")

            await asyncio.sleep(seconds)
            seconds = min(0.2, seconds * 1.5)

        return True

    async def abandoned(self) -> list[Lease]:
        """The leases whose holder died: they lapsed, or their process is gone."""
        return [lease for lease in await self._leases.list() if lease.lapsed or is_gone(lease.holder)]

    async def discard(self, lease: Lease) -> None:
        """Remove a lease whose run has ended."""
        await self._leases.release(lease)


async def _acquire(leases: RunLeases, lease: Lease, *, take_over: bool) -> None:
    found = await leases.acquire(lease)

    if found is not None and (take_over or is_gone(found)):
        found = await leases.acquire(lease, found)

    if found is not None:
        raise RunActive(lease.run_id, str(found))


async def _release(leases: RunLeases, lease: Lease, task: asyncio.Task[None] | None) -> None:
    if task is not None:
        await asyncio.wait([task])

    try:
        await leases.release(lease)
    except Exception as error:  # the store boundary: the run has ended, and its lease lapses
        log.warning("The lease of run %s can't be released: %s", lease.run_id, describe(error))


async def _finish(work: Coroutine[Any, Any, Value]) -> Value:
    """Finish this work even if the task is cancelled meanwhile; the cancellation is raised at its next `await`."""
    working = asyncio.ensure_future(carry_errors(work))

    if await wait_until_done(working):
        task = asyncio.current_task()
        assert task is not None
        task.uncancel()
        task.cancel()

    return carried_result(working)
