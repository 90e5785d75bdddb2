"""The tables of the PostgreSQL store: created and migrated by the first process that needs it."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from crew.errors import StoreError
from crew.store.rows import metadata_rows

_TABLES = """
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
"""


async def _create_tables(connection: Any, schema: str) -> None:
    await connection.execute(_TABLES.replace("{schema}", schema))


async def _add_metadata(connection: Any, schema: str) -> None:
    """The metadata of runs by key and value, to find runs by them."""
    await connection.execute(
        f"""
        CREATE TABLE {schema}.metadata (
          key text COLLATE "C", value text COLLATE "C", run_id text COLLATE "C", PRIMARY KEY (key, value, run_id)
        );
        CREATE INDEX ON {schema}.metadata (run_id);
        """
    )
    stored = await connection.fetch(f"SELECT run_id, metadata FROM {schema}.runs WHERE metadata <> '{{}}'")
    rows = [(*row, run_id) for run_id, metadata in stored for row in metadata_rows(json.loads(metadata))]
    await connection.executemany(f"INSERT INTO {schema}.metadata (key, value, run_id) VALUES ($1, $2, $3)", rows)


async def _add_effects(connection: Any, schema: str) -> None:
    """The outcomes of effects that other processes perform."""
    await connection.execute(
        f"""
        CREATE TABLE {schema}.effects (
          run_id text COLLATE "C", key text COLLATE "C", data bytea NOT NULL, PRIMARY KEY (run_id, key)
        );
        """
    )


MIGRATIONS: tuple[Callable[[Any, str], Awaitable[None]], ...] = (_create_tables, _add_metadata, _add_effects)
"""Each leads from one layout to the next: layout n has the first n. Released ones never change."""

LOCK = 0x63726577
"""The key of the advisory lock, with the hash of the schema."""


async def prepare_schema(connection: Any, schema: str, address: str, *, read_only: bool = False) -> None:
    """Create or migrate the tables. Of several processes that start at once, one does it and the others wait.

    With `read_only`, `StoreError` if that were needed.
    """
    layout = await _layout(connection, schema)

    if layout == len(MIGRATIONS):
        return

    if read_only:
        _check_newer(layout, schema, address)
        has = f"has layout {layout}, which a crew of this release would migrate" if layout else "holds no runs"
        advice = "Run a crew of this release with it first." if layout else "Check the name of the schema."
        raise StoreError(
            "", f"The store {address} {has} in the schema {schema!r}; it is only read, and stays as it is. {advice}"
        )

    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock($1, hashtext($2))", LOCK, schema)
        layout = await _layout(connection, schema)
        _check_newer(layout, schema, address)

        if layout == 0:
            # Not IF NOT EXISTS alone: it needs the right to create a schema even if the schema exists.
            if not await connection.fetchval("SELECT 1 FROM pg_namespace WHERE nspname = $1", schema):
                await connection.execute(f"CREATE SCHEMA {schema}")

            await connection.execute(f"CREATE TABLE {schema}.layout (version integer NOT NULL)")
            await connection.execute(f"INSERT INTO {schema}.layout VALUES (0)")

        for migrate in MIGRATIONS[layout:]:
            await migrate(connection, schema)

        await connection.execute(f"UPDATE {schema}.layout SET version = $1", len(MIGRATIONS))


def _check_newer(layout: int, schema: str, address: str) -> None:
    if layout > len(MIGRATIONS):
        raise StoreError(
            "",
            f"The store {address} has layout {layout} in the schema {schema!r}; this release knows layouts up to "
            f"{len(MIGRATIONS)}. Use the release that wrote it or a later one, or another schema.",
        )


async def _layout(connection: Any, schema: str) -> int:
    # Not `to_regclass`: it can answer from a cache that is older than the lock.
    if not await connection.fetchval("SELECT 1 FROM pg_tables WHERE schemaname = $1 AND tablename = 'layout'", schema):
        return 0

    layout: int = await connection.fetchval(f"SELECT version FROM {schema}.layout")
    return layout
