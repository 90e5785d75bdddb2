"""The leases of an SQLite store: the table `leases`."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TypeVar

from crew.errors import DefinitionError, StoreError
from crew.runs.leases import Lease, LeaseHolder
from crew.store.rows import UNFINISHED, check_no_owner
from crew.store.sqlite_file import FileLock, file_problem, transaction

Value = TypeVar("Value")


class SQLiteLeases:
    """Implements `RunLeases` on the connection of a store, which `lock` guards."""

    def __init__(
        self, file: sqlite3.Connection, lock: FileLock, path: str, *, seconds: float, clock: Callable[[], float]
    ) -> None:
        if not (isinstance(seconds, int | float) and 0 < seconds < float("inf")):
            raise DefinitionError("SQLiteStore", f"lease_seconds must be a number above 0, not {seconds!r}")

        self._file, self._lock, self._path, self._seconds, self._clock = file, lock, path, seconds, clock

    @property
    def seconds(self) -> float:
        """How long a lease lasts."""
        return self._seconds

    async def acquire(self, lease: Lease, replaces: LeaseHolder | None = None) -> LeaseHolder | None:
        """Take a lease that is free, lapsed, its own, or held by `replaces`; else return the holder."""
        return await self._call(lease.run_id, lambda: self._acquire(lease, replaces))

    async def renew(self, leases: Sequence[Lease]) -> Sequence[Lease]:
        """Extend these leases; returns those that another holder has not taken."""
        return await self._call("", lambda: self._renew(leases))

    async def release(self, lease: Lease) -> None:
        """End this lease, unless another holder has it."""
        await self._call(lease.run_id, lambda: self._release(lease))

    async def find(self, run_id: str) -> Lease | None:
        """The lease of a run, also a lapsed one."""
        return await self._call(run_id, lambda: self._find(run_id))

    async def list(self) -> Sequence[Lease]:
        """All leases that were not released."""
        return await self._call("", lambda: [*self._select("ORDER BY run_id")])

    async def request_cancel(self, run_id: str) -> None:
        """Ask the holder of this run's lease to cancel the run."""
        await self._call(run_id, lambda: self._request_cancel(run_id))

    async def wait_for_requests(self, seconds: float) -> None:
        """Wait so long: other processes can't notify this one."""
        await asyncio.sleep(seconds)

    async def cancel_requests(self, leases: Sequence[Lease]) -> Sequence[Lease]:
        """Those of these leases whose run should be cancelled."""
        requested = await self._call("", lambda: [*self._select("WHERE cancel")])
        keys = {_key(lease) for lease in requested}
        return [lease for lease in leases if _key(lease) in keys]

    # ------------------------------------------------------------------------------------------ on a thread

    async def _call(self, run_id: str, work: Callable[[], Value]) -> Value:
        return await asyncio.to_thread(self._call_locked, run_id, work)

    def _call_locked(self, run_id: str, work: Callable[[], Value]) -> Value:
        try:
            with self._lock:
                return work()
        except Exception as error:  # a damaged file can hold anything
            text = f"The lease of run {run_id!r}" if run_id else "The leases"
            problem = file_problem(error)
            raise StoreError(run_id, f"{text} in {self._path!r} can't be read or written: {problem}") from error

    def _transaction(self) -> AbstractContextManager[None]:
        """A transaction that is not synchronised with the disk: leases need not survive a power cut."""
        return transaction(self._file, is_synchronised=False)

    def _select(self, condition: str, *values: object) -> Iterator[Lease]:
        now = self._clock()
        rows = self._file.execute(
            f"SELECT run_id, host, pid, started, executor, expires FROM leases {condition}", values
        )

        for run_id, host, pid, started, executor, expires in rows.fetchall():
            holder = LeaseHolder(host=host, pid=pid, started=started, executor=executor)
            yield Lease(run_id=run_id, holder=holder, lapsed=expires <= now)

    def _find(self, run_id: str) -> Lease | None:
        return next(self._select("WHERE run_id = ?", run_id), None)

    def _acquire(self, lease: Lease, replaces: LeaseHolder | None) -> LeaseHolder | None:
        with self._transaction():
            found = self._find(lease.run_id)

            if found is not None and not found.lapsed and found.holder not in (lease.holder, replaces):
                return found.holder

            self.put(lease)

        return None

    def check_no_owner(self, run_ids: Sequence[str]) -> None:
        """Raise `RunActive` if one of these runs is unfinished and its owner lives; in the caller's transaction."""
        unfinished = "SELECT run_id FROM runs WHERE status IN (SELECT value FROM json_each(?))"
        given = "SELECT value FROM json_each(?)"

        for lease in self._select(
            f"WHERE run_id IN ({unfinished}) AND run_id IN ({given})", json.dumps(UNFINISHED), json.dumps(run_ids)
        ):
            check_no_owner(lease)

    def put(self, lease: Lease) -> None:
        """Store a lease in the transaction of the caller; it replaces any other."""
        holder = lease.holder
        self._file.execute(
            "INSERT OR REPLACE INTO leases VALUES (?, ?, ?, ?, ?, ?, 0)",
            (lease.run_id, holder.host, holder.pid, holder.started, holder.executor, self._expiry()),
        )

    def _renew(self, leases: Sequence[Lease]) -> Sequence[Lease]:
        with self._transaction():
            return [
                lease
                for lease in leases
                if self._file.execute(
                    "UPDATE leases SET expires = ? WHERE run_id = ? AND executor = ?", (self._expiry(), *_key(lease))
                ).rowcount
            ]

    def _release(self, lease: Lease) -> None:
        with self._transaction():
            self._file.execute("DELETE FROM leases WHERE run_id = ? AND executor = ?", _key(lease))

    def _request_cancel(self, run_id: str) -> None:
        with self._transaction():
            self._file.execute("UPDATE leases SET cancel = 1 WHERE run_id = ?", (run_id,))

    def _expiry(self) -> float:
        return self._clock() + self._seconds


def _key(lease: Lease) -> tuple[str, str]:
    return lease.run_id, lease.holder.executor
