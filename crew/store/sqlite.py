"""Runs in an SQLite file: they survive the process, and a step costs the same however long the conversation is."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from crew.errors import RunConflict, RunExists, StoreError, UnknownRun, describe
from crew.runs.events import Event
from crew.runs.interfaces import StoredRun
from crew.runs.state import Finished, RunState, run_status
from crew.store.codec import (
    EncodedChildren,
    MessageSection,
    decode_bare_state,
    decode_messages,
    encode_bare_state,
    encode_event,
    encode_messages,
    message_sections,
)

LAYOUT = 4
"""The version of the tables. Files with another version are refused."""

CACHED_RUNS = 10_000

_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS runs (
  run_id TEXT PRIMARY KEY, conversation_id TEXT NOT NULL, crew TEXT NOT NULL, agent TEXT NOT NULL,
  status TEXT NOT NULL, version INTEGER NOT NULL, path TEXT NOT NULL, messages INTEGER NOT NULL,
  created REAL NOT NULL, updated REAL NOT NULL, state BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS runs_by_conversation ON runs (conversation_id, created);
CREATE INDEX IF NOT EXISTS runs_by_time ON runs (updated);
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


class _Written:
    """What is stored of one run: the path of its messages, and the next position of each run and branch in it."""

    __slots__ = ("children", "next_positions", "path", "version")

    def __init__(self, version: int, path: str, next_positions: dict[str, int]) -> None:
        self.version, self.path, self.next_positions = version, path, next_positions
        self.children: EncodedChildren = {}


class SQLiteStore:
    """Stores every run with its messages and events; finished runs can't be resumed.

    A commit is one transaction. A message is written once: a run that continues a finished one appends to its messages
    (its *path*), a run that continues another state begins a path that forks from it, and each branch has its own.
    """

    def __init__(self, path: str | Path) -> None:
        self._lock, self._path = threading.Lock(), str(path)
        self._written: OrderedDict[str, _Written] = OrderedDict()

        try:
            _create_private(path)
            self._file = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=10)
            self._file.execute("PRAGMA journal_mode=WAL")
            self._check_layout()
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
                written = self._write(run_id, version, events, state)
                self._file.execute("COMMIT")
                self._remember(run_id, written, finished=isinstance(state.next, Finished))
        except sqlite3.Error as error:
            raise StoreError(run_id, f"Run {run_id!r} could not be stored in {self._path!r}: {error}.") from error

    def _remember(self, run_id: str, written: _Written, *, finished: bool) -> None:
        self._written.pop(run_id, None)

        if not finished:
            self._written[run_id] = written

            if len(self._written) > CACHED_RUNS:
                self._written.popitem(last=False)

    def _write(self, run_id: str, version: int, events: Sequence[Event], state: RunState) -> _Written:
        row = self._file.execute("SELECT version, path FROM runs WHERE run_id = ?", (run_id,)).fetchone()

        if version == 0 and row is not None:
            raise RunExists(run_id)

        if version and (row is None or row[0] != version):
            raise RunConflict(run_id, version, row[0] if row else 0)

        known = self._written.get(run_id)

        if row is None:
            known = self._begin(state)
        elif known is None or known.version != version:
            known = self._find_written(run_id, version, row[1])

        sections = {section.path: section for section in message_sections(state)}
        positions = self._write_messages(run_id, known, sections)
        self._file.executemany(
            "INSERT INTO events VALUES (?, ?, ?, ?, ?, ?)",
            (
                (run_id, version + 1, number, event.kind, event.at, encode_event(event, sections))
                for number, event in enumerate(events)
            ),
        )
        self._file.execute(
            "INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (run_id) DO UPDATE SET "
            "agent = excluded.agent, status = excluded.status, version = excluded.version, "
            "messages = excluded.messages, updated = excluded.updated, state = excluded.state",
            (
                run_id,
                state.conversation_id,
                state.crew,
                state.agent,
                run_status(state),
                version + 1,
                known.path,
                len(state.transcript),
                state.last_event_at,
                state.last_event_at,
                encode_bare_state(state, known.children),
            ),
        )
        live = {run_id: known.children[run_id] for run_id in _child_ids(state) if run_id in known.children}
        known.version, known.next_positions, known.children = version + 1, positions, live
        return known

    def _write_messages(self, run_id: str, known: _Written, sections: dict[str, MessageSection]) -> dict[str, int]:
        """Insert the messages that are new; the next position of each run and branch."""
        positions: dict[str, int] = {}

        for name, section in sections.items():
            end = section.start + len(section.messages)
            since = known.next_positions.get(name, section.start)
            positions[name] = end

            if since < end:
                path = known.path if name == run_id else name
                fresh = zip(range(since, end), section.encode(since), strict=True)
                self._file.executemany(
                    "INSERT INTO messages VALUES (?, ?, ?)", ((path, at, data) for at, data in fresh)
                )

        return positions

    def _begin(self, state: RunState) -> _Written:
        """Where the messages of a new run are written: after those of the run that it continues, if these are here."""
        inherited, run_id = state.inherited_messages, state.run_id
        parent = self._file.execute(
            "SELECT path, messages, status FROM runs WHERE run_id = ?", (state.parent_run,)
        ).fetchone()

        if parent is None or not inherited or parent[1] < inherited or not self._has_last_inherited(parent[0], state):
            return _Written(0, run_id, {})

        path, _, status = parent
        taken = self._file.execute(
            "SELECT 1 FROM messages WHERE path = ? AND position >= ? LIMIT 1", (path, inherited)
        ).fetchone()

        if taken is not None or status in ("running", "paused"):
            self._file.execute("INSERT INTO paths VALUES (?, ?, ?)", (run_id, path, inherited))
            path = run_id

        return _Written(0, path, {run_id: inherited})

    def _has_last_inherited(self, path: str, state: RunState) -> bool:
        position = state.inherited_messages - 1
        stored = self._read_messages(path, position, position + 1)
        return stored == encode_messages(state.transcript[position : position + 1])

    def _find_written(self, run_id: str, version: int, path: str) -> _Written:
        """What an earlier process stored of this run."""
        below = self._file.execute(
            "SELECT path, MAX(position) + 1 FROM messages WHERE path >= ? AND path < ? GROUP BY path",
            (f"{run_id}/", f"{run_id}0"),
        ).fetchall()
        size = self._file.execute("SELECT messages FROM runs WHERE run_id = ?", (run_id,)).fetchone()[0]
        return _Written(version, path, {**dict(below), run_id: size})

    # ------------------------------------------------------------------------------------------ reading

    def _load(self, run_id: str) -> StoredRun:
        try:
            with self._lock:
                row = self._file.execute(
                    "SELECT version, path, messages, state FROM runs "
                    "WHERE run_id = ? AND status IN ('running', 'paused')",
                    (run_id,),
                ).fetchone()

                if row is None:
                    raise UnknownRun(run_id)

                version, path, size, data = row
                bodies = self._read_tree(run_id, path, size)

            messages = {name: decode_messages(items) for name, items in bodies.items()}
            return StoredRun(version=version, state=decode_bare_state(data, messages))
        except UnknownRun:
            raise
        except Exception as error:  # a damaged file can hold anything
            raise StoreError(run_id, f"Run {run_id!r} in {self._path!r} can't be loaded: {describe(error)}") from error

    def _read_tree(self, run_id: str, path: str, size: int) -> dict[str, list[bytes]]:
        """The messages of a run and of its branches, by run id."""
        bodies = {run_id: self._read_messages(path, 0, size)}
        below: list[tuple[str, bytes]] = self._file.execute(
            "SELECT path, message FROM messages WHERE path >= ? AND path < ? ORDER BY path, position",
            (f"{run_id}/", f"{run_id}0"),
        ).fetchall()

        for name, data in below:
            bodies.setdefault(name, []).append(data)

        return bodies

    def _read_messages(self, path: str, start: int, end: int) -> list[bytes]:
        """The messages of a path from `start` to before `end`, with those of the paths that it forks from."""
        parent: tuple[str, int] | None = self._file.execute(
            "SELECT parent, fork FROM paths WHERE path = ?", (path,)
        ).fetchone()
        older: list[bytes] = []

        if parent is not None and start < parent[1]:
            older = self._read_messages(parent[0], start, min(end, parent[1]))
            start = parent[1]

        rows: list[tuple[Any]] = self._file.execute(
            "SELECT message FROM messages WHERE path = ? AND position >= ? AND position < ? ORDER BY position",
            (path, start, end),
        ).fetchall()
        return [*older, *(message for (message,) in rows)]


def _child_ids(state: RunState) -> Iterator[str]:
    for child in state.children.values():
        yield child.run_id
        yield from _child_ids(child)


def _create_private(path: str | Path) -> None:
    """Create the file with access for its owner only; SQLite gives its journal files the same access."""
    if str(path) not in ("", ":memory:"):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
