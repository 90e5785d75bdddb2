"""Reads runs, events, transcripts and conversations from an SQLite file, searches its messages, and erases runs."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from crew.errors import StoreError, UnknownRun
from crew.messages import Message, Transcript
from crew.runs.interfaces import Cursor, FoundMessage, RunPage, RunRecord, StoredEvent, StoredRun, StoredRunInfo
from crew.store.codec import BareState, decode_bare_state, decode_event, decode_messages
from crew.store.rows import INFO_COLUMNS, continued_error, message_text, page_start, run_info, run_page

SEARCH_SCHEMA = """
CREATE TABLE IF NOT EXISTS indexed (
  id INTEGER PRIMARY KEY, path TEXT NOT NULL, position INTEGER NOT NULL, UNIQUE (path, position)
);
CREATE VIRTUAL TABLE IF NOT EXISTS texts USING fts5 (text, content='', tokenize='trigram');
"""
"""The index of the search. It is filled by the first search, and does not slow down commits."""

MIN_WORD = 3
"""The index knows sequences of three characters; shorter words are only compared."""

MAX_PARAMETERS = 500
"""The parameters of one query; SQLite accepts at least 999."""


Parameters = ParamSpec("Parameters")
Value = TypeVar("Value")


def in_one_snapshot(
    read: Callable[Concatenate[SQLiteReader, Parameters], Value],
) -> Callable[Concatenate[SQLiteReader, Parameters], Value]:
    """Make all queries of a method read the same commit: another process may commit between two queries."""

    @wraps(read)
    def wrapper(self: SQLiteReader, /, *args: Parameters.args, **options: Parameters.kwargs) -> Value:
        with self.snapshot():
            return read(self, *args, **options)

    return wrapper


class SQLiteReader:
    """Reads from a connection. The caller holds the lock of the store."""

    def __init__(self, file: sqlite3.Connection) -> None:
        self._file = file

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """A transaction for reading, unless one is open."""
        if self._file.in_transaction:
            yield
            return

        self._file.execute("BEGIN")

        try:
            yield
        finally:
            self._file.execute("ROLLBACK")

    # ------------------------------------------------------------------------------------------ runs

    def runs(self, conditions: Mapping[str, object], limit: int, cursor: str | None) -> RunPage:
        """A page of the runs that match, newest first; conditions that are None do not count."""
        given: dict[str, object] = {sql: value for sql, value in conditions.items() if value is not None}

        if cursor is not None:
            given["(updated, run_id) < (?, ?)"] = page_start(cursor)

        where = f"WHERE {' AND '.join(given)}" if given else ""
        values = [part for value in given.values() for part in (value if isinstance(value, tuple) else (value,))]
        rows = self._file.execute(
            f"SELECT {INFO_COLUMNS} FROM runs {where} ORDER BY updated DESC, run_id DESC LIMIT ?", (*values, limit + 1)
        ).fetchall()
        return run_page(rows, limit)

    def info(self, run_id: str) -> StoredRunInfo:
        """The facts of a run."""
        row = self._file.execute(f"SELECT {INFO_COLUMNS} FROM runs WHERE run_id = ?", (run_id,)).fetchone()

        if row is None:
            raise UnknownRun(run_id)

        return run_info(row)

    @in_one_snapshot
    def run(self, run_id: str) -> RunRecord:
        """A run with its newest state."""
        info = self.info(run_id)
        path, data = self._file.execute("SELECT path, state FROM runs WHERE run_id = ?", (run_id,)).fetchone()
        bodies = self.read_tree(run_id, path, info.messages)
        messages = {name: decode_messages(items) for name, items in bodies.items()}
        return RunRecord(info=info, state=decode_bare_state(data, messages))

    def conversation(self, conversation_id: str) -> tuple[StoredRunInfo, ...]:
        """The runs of a conversation, oldest first."""
        rows = self._file.execute(
            f"SELECT {INFO_COLUMNS} FROM runs WHERE conversation_id = ? ORDER BY created, rowid", (conversation_id,)
        ).fetchall()
        return tuple(map(run_info, rows))

    def newest_run(self, conversation_id: str) -> str | None:
        """The id of the run that was added last to a conversation; clocks do not decide it."""
        row = self._file.execute(
            "SELECT run_id FROM runs INDEXED BY runs_in_conversation WHERE conversation_id = ? "
            "ORDER BY rowid DESC LIMIT 1",
            (conversation_id,),
        ).fetchone()
        return None if row is None else str(row[0])

    @in_one_snapshot
    def last_turn(self, conversation_id: str) -> StoredRun | None:
        """The newest run of a conversation, with the messages that its state refers to."""
        run_id = self.newest_run(conversation_id)

        if run_id is None:
            return None

        version, path, size, data = self._file.execute(
            "SELECT version, path, messages, state FROM runs WHERE run_id = ?", (run_id,)
        ).fetchone()
        state = BareState(data)
        positions = state.referenced_positions()
        found = dict(zip(positions, decode_messages(self._read_positions(path, positions)), strict=True))
        # Only an unfinished run appends to its branches.
        branches = {} if state.is_finished else self._read_branches(run_id)
        messages = {name: decode_messages(items) for name, items in branches.items()}
        start = size if state.is_finished else state.inherited_messages
        own = [found.pop(position) for position in range(start, size)]
        transcript = Transcript(own, start=start, older=found)
        return StoredRun(version=version, state=state.decode({**messages, run_id: transcript}))

    # ------------------------------------------------------------------------------------------ events and messages

    @in_one_snapshot
    def events(self, run_id: str, after: Cursor | None, limit: int) -> tuple[StoredEvent, ...]:
        """The events of a run after a cursor, in order."""
        path = self._path(run_id)

        def message_at(name: str, position: int) -> Message:
            [data] = self.read_messages(path if name == run_id else name, position, position + 1)
            return decode_messages([data])[0]

        rows = self._file.execute(
            "SELECT version, number, event FROM events WHERE run_id = ? AND (version, number) > (?, ?) "
            "ORDER BY version, number LIMIT ?",
            (run_id, *(after or (0, -1)), limit),
        ).fetchall()
        return tuple(
            StoredEvent(cursor=Cursor(version, number), event=decode_event(data, message_at))
            for version, number, data in rows
        )

    @in_one_snapshot
    def transcript(self, run_id: str) -> tuple[Message, ...]:
        """Every message of a run, or of the newest run of a conversation."""
        row = self._file.execute(
            "SELECT path, messages FROM runs WHERE run_id = ? OR conversation_id = ? "
            "ORDER BY run_id = ? DESC, created DESC, rowid DESC LIMIT 1",
            (run_id, run_id, run_id),
        ).fetchone()

        if row is None:
            raise UnknownRun(run_id)

        return tuple(decode_messages(self.read_messages(row[0], 0, row[1])))

    def _path(self, run_id: str) -> str:
        row = self._file.execute("SELECT path FROM runs WHERE run_id = ?", (run_id,)).fetchone()

        if row is None:
            raise UnknownRun(run_id)

        path: str = row[0]
        return path

    def read_tree(self, run_id: str, path: str, size: int) -> dict[str, list[bytes]]:
        """The messages of a run and of its branches, by run id."""
        return {run_id: self.read_messages(path, 0, size), **self._read_branches(run_id)}

    def _read_branches(self, run_id: str) -> dict[str, list[bytes]]:
        bodies: dict[str, list[bytes]] = {}
        below: list[tuple[str, bytes]] = self._file.execute(
            "SELECT path, message FROM messages WHERE path >= ? AND path < ? ORDER BY path, position",
            (f"{run_id}/", f"{run_id}0"),
        ).fetchall()

        for name, data in below:
            bodies.setdefault(name, []).append(data)

        return bodies

    def read_messages(self, path: str, start: int, end: int) -> list[bytes]:
        """The messages of a path from `start` to before `end`, with those of the paths that it forks from."""
        parent: tuple[str, int] | None = self._file.execute(
            "SELECT parent, fork FROM paths WHERE path = ?", (path,)
        ).fetchone()
        older: list[bytes] = []

        if parent is not None and start < parent[1]:
            older = self.read_messages(parent[0], start, min(end, parent[1]))
            start = parent[1]

        rows: list[tuple[Any]] = self._file.execute(
            "SELECT message FROM messages WHERE path = ? AND position >= ? AND position < ? ORDER BY position",
            (path, start, end),
        ).fetchall()
        return [*older, *(message for (message,) in rows)]

    def _read_positions(self, path: str, positions: Sequence[int]) -> list[bytes]:
        """The messages of a path at these positions, which ascend, with those of the paths that it forks from."""
        parent: tuple[str, int] | None = self._file.execute(
            "SELECT parent, fork FROM paths WHERE path = ?", (path,)
        ).fetchone()
        older = [position for position in positions if parent is not None and position < parent[1]]
        found = self._read_positions(parent[0], older) if parent is not None and older else []

        for start in range(len(older), len(positions), MAX_PARAMETERS):
            part = positions[start : start + MAX_PARAMETERS]
            marks = ", ".join("?" * len(part))
            rows = self._file.execute(
                f"SELECT message FROM messages WHERE path = ? AND position IN ({marks}) ORDER BY position",
                (path, *part),
            ).fetchall()

            if len(rows) != len(part):
                raise StoreError("", f"{len(part) - len(rows)} messages of {path!r} are missing.")

            found.extend(message for (message,) in rows)

        return found

    # ------------------------------------------------------------------------------------------ search

    def search(self, words: str, limit: int) -> tuple[FoundMessage, ...]:
        """The messages that contain all words, newest first."""
        wanted = [word.casefold() for word in words.split()]

        if not wanted:
            return ()

        self._update_index()
        found: list[FoundMessage] = []

        for path, position, data in self._candidates([word for word in wanted if len(word) >= MIN_WORD]):
            message = decode_messages([data])[0]
            text = message_text(message).casefold()

            if all(word in text for word in wanted):
                found.append(FoundMessage(run_id=self._run_of(path, position), position=position, message=message))

            if len(found) == limit:
                break

        return tuple(found)

    def _candidates(self, words: Sequence[str]) -> Iterator[tuple[str, int, bytes]]:
        select = "SELECT i.path, i.position, m.message FROM indexed i JOIN messages m USING (path, position)"

        if not words:
            yield from self._file.execute(f"{select} ORDER BY i.id DESC")
            return

        query = " AND ".join('"' + word.replace('"', '""') + '"' for word in words)
        yield from self._file.execute(
            f"{select} JOIN texts ON texts.rowid = i.id WHERE texts MATCH ? ORDER BY i.id DESC", (query,)
        )

    def _update_index(self) -> None:
        """Add the messages that were stored since the last search."""
        self._file.executescript(SEARCH_SCHEMA)
        rows = self._file.execute(
            "SELECT path, position, message FROM messages m WHERE NOT EXISTS "
            "(SELECT 1 FROM indexed i WHERE i.path = m.path AND i.position = m.position)"
        ).fetchall()
        self._file.execute("BEGIN IMMEDIATE")

        for path, position, data in rows:
            added = self._file.execute("INSERT INTO indexed (path, position) VALUES (?, ?)", (path, position))
            text = message_text(decode_messages([data])[0])
            self._file.execute("INSERT INTO texts (rowid, text) VALUES (?, ?)", (added.lastrowid, text))

        self._file.execute("COMMIT")

    def _run_of(self, path: str, position: int) -> str:
        """The run or branch that wrote the message at this position of a path."""
        row = self._file.execute(
            "SELECT run_id FROM runs WHERE path = ? AND messages > ? ORDER BY messages LIMIT 1", (path, position)
        ).fetchone()
        return path if row is None else str(row[0])

    # ------------------------------------------------------------------------------------------ erasing

    def forget(self, id: str) -> int:
        """Erase a run, or all runs of a conversation; the caller commits."""
        rows: list[tuple[str, str, int]] = self._file.execute(
            "SELECT run_id, path, inherited FROM runs WHERE run_id = ? OR conversation_id = ?", (id, id)
        ).fetchall()
        is_run = any(run_id == id for run_id, _, _ in rows)
        erased = [row for row in rows if row[0] == id] if is_run and not self._is_conversation(id) else rows

        if not erased:
            raise UnknownRun(id)

        ids = {run_id for run_id, _, _ in erased}
        self._check_unused(id, ids)

        for run_id, path, inherited in erased:
            self._erase_messages("path = ? AND position >= ?", (path, inherited))
            self._erase_messages("path >= ? AND path < ?", (f"{run_id}/", f"{run_id}0"))
            self._file.execute("DELETE FROM events WHERE run_id = ?", (run_id,))
            self._file.execute("DELETE FROM paths WHERE path = ?", (run_id,))
            self._file.execute("DELETE FROM runs WHERE run_id = ?", (run_id,))

        return len(ids)

    def _is_conversation(self, id: str) -> bool:
        """Whether other runs belong to the conversation with this id: its first run has the same id."""
        row = self._file.execute(
            "SELECT 1 FROM runs WHERE conversation_id = ? AND run_id != ? LIMIT 1", (id, id)
        ).fetchone()
        return row is not None

    def _check_unused(self, id: str, ids: set[str]) -> None:
        marks = ", ".join("?" * len(ids))
        later = self._file.execute(
            f"SELECT run_id FROM runs WHERE parent_run IN ({marks}) AND run_id NOT IN ({marks}) LIMIT 1",
            (*ids, *ids),
        ).fetchone()

        if later is not None:
            raise continued_error(id, later[0])

    def _erase_messages(self, where: str, values: tuple[object, ...]) -> None:
        has_index = self._file.execute("SELECT 1 FROM sqlite_master WHERE name = 'indexed'").fetchone() is not None

        if has_index:
            rows = self._file.execute(
                f"SELECT i.id, m.message FROM indexed i JOIN messages m USING (path, position) WHERE {where}", values
            ).fetchall()

            for id, data in rows:
                text = message_text(decode_messages([data])[0])
                self._file.execute("INSERT INTO texts (texts, rowid, text) VALUES ('delete', ?, ?)", (id, text))
                self._file.execute("DELETE FROM indexed WHERE id = ?", (id,))

            self._file.execute("INSERT INTO texts (texts) VALUES ('optimize')")

        self._file.execute(f"DELETE FROM messages WHERE {where}", values)
