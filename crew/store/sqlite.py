"""Runs in an SQLite file: they survive the process, and a step costs the same however long the conversation is."""

from __future__ import annotations

import asyncio
import json
import logging
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from pydantic import JsonValue

from crew.errors import ConversationBusy, CrewError, RunConflict, RunExists, StoreError, UnknownRun
from crew.messages import Message
from crew.runs.events import Event, RunFailed
from crew.runs.interfaces import Cursor, FoundMessage, RunPage, RunRecord, StoredEvent, StoredRun, StoredRunInfo
from crew.runs.leases import Lease
from crew.runs.state import Finished, RunState, run_status
from crew.store.checksums import row_checksum
from crew.store.codec import encode_messages
from crew.store.event_waiters import EventWaiters
from crew.store.rows import EventRow, NewRows, Written, WrittenRuns, check_page, event_rows, metadata_rows, new_rows
from crew.store.sqlite_effects import SQLiteEffects
from crew.store.sqlite_file import FileIdentity, FileLock, absolute_path, closing_on_error, file_problem, transaction
from crew.store.sqlite_leases import SQLiteLeases
from crew.store.sqlite_reader import SQLiteReader
from crew.store.sqlite_rows import RUN_COLUMNS, StoredRow
from crew.store.sqlite_schema import open_prepared
from crew.store.sqlite_search import FIRST_KEY

log = logging.getLogger("crew")

Value = TypeVar("Value")

INDEX_PAUSE = 0.25
"""The pause after each batch of the index of the search, for other writers, as a part of the time of the batch."""


