"""The outcomes of effects in a PostgreSQL store: the table `effects`."""

from __future__ import annotations

from crew.store.postgres_server import PostgresServer

_PUT = """
WITH added AS (
  INSERT INTO {schema}.effects VALUES ($1, $2, $3) ON CONFLICT DO NOTHING RETURNING data
)
SELECT data FROM added UNION ALL SELECT data FROM {schema}.effects WHERE run_id = $1 AND key = $2 LIMIT 1
"""
_GET = "SELECT data FROM {schema}.effects WHERE run_id = $1 AND key = $2"


class PostgresEffects:
    """Implements `EffectRecords` on the pool of a store."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server

    async def put(self, run_id: str, key: str, data: bytes) -> bytes:
        """Store the outcome of an effect, unless it has one; returns the stored one."""
        rows = await self._server.run(self._server.fetch(_PUT, run_id, key, data))
        return bytes(rows[0]["data"]) if rows else await self.get(run_id, key) or data

    async def get(self, run_id: str, key: str) -> bytes | None:
        """The stored outcome of an effect."""
        rows = await self._server.run(self._server.fetch(_GET, run_id, key))
        return bytes(rows[0]["data"]) if rows else None
