"""Runs in an SQLite file: they survive the process, and a step costs the same however long the run is."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import Sequence
from pathlib import Path

from crew.errors import RunConflict, RunExists, StoreError, UnknownRun, describe
from crew.runs.events import Event
from crew.runs.interfaces import StoredRun
from crew.runs.state import Finished, RunState
from crew.store.codec import decode_state, encode_events, encode_messages, encode_state

_SCHEMA = """
CREATE TABLE IF NOT EXISTS runs (
  run_id TEXT PRIMARY KEY, version INTEGER NOT NULL, finished INTEGER NOT NULL,
  messages INTEGER NOT NULL, state BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS messages (
  run_id TEXT NOT NULL, position INTEGER NOT NULL, message BLOB NOT NULL, PRIMARY KEY (run_id, position)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS events (
  run_id TEXT NOT NULL, version INTEGER NOT NULL, events BLOB NOT NULL, PRIMARY KEY (run_id, version)
) WITHOUT ROWID;
"""


class SQLiteStore:
    """Stores every run with its messages and events; finished runs can't be resumed.

    A commit is one transaction. A message is written once, when it is new; the state row holds the rest.
    """

    def __init__(self, path: str | Path) -> None:
        self._lock, self._path = threading.Lock(), str(path)

        try:
            _create_private(path)
            self._file = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=10)
            self._file.execute("PRAGMA journal_mode=WAL")
            self._file.executescript(_SCHEMA)
        except (sqlite3.Error, OSError) as error:
            raise StoreError("", f"The store {self._path!r} can't be opened: {error}.") from error

    async def commit(self, run_id: str, version: int, events: Sequence[Event], state: RunState) -> None:
        """Write the step in one transaction."""
        await asyncio.to_thread(self._commit, run_id, version, events, state)

    async def load(self, run_id: str) -> StoredRun:
        """The newest state, with its whole transcript."""
        return await asyncio.to_thread(self._load, run_id)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __del__(self) -> None:
        # A store that was not closed is closed with its last reference, as files are.
        try:
            self._file.close()
        except AttributeError:
            pass  # opening it had failed

    def _commit(self, run_id: str, version: int, events: Sequence[Event], state: RunState) -> None:
        try:
            with self._lock, self._file:
                self._file.execute("BEGIN IMMEDIATE")
                self._write(run_id, version, events, state)
                self._file.execute("COMMIT")
        except sqlite3.Error as error:
            raise StoreError(run_id, f"Run {run_id!r} could not be stored in {self._path!r}: {error}.") from error

    def _write(self, run_id: str, version: int, events: Sequence[Event], state: RunState) -> None:
        row = self._file.execute("SELECT version, messages FROM runs WHERE run_id = ?", (run_id,)).fetchone()

        if version == 0 and row is not None:
            raise RunExists(run_id)

        if version and (row is None or row[0] != version):
            raise RunConflict(run_id, version, row[0] if row else 0)

        known = row[1] if row else 0
        size = len(state.transcript)
        fresh = zip(range(known, size), encode_messages(state.transcript[known:]), strict=True)
        self._file.executemany("INSERT INTO messages VALUES (?, ?, ?)", ((run_id, at, data) for at, data in fresh))
        self._file.execute("INSERT INTO events VALUES (?, ?, ?)", (run_id, version + 1, encode_events(events)))
        self._file.execute(
            "INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?, ?)",
            (run_id, version + 1, isinstance(state.next, Finished), size, encode_state(state, since=size)),
        )

    def _load(self, run_id: str) -> StoredRun:
        try:
            row, messages = self._read(run_id)

            if row is None:
                raise UnknownRun(run_id)

            version, size, data = row
            state = decode_state(data, messages)

            if len(messages) != size:
                raise StoreError(run_id, f"{size} messages were stored, but {len(messages)} are in the file.")

            return StoredRun(version=version, state=state)
        except UnknownRun:
            raise
        except Exception as error:  # a damaged file can hold anything
            raise StoreError(run_id, f"Run {run_id!r} in {self._path!r} can't be loaded: {describe(error)}") from error

    def _read(self, run_id: str) -> tuple[tuple[int, int, bytes] | None, list[bytes]]:
        """The row of an unfinished run (version, number of messages, state) and its messages."""
        with self._lock:
            row = self._file.execute(
                "SELECT version, messages, state FROM runs WHERE run_id = ? AND NOT finished", (run_id,)
            ).fetchone()
            data = self._file.execute(
                "SELECT message FROM messages WHERE run_id = ? ORDER BY position", (run_id,)
            ).fetchall()
            return row, [message for (message,) in data]


def _create_private(path: str | Path) -> None:
    """Create the file with access for its owner only; SQLite gives its journal files the same access."""
    if str(path) not in ("", ":memory:"):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
