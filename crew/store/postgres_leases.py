"""The leases of a PostgreSQL store: the table `leases`, by the clock of the server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from crew.errors import DefinitionError
from crew.runs.leases import Lease, LeaseHolder
from crew.store.postgres_server import PostgresServer

# Each statement turns off the wait for the disk, for itself: leases need not survive a crash of the server's machine.
_QUICK = "set_config('synchronous_commit', 'off', true) AS quick"

_ACQUIRE = f"""
INSERT INTO {{schema}}.leases AS l (run_id, host, pid, started, executor, expires)
SELECT $1, $2, $3::integer, $4, $5, clock_timestamp() + make_interval(secs => $6) FROM {_QUICK}
ON CONFLICT (run_id) DO UPDATE SET
  host = excluded.host, pid = excluded.pid, started = excluded.started, executor = excluded.executor,
  expires = excluded.expires, cancel = false
WHERE l.expires <= clock_timestamp() OR (l.host, l.pid, l.started, l.executor) IN (
  ($2, $3::integer, $4, $5), ($7::text, $8::integer, $9::text, $10::text)
)
RETURNING run_id
"""

_RENEW = f"""
UPDATE {{schema}}.leases l SET expires = clock_timestamp() + make_interval(secs => $3)
FROM {_QUICK}, unnest($1::text[], $2::text[]) AS own (run_id, executor)
WHERE l.run_id = own.run_id AND l.executor = own.executor RETURNING l.run_id, l.executor
"""

_RELEASE = f"DELETE FROM {{schema}}.leases l USING {_QUICK} WHERE l.run_id = $1 AND l.executor = $2"

_REQUEST_CANCEL = f"""
WITH asked AS (
  UPDATE {{schema}}.leases l SET cancel = true FROM {_QUICK} WHERE l.run_id = $1 RETURNING l.run_id
)
SELECT pg_notify('{{schema}}_cancels', run_id) FROM asked
"""

FIND_LEASES = "SELECT run_id, host, pid, started, executor, expires <= clock_timestamp() AS lapsed FROM {schema}.leases"
_REQUESTED = "SELECT run_id, executor FROM {schema}.leases WHERE cancel AND run_id = ANY($1)"


class PostgresLeases:
    """Implements `RunLeases` on the pool of a store."""

    def __init__(self, server: PostgresServer, *, seconds: float) -> None:
        if not (isinstance(seconds, int | float) and 0 < seconds < float("inf")):
            raise DefinitionError("PostgresStore", f"lease_seconds must be a number above 0, not {seconds!r}")

        self._server, self._seconds = server, seconds

    @property
    def seconds(self) -> float:
        """How long a lease lasts."""
        return self._seconds

    def first_values(self, lease: Lease | None) -> tuple[object, ...]:
        """The columns of the lease that the first commit of a run stores."""
        return (None,) * 5 if lease is None else (*_holder_values(lease.holder), self._seconds)

    async def acquire(self, lease: Lease, replaces: LeaseHolder | None = None) -> LeaseHolder | None:
        """Take a lease that is free, lapsed, its own, or held by `replaces`; else return the holder."""
        replaced = (None,) * 4 if replaces is None else _holder_values(replaces)
        values = (lease.run_id, *_holder_values(lease.holder), self._seconds, *replaced)

        while not await self._fetch(_ACQUIRE, *values):
            found = await self.find(lease.run_id)

            if found is not None:
                return found.holder

        return None

    async def renew(self, leases: Sequence[Lease]) -> Sequence[Lease]:
        """Extend these leases; returns those that another holder has not taken."""
        return _chosen(leases, await self._fetch(_RENEW, *_keys(leases), self._seconds))

    async def release(self, lease: Lease) -> None:
        """End this lease, unless another holder has it."""
        await self._fetch(_RELEASE, lease.run_id, lease.holder.executor)

    async def find(self, run_id: str) -> Lease | None:
        """The lease of a run, also a lapsed one."""
        found = await self._fetch(f"{FIND_LEASES} WHERE run_id = $1", run_id)
        return read_lease(found[0]) if found else None

    async def list(self) -> Sequence[Lease]:
        """All leases that were not released."""
        return [read_lease(row) for row in await self._fetch(f"{FIND_LEASES} ORDER BY run_id")]

    async def request_cancel(self, run_id: str) -> None:
        """Ask the holder of this run's lease to cancel the run; ends `wait_for_requests` in all processes."""
        await self._fetch(_REQUEST_CANCEL, run_id)

    async def wait_for_requests(self, seconds: float) -> None:
        """Wait so long, or until any process has requested a cancellation."""
        await self._server.run(self._server.wait_for_cancels(seconds))

    async def cancel_requests(self, leases: Sequence[Lease]) -> Sequence[Lease]:
        """Those of these leases whose run should be cancelled."""
        return _chosen(leases, await self._fetch(_REQUESTED, [lease.run_id for lease in leases]))

    async def _fetch(self, statement: str, *values: object) -> Sequence[Any]:
        return await self._server.run(self._server.fetch(statement, *values))


def _holder_values(holder: LeaseHolder) -> tuple[object, ...]:
    return holder.host, holder.pid, holder.started, holder.executor


def read_lease(row: Any) -> Lease:
    """The lease in a row of `FIND_LEASES`."""
    run_id, host, pid, started, executor, lapsed = row
    holder = LeaseHolder(host=host, pid=pid, started=started, executor=executor)
    return Lease(run_id=run_id, holder=holder, lapsed=lapsed)


def _keys(leases: Sequence[Lease]) -> tuple[Sequence[str], Sequence[str]]:
    return [lease.run_id for lease in leases], [lease.holder.executor for lease in leases]


def _chosen(leases: Sequence[Lease], rows: Sequence[Any]) -> Sequence[Lease]:
    """The leases whose run and executor are in these rows."""
    keys = {(row["run_id"], row["executor"]) for row in rows}
    return [lease for lease in leases if (lease.run_id, lease.holder.executor) in keys]
