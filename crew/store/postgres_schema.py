"""The tables of the PostgreSQL store: created and migrated by the first process that needs it."""

from __future__ import annotations

from typing import Any

from crew.errors import StoreError

MIGRATIONS = (
    """
    CREATE TABLE {schema}.runs (
      run_id text COLLATE "C" PRIMARY KEY, conversation_id text COLLATE "C" NOT NULL, crew text NOT NULL,
      agent text NOT NULL, status text NOT NULL, version integer NOT NULL, commit_id text NOT NULL,
      path text COLLATE "C" NOT NULL, inherited integer NOT NULL, messages integer NOT NULL,
      parent_run text COLLATE "C" NOT NULL, turn integer NOT NULL, created double precision NOT NULL,
      updated double precision NOT NULL, metadata text NOT NULL, state bytea NOT NULL,
      id bigint GENERATED ALWAYS AS IDENTITY
    );
    CREATE INDEX ON {schema}.runs (parent_run);
    CREATE INDEX ON {schema}.runs (conversation_id, id);
    CREATE UNIQUE INDEX ON {schema}.runs (conversation_id, parent_run) WHERE turn > 0;
    CREATE INDEX ON {schema}.runs (updated, run_id);
    CREATE INDEX ON {schema}.runs (path);
    CREATE TABLE {schema}.paths (
      path text COLLATE "C" PRIMARY KEY, parent text COLLATE "C" NOT NULL, fork integer NOT NULL
    );
    CREATE TABLE {schema}.messages (
      path text COLLATE "C", position integer, message bytea NOT NULL, id bigint GENERATED ALWAYS AS IDENTITY,
      PRIMARY KEY (path, position)
    );
    CREATE INDEX ON {schema}.messages (id);
    CREATE TABLE {schema}.events (
      run_id text COLLATE "C", version integer, number integer, kind text NOT NULL, at double precision NOT NULL,
      event bytea NOT NULL, PRIMARY KEY (run_id, version, number)
    );
    CREATE TABLE {schema}.leases (
      run_id text COLLATE "C" PRIMARY KEY, host text NOT NULL, pid integer NOT NULL, started text NOT NULL,
      executor text NOT NULL, expires timestamptz NOT NULL, cancel boolean NOT NULL DEFAULT false
    );
    """,
)
"""The statements that lead from one layout to the next. Layout n has the first n; released ones never change."""

LOCK = 0x63726577
"""The key of the advisory lock, with the hash of the schema."""


async def prepare_schema(connection: Any, schema: str, address: str) -> None:
    """Create or migrate the tables. Of several processes that start at once, one does it and the others wait."""
    if await _layout(connection, schema) == len(MIGRATIONS):
        return

    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock($1, hashtext($2))", LOCK, schema)
        layout = await _layout(connection, schema)

        if layout > len(MIGRATIONS):
            raise StoreError(
                "",
                f"The store {address} has layout {layout} in the schema {schema!r}; this release knows layouts up to "
                f"{len(MIGRATIONS)}. Use the release that wrote it or a later one, or another schema.",
            )

        if layout == 0:
            # Not IF NOT EXISTS alone: it needs the right to create a schema even if the schema exists.
            if not await connection.fetchval("SELECT 1 FROM pg_namespace WHERE nspname = $1", schema):
                await connection.execute(f"CREATE SCHEMA {schema}")

            await connection.execute(f"CREATE TABLE {schema}.layout (version integer NOT NULL)")
            await connection.execute(f"INSERT INTO {schema}.layout VALUES (0)")

        for statements in MIGRATIONS[layout:]:
            await connection.execute(statements.replace("{schema}", schema))

        await connection.execute(f"UPDATE {schema}.layout SET version = $1", len(MIGRATIONS))


async def _layout(connection: Any, schema: str) -> int:
    # Not `to_regclass`: it can answer from a cache that is older than the lock.
    if not await connection.fetchval("SELECT 1 FROM pg_tables WHERE schemaname = $1 AND tablename = 'layout'", schema):
        return 0

    layout: int = await connection.fetchval(f"SELECT version FROM {schema}.layout")
    return layout
