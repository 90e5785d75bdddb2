"""Runs in an SQLite file: they survive the process, and a step costs the same however long the conversation is."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from crew.errors import ConversationBusy, RunConflict, RunExists, StoreError, UnknownRun, describe
from crew.messages import Message
from crew.runs.events import Event, RunFailed
from crew.runs.interfaces import Cursor, FoundMessage, RunPage, RunRecord, StoredEvent, StoredRun, StoredRunInfo
from crew.runs.state import Finished, RunState, run_status
from crew.store.codec import encode_messages
from crew.store.rows import EventRow, NewRows, Written, WrittenRuns, check_page, event_rows, new_rows
from crew.store.sqlite_leases import SQLiteLeases
from crew.store.sqlite_reader import SQLiteReader

Value = TypeVar("Value")

LAYOUT = 4
"""The version of the tables. Files with another version are refused."""

_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS runs (
  run_id TEXT PRIMARY KEY, conversation_id TEXT NOT NULL, crew TEXT NOT NULL, agent TEXT NOT NULL,
  status TEXT NOT NULL, version INTEGER NOT NULL, path TEXT NOT NULL, inherited INTEGER NOT NULL,
  messages INTEGER NOT NULL, parent_run TEXT NOT NULL, created REAL NOT NULL, updated REAL NOT NULL,
  metadata TEXT NOT NULL, state BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS runs_by_parent ON runs (parent_run);
CREATE INDEX IF NOT EXISTS runs_in_conversation ON runs (conversation_id);
CREATE INDEX IF NOT EXISTS runs_by_conversation ON runs (conversation_id, created);
CREATE INDEX IF NOT EXISTS runs_by_time ON runs (updated, run_id);
CREATE TABLE IF NOT EXISTS paths (path TEXT PRIMARY KEY, parent TEXT NOT NULL, fork INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS messages (
  path TEXT NOT NULL, position INTEGER NOT NULL, message BLOB NOT NULL, PRIMARY KEY (path, position)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS events (
  run_id TEXT NOT NULL, version INTEGER NOT NULL, number INTEGER NOT NULL, kind TEXT NOT NULL, at REAL NOT NULL,
  event BLOB NOT NULL, PRIMARY KEY (run_id, version, number)
) WITHOUT ROWID;
PRAGMA user_version = {LAYOUT};
"""