class SQLiteStore:
    """Stores every run with its messages and events; finished runs can't be resumed.

    A commit is one transaction. A message is written once: a run that continues a finished one appends to its messages
    (its *path*), a run that continues another state begins a path that forks from it, and each branch has its own.
    A process that stops renewing the lease of its run loses it after `lease_seconds`, by `clock`. With `read_only`, the
    file must exist and is never changed; one of an older release is read from a temporary copy.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        lease_seconds: float = 15.0,
        clock: Callable[[], float] = time.time,
        read_only: bool = False,
    ) -> None:
        self._path = absolute_path(path)
        self._written, self._waiters = WrittenRuns(), EventWaiters()
        self._data_version = 0

        try:
            with closing_on_error(open_prepared(self._path, read_only=read_only)) as self._file:
                self._reader, self._identity = SQLiteReader(self._file), FileIdentity(self._path)
                self._lock = FileLock(self._file, self._path)
                self._effects = SQLiteEffects(self._file, self._lock)
                self._leases = SQLiteLeases(self._file, self._lock, self._path, seconds=lease_seconds, clock=clock)
        except CrewError:
            raise
        except Exception as error:  # a damaged file can hold anything
            raise StoreError("", f"The store {self._path!r} can't be opened: {file_problem(error)}") from error

    @property
    def is_in_memory(self) -> bool:
        """Whether the store has no file, so that no other object can open it."""
        return self._path == ":memory:"

    async def commit(self, run_id: str, version: int, events: Sequence[Event], state: RunState) -> None:
        """Write the step in one transaction."""
        await asyncio.to_thread(self._commit, run_id, version, events, state)
        self._waiters.notify(run_id)

    async def commit_first(self, run_id: str, events: Sequence[Event], state: RunState, lease: Lease) -> None:
        """Write the first step of a run and its lease in one transaction."""
        await asyncio.to_thread(self._commit, run_id, 0, events, state, lease)
        self._waiters.notify(run_id)

    async def append_events(self, run_id: str, version: int, events: Sequence[Event]) -> None:
        """Append events to the newest commit; a run that failed gets the status `failed`."""
        await self._read(lambda: self._append(run_id, version, events), run_id)
        self._waiters.notify(run_id)

    async def wait_for_events(self, run_id: str, after: Cursor | None = None, timeout: float | None = None) -> bool:
        """Wait until the run has a stored event after this cursor; False after `timeout` seconds.

        Commits of this object end the wait at once, those of other processes within 0.2 s.
        """

        async def is_stored() -> bool:
            return await self._read(lambda: self._reader.has_events(run_id, after), run_id)

        return await self._waiters.wait(run_id, is_stored, timeout, poll=lambda: self._read(self._poll, run_id))

    def _poll(self) -> None:
        """Wake all waits if another connection has written to the file since the last call.

        In the thread of the call: a wait that is cancelled here must not hide the change from the others.
        """
        [version] = self._file.execute("PRAGMA data_version").fetchone()

        if version != self._data_version:
            self._data_version = version
            self._waiters.notify_all()

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
        metadata: Mapping[str, JsonValue] | None = None,
    ) -> RunPage:
        """The runs that match, newest first, a page of them."""
        check_page(status, limit, cursor, metadata)
        conditions = {
            "crew = ?": crew,
            "status = ?": status,
            "conversation_id = ?": conversation,
            "updated >= ?": since,
        }
        return await self._read(lambda: self._reader.runs(conditions, limit, cursor, metadata or {}))

    async def info(self, run_id: str) -> StoredRunInfo:
        """The facts of a run, without its state and its messages."""
        return await self._read(lambda: self._reader.info(run_id), run_id)

    async def run(self, run_id: str) -> RunRecord:
        """A run with its newest state, also a finished one."""
        return await self._read(lambda: self._reader.run(run_id), run_id)

    async def events(self, run_id: str, after: Cursor | None = None, limit: int = 1_000) -> tuple[StoredEvent, ...]:
        """The stored events of a run after a cursor, in order."""
        check_page(limit=limit)
        return await self._read(lambda: self._reader.events(run_id, after, limit), run_id)

    async def transcript(self, run_id: str) -> tuple[Message, ...]:
        """Every message of a run, or of a conversation."""
        return await self._read(lambda: self._reader.transcript(run_id), run_id)

    async def conversation(self, conversation_id: str) -> tuple[StoredRunInfo, ...]:
        """The runs of a conversation, oldest first."""
        return await self._read(lambda: self._reader.conversation(conversation_id))

    async def search(self, words: str, *, limit: int = 20) -> tuple[FoundMessage, ...]:
        """The messages that contain all these words, newest first; the first search builds an index."""
        check_page(limit=limit)
        search, start = self._reader.search, FIRST_KEY if words.split() else None

        while start is not None:
            began = time.monotonic()
            start = await self._read(partial(search.index_messages, start))
            await asyncio.sleep(INDEX_PAUSE * (time.monotonic() - began))

        return await self._read(lambda: search.find(words, limit)) if words.split() else ()

    async def forget(self, id: str, *, conversation: bool = False) -> int:
        """Erase a run or a conversation, also from the bytes of the file; the number of runs erased."""
        return await self._read(lambda: self._forget(id, conversation=conversation), id)

    async def _read(self, work: Callable[[], Value], run_id: str = "") -> Value:
        return await asyncio.to_thread(self._call, work, run_id)

    def _call(self, work: Callable[[], Value], run_id: str) -> Value:
        try:
            with self._lock:
                self._identity.check()
                return work()
        except CrewError as error:
            if type(error) is not StoreError or error.run_id:
                raise

            raise StoreError(run_id, f"{self._path!r} can't be read: {error}") from error
        except Exception as error:  # a damaged file can hold anything
            raise StoreError(run_id, f"{self._path!r} can't be read: {file_problem(error)}") from error

    def _forget(self, id: str, *, conversation: bool) -> int:
        with transaction(self._file):
            runs = self._reader.find_erasable(id, is_conversation=conversation)
            self._leases.check_no_owner([run_id for run_id, _, _ in runs])
            self._reader.erase(runs)

        self._written.clear()
        # Freed pages are overwritten; the journal still has them until it is truncated.
        is_busy = self._file.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]

        if is_busy:
            log.warning(
                "%r is erased, but other processes read %r: its journal holds the texts until these processes end.",
                id,
                self._path,
            )

        return len(runs)

    def leases(self) -> SQLiteLeases:
        """The leases of the runs in this file: each run under way has one owner among all processes."""
        return self._leases

    def effects(self) -> SQLiteEffects:
        """The outcomes of effects that other processes perform."""
        return self._effects

    def close(self) -> None:
        """Close the file, when the reads and commits under way are done."""
        self._lock.close()

    # ------------------------------------------------------------------------------------------ writing

    def _commit(
        self, run_id: str, version: int, events: Sequence[Event], state: RunState, lease: Lease | None = None
    ) -> None:
        try:
            with self._lock:
                self._identity.check()

                with transaction(self._file):
                    written, rows = self._write(run_id, version, events, state)

                    if lease is not None:
                        self._leases.put(lease)

                self._written.record_commit(written, rows, state)
        except CrewError as error:
            if type(error) is not StoreError or error.run_id:
                raise

            raise StoreError(run_id, f"Run {run_id!r} could not be stored in {self._path!r}: {error}") from error
        except sqlite3.Error as error:
            text = f"Run {run_id!r} could not be stored in {self._path!r}: {file_problem(error)}"
            raise StoreError(run_id, text) from error

    def _append(self, run_id: str, version: int, events: Sequence[Event]) -> None:
        is_failure = any(isinstance(event, RunFailed) and event.run_id == run_id for event in events)

        with transaction(self._file, is_synchronised=is_failure):
            row = self._reader.find(run_id)

            if row is not None and row.info.version == version:
                [first] = self._file.execute(
                    "SELECT COALESCE(MAX(number) + 1, 0) FROM events WHERE run_id = ? AND version = ?",
                    (run_id, version),
                ).fetchone()
                self._insert_events(run_id, version, event_rows(events, first))

                if is_failure:
                    count = first + len(events)
                    checksum = row_checksum(*row.as_failed(count))
                    self._file.execute(
                        "UPDATE runs SET status = 'failed', newest_events = ?, checksum = ? WHERE run_id = ?",
                        (count, checksum, run_id),
                    )

    def _insert_events(self, run_id: str, version: int, rows: Sequence[EventRow]) -> None:
        full = ((run_id, version, *row) for row in rows)
        self._file.executemany(
            "INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?)", ((*row, row_checksum(*row)) for row in full)
        )

    def _write(self, run_id: str, version: int, events: Sequence[Event], state: RunState) -> tuple[Written, NewRows]:
        row = self._reader.find(run_id)

        if version == 0 and row is not None:
            raise RunExists(run_id)

        if version and (row is None or row.info.version != version):
            raise RunConflict(run_id, version, row.info.version if row else 0)

        if row is None:
            self._check_turn(state)
            path, written = self._begin(state)
            self._file.executemany(
                "INSERT INTO metadata VALUES (?, ?, ?)",
                ((key, value, run_id) for key, value in metadata_rows(state.metadata)),
            )
        else:
            path, written = row.path, self._written.find(run_id, version) or self._find_written(run_id, version)

        rows = new_rows(written, events, state)
        messages = ((path if name == run_id else name, position, data) for name, position, data in rows.messages)
        self._file.executemany(
            "INSERT INTO messages VALUES (?, ?, ?, ?)", ((*one, row_checksum(*one)) for one in messages)
        )
        self._insert_events(run_id, version + 1, rows.events)
        # At the first commit: where the messages of this run begin.
        self._write_run(row, path, state, written.next_positions.get(run_id, 0), rows)
        return written, rows

    def _write_run(self, before: StoredRow | None, path: str, state: RunState, inherited: int, rows: NewRows) -> None:
        """Insert the row of a run, or update it: some columns never change."""
        first = (state.conversation_id, state.crew, float(state.last_event_at), json.dumps(state.metadata))
        conversation_id, crew, created, metadata = first if before is None else before.constants
        version = 1 if before is None else before.info.version + 1
        columns = (
            *(state.run_id, conversation_id, crew, state.agent, run_status(state), version, len(state.transcript)),
            *(created, float(state.last_event_at), metadata, path),
            *((inherited, state.parent_run) if before is None else (before.inherited, before.parent_run)),
            *(len(rows.events), int(not rows.events or (before is not None and before.has_gaps))),
            row_checksum(state.run_id, version, rows.state),
        )
        self._file.execute(
            f"INSERT INTO runs ({RUN_COLUMNS}, state) VALUES ({', '.join('?' * 18)}) "
            "ON CONFLICT (run_id) DO UPDATE SET agent = excluded.agent, status = excluded.status, "
            "version = excluded.version, messages = excluded.messages, updated = excluded.updated, "
            "newest_events = excluded.newest_events, has_gaps = excluded.has_gaps, state = excluded.state, "
            "state_checksum = excluded.state_checksum, checksum = excluded.checksum",
            (*columns, row_checksum(*columns), rows.state),
        )

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
            fork = (run_id, path, inherited)
            self._file.execute("INSERT INTO paths VALUES (?, ?, ?, ?)", (*fork, row_checksum(*fork)))
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
                self._identity.check()
                record = self._reader.run(run_id)
        except UnknownRun:
            raise
        except Exception as error:  # a damaged file can hold anything
            text = f"Run {run_id!r} in {self._path!r} can't be loaded: {file_problem(error)}"
            raise StoreError(run_id, text) from error

        if isinstance(record.state.next, Finished):
            raise UnknownRun(run_id, is_finished=True)

        return StoredRun(version=record.info.version, state=record.state)
