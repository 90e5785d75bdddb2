"""The interface of leases: who owns a run that several processes can reach, and who asks the owner to cancel it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from crew.runs.events import Event
from crew.runs.state import RunState


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseHolder:
    """An executor in a process. `started` identifies the process among all that had its pid on this host."""

    host: str
    pid: int
    started: str
    executor: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The right to drive a run. `lapsed` is whether it was not renewed in time, for a lease that a store returns."""

    run_id: str
    holder: LeaseHolder
    lapsed: bool = False


class RunLeases(Protocol):
    """The leases of a store. A lease ends `seconds` after it was acquired or renewed, by the clock of the store.

    Leases are advice to well-behaved processes. What protects a state is the version of each commit.
    """

    @property
    def seconds(self) -> float: ...

    async def acquire(self, lease: Lease, replaces: LeaseHolder | None = None) -> LeaseHolder | None:
        """Take a lease that is free, lapsed, its own, or held by `replaces`; else return the holder."""

    async def renew(self, leases: Sequence[Lease]) -> Sequence[Lease]:
        """Extend these leases, also lapsed ones; returns those that another holder has not taken."""

    async def release(self, lease: Lease) -> None:
        """End this lease, unless another holder has it."""

    async def find(self, run_id: str) -> Lease | None:
        """The lease of a run, also a lapsed one; None if it was released."""

    async def list(self) -> Sequence[Lease]:
        """All leases that were not released."""

    async def request_cancel(self, run_id: str) -> None:
        """Ask the holder of this run's lease to cancel the run."""

    async def wait_for_requests(self, seconds: float) -> None:
        """Wait so long, or until any process has requested a cancellation, if this store notices that."""

    async def cancel_requests(self, leases: Sequence[Lease]) -> Sequence[Lease]:
        """Those of these leases whose run should be cancelled."""


@runtime_checkable
class LeasingStore(Protocol):
    """Optional for a `RunStore` that several processes can open: gives each run under way one owner."""

    def leases(self) -> RunLeases:
        """The leases of the runs in this store."""

    async def commit_first(self, run_id: str, events: Sequence[Event], state: RunState, lease: Lease) -> None:
        """The first commit of a run together with its lease: both are stored, or neither.

        As `commit` with version 0: `RunExists` if the id is taken, and then the lease of that run stays.
        """