class SQLiteStore:
    """Stores every run with its messages and events; finished runs can't be resumed.

    A commit is one transaction. A message is written once: a run that continues a finished one appends to its messages
    (its *path*), a run that continues another state begins a path that forks from it, and each branch has its own.
    A process that stops renewing the lease of its run loses it after `lease_seconds`, by `clock`.
    """

    def __init__(
        self, path: str | Path, *, lease_seconds: float = 15.0, clock: Callable[[], float] = time.time
    ) -> None:
        self._lock, self._path = threading.Lock(), str(path)
        self._written = WrittenRuns()

        try:
            _create_private(path)
            self._file = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=10)
            self._reader = SQLiteReader(self._file)
            self._file.execute("PRAGMA journal_mode=WAL")
            self._check_layout()
            self._file.execute("PRAGMA secure_delete=ON")
            self._file.executescript(_SCHEMA)
            self._leases = SQLiteLeases(self._file, self._lock, seconds=lease_seconds, clock=clock)
        except (sqlite3.Error, OSError) as error:
            raise StoreError("", f"The store {self._path!r} can't be opened: {error}.") from error

    async def commit(self, run_id: str, version: int, events: Sequence[Event], state: RunState) -> None:
        """Write the step in one transaction."""
        await asyncio.to_thread(self._commit, run_id, version, events, state)

    async def append_events(self, run_id: str, version: int, events: Sequence[Event]) -> None:
        """Append events to the newest commit; a run that failed gets the status `failed`."""
        await self._read(lambda: self._append(run_id, version, events), run_id)

    async def load(self, run_id: str) -> StoredRun:
        """The newest state, with its whole transcript."""
        return await asyncio.to_thread(self._load, run_id)

    async def last_turn(self, conversation_id: str) -> StoredRun | None:
        """The newest run of a conversation, with the messages that its state refers to."""
        return await self._read(lambda: self._reader.last_turn(conversation_id))

    async def runs(
        self,
        *,
        crew: str | None = None,
        status: str | None = None,
        conversation: str | None = None,
        since: float | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> RunPage:
        """The runs that match, newest first, a page of them."""
        check_page(status, limit, cursor)
        conditions = {
            "crew = ?": crew,
            "status = ?": status,
            "conversation_id = ?": conversation,
            "updated >= ?": since,
        }
        return await self._read(lambda: self._reader.runs(conditions, limit, cursor))

    async def run(self, run_id: str) -> RunRecord:
        """A run with its newest state, also a finished one."""
        return await self._read(lambda: self._reader.run(run_id), run_id)

    async def events(self, run_id: str, after: Cursor | None = None, limit: int = 1_000) -> tuple[StoredEvent, ...]:
        """The stored events of a run after a cursor, in order."""
        return await self._read(lambda: self._reader.events(run_id, after, limit), run_id)

    async def transcript(self, run_id: str) -> tuple[Message, ...]:
        """Every message of a run, or of a conversation."""
        return await self._read(lambda: self._reader.transcript(run_id), run_id)

    async def conversation(self, conversation_id: str) -> tuple[StoredRunInfo, ...]:
        """The runs of a conversation, oldest first."""
        return await self._read(lambda: self._reader.conversation(conversation_id))

    async def search(self, words: str, *, limit: int = 20) -> tuple[FoundMessage, ...]:
        """The messages that contain all these words, newest first; the first search builds an index."""
        return await self._read(lambda: self._reader.search(words, limit))

    async def forget(self, id: str) -> int:
        """Erase a run or a conversation, also from the bytes of the file; the number of runs erased."""
        return await self._read(lambda: self._forget(id), id)

    async def _read(self, work: Callable[[], Value], run_id: str = "") -> Value:
        return await asyncio.to_thread(self._call, work, run_id)

    def _call(self, work: Callable[[], Value], run_id: str) -> Value:
        try:
            with self._lock:
                return work()
        except StoreError as error:
            if isinstance(error, UnknownRun) or error.run_id:
                raise

            raise StoreError(run_id, f"{self._path!r} can't be read: {error}") from error
        except Exception as error:  # a damaged file can hold anything
            raise StoreError(run_id, f"{self._path!r} can't be read: {describe(error)}") from error

    def _forget(self, id: str) -> int:
        with self._file:
            self._file.execute("BEGIN IMMEDIATE")
            count = self._reader.forget(id)
            self._file.execute("COMMIT")

        # Freed pages are overwritten; the journal still has them until it is truncated.
        self._file.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._written.clear()
        return count

    def leases(self) -> SQLiteLeases:
        """The leases of the runs in this file: each run under way has one owner among all processes."""
        return self._leases

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __del__(self) -> None:
        # A store that was not closed is closed with its last reference, as files are.
        try:
            self._file.close()
        except AttributeError:
            pass  # opening it had failed

    def _check_layout(self) -> None:
        layout = self._file.execute("PRAGMA user_version").fetchone()[0]
        has_tables = self._file.execute("SELECT 1 FROM sqlite_master WHERE name = 'runs'").fetchone() is not None

        if has_tables and layout != LAYOUT:
            raise StoreError(
                "",
                f"The store {self._path!r} has layout {layout or 'below 4'}; this release reads only layout {LAYOUT}. "
                "Finish its runs with the release that wrote them, or use another file.",
            )

    # ------------------------------------------------------------------------------------------ writing

    def _commit(self, run_id: str, version: int, events: Sequence[Event], state: RunState) -> None:
        try:
            with self._lock, self._file:
                self._file.execute("BEGIN IMMEDIATE")
                written, rows = self._write(run_id, version, events, state)
                self._file.execute("COMMIT")
                self._written.record_commit(written, rows, state)
        except sqlite3.Error as error:
            raise StoreError(run_id, f"Run {run_id!r} could not be stored in {self._path!r}: {error}.") from error

    def _append(self, run_id: str, version: int, events: Sequence[Event]) -> None:
        with self._file:
            self._file.execute("BEGIN IMMEDIATE")
            row = self._file.execute("SELECT version FROM runs WHERE run_id = ?", (run_id,)).fetchone()

            if row is not None and row[0] == version:
                [first] = self._file.execute(
                    "SELECT COALESCE(MAX(number) + 1, 0) FROM events WHERE run_id = ? AND version = ?",
                    (run_id, version),
                ).fetchone()
                self._insert_events(run_id, version, event_rows(events, first))

                if any(isinstance(event, RunFailed) and event.run_id == run_id for event in events):
                    self._file.execute("UPDATE runs SET status = 'failed' WHERE run_id = ?", (run_id,))

            self._file.execute("COMMIT")

    def _insert_events(self, run_id: str, version: int, rows: Sequence[EventRow]) -> None:
        self._file.executemany(
            "INSERT INTO events VALUES (?, ?, ?, ?, ?, ?)", ((run_id, version, *row) for row in rows)
        )

    def _write(self, run_id: str, version: int, events: Sequence[Event], state: RunState) -> tuple[Written, NewRows]:
        row = self._file.execute("SELECT version, path FROM runs WHERE run_id = ?", (run_id,)).fetchone()

        if version == 0 and row is not None:
            raise RunExists(run_id)

        if version and (row is None or row[0] != version):
            raise RunConflict(run_id, version, row[0] if row else 0)

        if row is None:
            self._check_turn(state)
            path, written = self._begin(state)
        else:
            path, written = row[1], self._written.find(run_id, version) or self._find_written(run_id, version)

        rows = new_rows(written, events, state)
        self._file.executemany(
            "INSERT INTO messages VALUES (?, ?, ?)",
            ((path if name == run_id else name, position, data) for name, position, data in rows.messages),
        )
        self._insert_events(run_id, version + 1, rows.events)
        self._file.execute(
            "INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (run_id) DO UPDATE SET "
            "agent = excluded.agent, status = excluded.status, version = excluded.version, "
            "messages = excluded.messages, updated = excluded.updated, state = excluded.state",
            (
                run_id,
                state.conversation_id,
                state.crew,
                state.agent,
                run_status(state),
                version + 1,
                path,
                written.next_positions.get(run_id, 0),  # at the first commit: where the messages of this run begin
                len(state.transcript),
                state.parent_run,
                state.last_event_at,
                state.last_event_at,
                json.dumps(state.metadata),
                rows.state,
            ),
        )
        return written, rows

    def _check_turn(self, state: RunState) -> None:
        """Raise `ConversationBusy` if a run was added to the conversation since this turn loaded it."""
        newest = self._reader.newest_run(state.conversation_id) if state.turn else None

        if newest is not None and newest != state.parent_run:
            raise ConversationBusy(state.conversation_id, newest)

    def _begin(self, state: RunState) -> tuple[str, Written]:
        """Where the messages of a new run are written: after those of the run that it continues, if these are here."""
        inherited, run_id = state.inherited_messages, state.run_id
        parent = self._file.execute(
            "SELECT path, messages, status FROM runs WHERE run_id = ?", (state.parent_run,)
        ).fetchone()

        if parent is None or not inherited or parent[1] < inherited or not self._continues(parent[0], state):
            return run_id, Written(version=0, next_positions={})

        path, _, status = parent
        taken = self._file.execute(
            "SELECT 1 FROM messages WHERE path = ? AND position >= ? LIMIT 1", (path, inherited)
        ).fetchone()

        if taken is not None or status in ("running", "paused", "failed"):
            self._file.execute("INSERT INTO paths VALUES (?, ?, ?)", (run_id, path, inherited))
            path = run_id

        return path, Written(version=0, next_positions={run_id: inherited})

    def _continues(self, path: str, state: RunState) -> bool:
        """Whether the inherited messages are those of this path: a result of another store may have the same run id."""
        if state.turn:
            return True  # it was loaded from here

        position = state.inherited_messages - 1
        stored = self._reader.read_messages(path, position, position + 1)
        return stored == encode_messages(state.transcript[position : position + 1])

    def _find_written(self, run_id: str, version: int) -> Written:
        """What an earlier process stored of this run."""
        below = self._file.execute(
            "SELECT path, MAX(position) + 1 FROM messages WHERE path >= ? AND path < ? GROUP BY path",
            (f"{run_id}/", f"{run_id}0"),
        ).fetchall()
        size = self._file.execute("SELECT messages FROM runs WHERE run_id = ?", (run_id,)).fetchone()[0]
        return Written(version=version, next_positions={**dict(below), run_id: size})

    # ------------------------------------------------------------------------------------------ reading

    def _load(self, run_id: str) -> StoredRun:
        try:
            with self._lock:
                record = self._reader.run(run_id)
        except UnknownRun:
            raise
        except Exception as error:  # a damaged file can hold anything
            raise StoreError(run_id, f"Run {run_id!r} in {self._path!r} can't be loaded: {describe(error)}") from error

        if isinstance(record.state.next, Finished):
            raise UnknownRun(run_id)

        return StoredRun(version=record.info.version, state=record.state)


def _create_private(path: str | Path) -> None:
    """Create the file with access for its owner only; SQLite gives its journal files the same access."""
    if str(path) not in ("", ":memory:"):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
