"""The tables of the SQLite store: created in a new file, and migrated in a file that an earlier release wrote."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path

from crew.errors import StoreError
from crew.store.checksums import row_checksum
from crew.store.rows import metadata_rows
from crew.store.sqlite_file import closing_on_error, copy_to_temporary_file, open_file, open_read_only, use_journal

FIRST_LAYOUT = 4
"""The oldest layout that is migrated; before it, stored files were not promised to last."""

_LAYOUT_4 = """
CREATE TABLE runs (
  run_id TEXT PRIMARY KEY, conversation_id TEXT NOT NULL, crew TEXT NOT NULL, agent TEXT NOT NULL,
  status TEXT NOT NULL, version INTEGER NOT NULL, path TEXT NOT NULL, inherited INTEGER NOT NULL,
  messages INTEGER NOT NULL, parent_run TEXT NOT NULL, created REAL NOT NULL, updated REAL NOT NULL,
  metadata TEXT NOT NULL, state BLOB NOT NULL
);
CREATE INDEX runs_by_parent ON runs (parent_run);
CREATE INDEX runs_in_conversation ON runs (conversation_id);
CREATE INDEX runs_by_conversation ON runs (conversation_id, created);
CREATE INDEX runs_by_time ON runs (updated, run_id);
CREATE TABLE paths (path TEXT PRIMARY KEY, parent TEXT NOT NULL, fork INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE messages (
  path TEXT NOT NULL, position INTEGER NOT NULL, message BLOB NOT NULL, PRIMARY KEY (path, position)
) WITHOUT ROWID;
CREATE TABLE events (
  run_id TEXT NOT NULL, version INTEGER NOT NULL, number INTEGER NOT NULL, kind TEXT NOT NULL, at REAL NOT NULL,
  event BLOB NOT NULL, PRIMARY KEY (run_id, version, number)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS leases (
  run_id TEXT PRIMARY KEY, host TEXT NOT NULL, pid INTEGER NOT NULL, started TEXT NOT NULL, executor TEXT NOT NULL,
  expires REAL NOT NULL, cancel INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
"""


def _create_layout_4(file: sqlite3.Connection) -> None:
    _execute(file, _LAYOUT_4)


def _add_metadata(file: sqlite3.Connection) -> None:
    """Layout 5: the metadata of runs by key and value, to find runs by them."""
    _execute(
        file,
        """
        CREATE TABLE metadata (
          key TEXT NOT NULL, value TEXT NOT NULL, run_id TEXT NOT NULL, PRIMARY KEY (key, value, run_id)
        ) WITHOUT ROWID;
        CREATE INDEX metadata_of_run ON metadata (run_id);
        """,
    )

    for run_id, metadata in file.execute("SELECT run_id, metadata FROM runs WHERE metadata != '{}'").fetchall():
        rows = ((key, value, run_id) for key, value in metadata_rows(json.loads(metadata)))
        file.executemany("INSERT INTO metadata VALUES (?, ?, ?)", rows)


def _add_effects(file: sqlite3.Connection) -> None:
    """Layout 6: the outcomes of effects that other processes perform."""
    _execute(
        file,
        """
        CREATE TABLE effects (
          run_id TEXT NOT NULL, key TEXT NOT NULL, data BLOB NOT NULL, PRIMARY KEY (run_id, key)
        ) WITHOUT ROWID;
        """,
    )


def _add_checksums(file: sqlite3.Connection) -> None:
    """Layout 7: a checksum of each row.

    `newest_events` is the number of events in the newest commit; `has_gaps` is whether a commit had no event.
    """
    _execute(
        file,
        """
        ALTER TABLE messages ADD COLUMN checksum INTEGER;
        ALTER TABLE events ADD COLUMN checksum INTEGER;
        ALTER TABLE paths ADD COLUMN checksum INTEGER;
        ALTER TABLE runs ADD COLUMN newest_events INTEGER NOT NULL DEFAULT 0;
        ALTER TABLE runs ADD COLUMN has_gaps INTEGER NOT NULL DEFAULT 1;
        ALTER TABLE runs ADD COLUMN state_checksum INTEGER;
        ALTER TABLE runs ADD COLUMN checksum INTEGER;
        """,
    )
    write_checksums(file)


def write_checksums(file: sqlite3.Connection) -> None:
    """Store the checksum of each row as it is."""
    file.create_function("row_checksum", -1, row_checksum, deterministic=True)
    _execute(
        file,
        """
        UPDATE messages SET checksum = row_checksum(path, position, message);
        UPDATE events SET checksum = row_checksum(run_id, version, number, kind, at, event);
        UPDATE paths SET checksum = row_checksum(path, parent, fork);
        UPDATE runs SET state_checksum = row_checksum(run_id, version, state);
        UPDATE runs SET checksum = row_checksum(run_id, conversation_id, crew, agent, status, version, messages,
          created, updated, metadata, path, inherited, parent_run, newest_events, has_gaps, state_checksum);
        """,
    )


MIGRATIONS: tuple[Callable[[sqlite3.Connection], None], ...] = (
    _create_layout_4,
    _add_metadata,
    _add_effects,
    _add_checksums,
)
"""Each leads from one layout to the next, the first one from an empty file. Released ones never change."""

LAYOUT = FIRST_LAYOUT + len(MIGRATIONS) - 1
"""The layout that this release reads and writes; `PRAGMA user_version` of a file."""


def prepare_schema(file: sqlite3.Connection, path: str) -> None:
    """Create or migrate the tables, all or nothing. Other processes wait meanwhile."""
    if read_layout(file, path) == LAYOUT:
        return

    file.execute("BEGIN IMMEDIATE")

    try:
        layout = read_layout(file, path)  # another process may have migrated the file

        for migrate in MIGRATIONS[max(0, layout - FIRST_LAYOUT + 1) :]:
            migrate(file)

        file.execute(f"PRAGMA user_version = {LAYOUT}")
        file.execute("COMMIT")
    finally:
        if file.in_transaction:
            file.execute("ROLLBACK")


def open_prepared(path: str | Path, *, read_only: bool) -> sqlite3.Connection:
    """Open a file with the tables of this release. A file of another program is not changed."""
    file = open_read_only(path) if read_only else open_file(path)

    with closing_on_error(file):
        layout = read_layout(file, str(path))

        if not read_only:
            use_journal(file)
            prepare_schema(file, str(path))
        elif layout == 0:
            raise StoreError("", f"The store {str(path)!r} is empty: it holds no runs.")
        elif layout < LAYOUT:
            file = copy_to_temporary_file(file)

            with closing_on_error(file):
                prepare_schema(file, str(path))
                file.execute("PRAGMA query_only=ON")  # a change would be lost with the copy

    return file


def read_layout(file: sqlite3.Connection, path: str) -> int:
    """The layout of a file, 0 if it is empty; `StoreError` for a file that this release can't migrate."""
    # One statement, because another process may create the tables at this moment.
    found = "(SELECT json_group_array(name) FROM sqlite_master WHERE type = 'table')"
    layout, names = file.execute(f"SELECT user_version, {found} FROM pragma_user_version").fetchone()
    tables = json.loads(names)

    if not tables and layout == 0:
        return 0

    if layout > LAYOUT:
        raise StoreError(
            "",
            f"The store {path!r} has layout {layout}; this release knows layouts up to {LAYOUT}. Use the release that "
            "wrote it or a later one, or another file.",
        )

    if "runs" not in tables:
        raise StoreError("", f"{path!r} is an SQLite file of another program, not a store of runs. Use another file.")

    if layout < FIRST_LAYOUT:
        raise StoreError(
            "",
            f"The store {path!r} has a layout below {FIRST_LAYOUT}, which this release can't migrate. Finish its runs "
            "with the release that wrote them, or use another file.",
        )

    return int(layout)


def _execute(file: sqlite3.Connection, statements: str) -> None:
    """Execute these statements one by one: `executescript` would commit the transaction first."""
    for statement in filter(str.strip, statements.split(";")):
        file.execute(statement)
