"""Reads runs, events, transcripts and conversations from an SQLite file, and erases runs."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from pydantic import JsonValue

from crew.errors import StoreError, UnknownRun
from crew.messages import Message, Transcript
from crew.runs.interfaces import Cursor, RunPage, RunRecord, StoredEvent, StoredRun, StoredRunInfo
from crew.store.checksums import check_row
from crew.store.codec import BareState, decode_bare_state, decode_event, decode_messages
from crew.store.rows import continued_error, metadata_rows, page_start, run_info, run_page
from crew.store.sqlite_rows import MESSAGE_COLUMNS, RUN_COLUMNS, StoredRow, checked_message, checked_run
from crew.store.sqlite_search import SQLiteSearch

RARE = 1_000
"""Up to so many runs with one value in their metadata are looked up and sorted."""

MAX_PARAMETERS = 500
"""The parameters of one query; SQLite accepts at least 999."""


ErasedRun = tuple[str, str, int]
"""A run, the path of its messages, and how many of these it inherited."""

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
        self._file, self.search = file, SQLiteSearch(file)

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
            self._file.rollback()  # nothing if SQLite itself ended the transaction, as after some errors

    # ------------------------------------------------------------------------------------------ runs

    def runs(
        self, conditions: Mapping[str, object], limit: int, cursor: str | None, metadata: Mapping[str, JsonValue]
    ) -> RunPage:
        """A page of the runs that match, newest first; conditions that are None do not count."""
        given: list[tuple[str, Sequence[object]]] = [
            (sql, (value,)) for sql, value in conditions.items() if value is not None
        ]
        given += [(self._metadata_condition(*row), row) for row in metadata_rows(metadata)]

        if cursor is not None:
            given.append(("(updated, run_id) < (?, ?)", page_start(cursor)))

        where = f"WHERE {' AND '.join(sql for sql, _ in given)}" if given else ""
        values = [value for _, parts in given for value in parts]
        rows = self._file.execute(
            f"SELECT {RUN_COLUMNS} FROM runs {where} ORDER BY updated DESC, run_id DESC LIMIT ?", (*values, limit + 1)
        ).fetchall()
        return run_page(map(checked_run, rows), limit)

    def _metadata_condition(self, key: str, value: str) -> str:
        """The condition for runs with this value: a look-up for a rare one, else a test for each run, newest first."""
        count = "SELECT COUNT(*) FROM (SELECT 1 FROM metadata WHERE key = ? AND value = ? LIMIT ?)"
        is_rare = self._file.execute(count, (key, value, RARE)).fetchone()[0] < RARE

        if is_rare:
            return "run_id IN (SELECT run_id FROM metadata WHERE key = ? AND value = ?)"

        return "EXISTS (SELECT 1 FROM metadata m WHERE m.key = ? AND m.value = ? AND m.run_id = runs.run_id)"

    def find(self, run_id: str) -> StoredRow | None:
        """The facts of a run, and where its messages are; None if there is no such run."""
        row = self._file.execute(f"SELECT {RUN_COLUMNS} FROM runs WHERE run_id = ?", (run_id,)).fetchone()

        if row is None:
            return None

        checked_run(row)
        return StoredRow(columns=row)

    def _find(self, run_id: str) -> StoredRow:
        row = self.find(run_id)

        if row is None:
            raise UnknownRun(run_id)

        return row

    def read_state(self, row: StoredRow) -> bytes:
        """The stored state of a run."""
        run_id = row.info.run_id
        [data] = self._file.execute("SELECT state FROM runs WHERE run_id = ?", (run_id,)).fetchone()
        check_row(f"The state of run {run_id!r}", row.state_checksum, run_id, row.info.version, data)
        state: bytes = data
        return state

    def info(self, run_id: str) -> StoredRunInfo:
        """The facts of a run, without its state and its messages."""
        return self._find(run_id).info

    @in_one_snapshot
    def run(self, run_id: str) -> RunRecord:
        """A run with its newest state."""
        row = self._find(run_id)
        data = self.read_state(row)
        bodies = self.read_tree(run_id, row.path, row.info.messages)
        messages = {name: decode_messages(items) for name, items in bodies.items()}
        return RunRecord(info=row.info, state=decode_bare_state(data, messages))

    def conversation(self, conversation_id: str) -> tuple[StoredRunInfo, ...]:
        """The runs of a conversation, oldest first."""
        rows = self._file.execute(
            f"SELECT {RUN_COLUMNS} FROM runs WHERE conversation_id = ? ORDER BY created, rowid", (conversation_id,)
        ).fetchall()
        return tuple(run_info(checked_run(row)) for row in rows)

    def newest_run(self, conversation_id: str) -> str | None:
        """The id of the run that was added last to a conversation; clocks do not decide it."""
        row = self._file.execute(
            "SELECT run_id FROM runs INDEXED BY runs_in_conversation WHERE conversation_id = ? "
            "ORDER BY rowid DESC LIMIT 1",
            (conversation_id,),
        ).fetchone()
        found = None if row is None else str(row[0])
        # A second index must agree: a turn that does not see the newest one would answer without its messages.
        other, column = ("runs_by_conversation", "") if found is None else ("runs_by_parent", " AND parent_run = ?")
        later = self._file.execute(
            f"SELECT run_id FROM runs INDEXED BY {other} WHERE conversation_id = ?{column} LIMIT 1",
            (conversation_id,) if found is None else (conversation_id, found),
        ).fetchone()

        if later is not None:
            raise StoreError(
                "", f"The index of the conversation {conversation_id!r} is damaged: {later[0]!r} is missing."
            )

        return found

    @in_one_snapshot
    def last_turn(self, conversation_id: str) -> StoredRun | None:
        """The newest run of a conversation, with the messages that its state refers to."""
        run_id = self.newest_run(conversation_id)

        if run_id is None:
            return None

        row = self._find(run_id)
        path, size = row.path, row.info.messages
        state = BareState(self.read_state(row))
        positions = state.referenced_positions()
        found = dict(zip(positions, decode_messages(self._read_positions(path, positions)), strict=True))
        # Only an unfinished run appends to its branches.
        branches = {} if state.is_finished else self._read_branches(run_id)
        messages = {name: decode_messages(items) for name, items in branches.items()}
        start = size if state.is_finished else state.inherited_messages
        own = [found.pop(position) for position in range(start, size)]
        transcript = Transcript(own, start=start, older=found)
        return StoredRun(version=row.info.version, state=state.decode({**messages, run_id: transcript}))

    # ------------------------------------------------------------------------------------------ events and messages

    @in_one_snapshot
    def events(self, run_id: str, after: Cursor | None, limit: int) -> tuple[StoredEvent, ...]:
        """The events of a run after a cursor, in order."""
        run = self._find(run_id)
        after = after or Cursor(0, -1)

        def message_at(name: str, position: int) -> Message:
            [data] = self.read_messages(run.path if name == run_id else name, position, position + 1)
            return decode_messages([data])[0]

        rows = self._file.execute(
            "SELECT version, number, kind, at, event, checksum FROM events WHERE run_id = ? "
            "AND (version, number) > (?, ?) ORDER BY version, number LIMIT ?",
            (run_id, *after, limit),
        ).fetchall()
        run.check_events([Cursor(*row[:2]) for row in rows], after, are_all=len(rows) < limit)
        events: list[StoredEvent] = []

        for version, number, kind, at, data, checksum in rows:
            cursor = Cursor(version, number)
            check_row(f"Event {cursor} of run {run_id!r}", checksum, run_id, version, number, kind, at, data)
            events.append(StoredEvent(cursor=cursor, event=decode_event(data, message_at)))

        return tuple(events)

    def has_events(self, run_id: str, after: Cursor | None) -> bool:
        """Whether a run has an event after a cursor."""
        row = self._file.execute(
            "SELECT 1 FROM events WHERE run_id = ? AND (version, number) > (?, ?) LIMIT 1",
            (run_id, *(after or (0, -1))),
        ).fetchone()
        return row is not None

    @in_one_snapshot
    def transcript(self, run_id: str) -> tuple[Message, ...]:
        """Every message of a run, or of the newest run of a conversation."""
        newest = self._file.execute(
            "SELECT run_id FROM runs WHERE run_id = ? OR conversation_id = ? "
            "ORDER BY run_id = ? DESC, created DESC, rowid DESC LIMIT 1",
            (run_id, run_id, run_id),
        ).fetchone()
        row = self._find(run_id if newest is None else newest[0])
        messages = decode_messages(self.read_messages(row.path, 0, row.info.messages))

        if len(messages) != row.info.messages:
            missing = row.info.messages - len(messages)
            raise StoreError("", f"{missing} messages of {row.info.run_id!r} are missing.")

        return tuple(messages)

    def read_tree(self, run_id: str, path: str, size: int) -> dict[str, list[bytes]]:
        """The messages of a run and of its branches, by run id."""
        return {run_id: self.read_messages(path, 0, size), **self._read_branches(run_id)}

    def _read_branches(self, run_id: str) -> dict[str, list[bytes]]:
        bodies: dict[str, list[bytes]] = {}
        below = self._file.execute(
            f"SELECT {MESSAGE_COLUMNS} FROM messages WHERE path >= ? AND path < ? ORDER BY path, position",
            (f"{run_id}/", f"{run_id}0"),
        ).fetchall()

        for row in below:
            bodies.setdefault(row[0], []).append(checked_message(row))

        return bodies

    def read_messages(self, path: str, start: int, end: int) -> list[bytes]:
        """The messages of a path from `start` to before `end`, with those of the paths that it forks from."""
        parent = self._parent(path)
        older: list[bytes] = []

        if parent is not None and start < parent[1]:
            older = self.read_messages(parent[0], start, min(end, parent[1]))
            start = parent[1]

        rows = self._file.execute(
            f"SELECT {MESSAGE_COLUMNS} FROM messages WHERE path = ? AND position >= ? AND position < ? "
            "ORDER BY position",
            (path, start, end),
        ).fetchall()
        return [*older, *map(checked_message, rows)]

    def _parent(self, path: str) -> tuple[str, int] | None:
        """The path that a path forks from, and the position of the fork."""
        row = self._file.execute("SELECT parent, fork, checksum FROM paths WHERE path = ?", (path,)).fetchone()

        if row is None:
            return None

        parent, fork, checksum = row
        check_row(f"The path {path!r}", checksum, path, parent, fork)
        return parent, fork

    def _read_positions(self, path: str, positions: Sequence[int]) -> list[bytes]:
        """The messages of a path at these positions, which ascend, with those of the paths that it forks from."""
        parent = self._parent(path)
        older = [position for position in positions if parent is not None and position < parent[1]]
        found = self._read_positions(parent[0], older) if parent is not None and older else []

        for start in range(len(older), len(positions), MAX_PARAMETERS):
            part = positions[start : start + MAX_PARAMETERS]
            marks = ", ".join("?" * len(part))
            rows = self._file.execute(
                f"SELECT {MESSAGE_COLUMNS} FROM messages WHERE path = ? AND position IN ({marks}) ORDER BY position",
                (path, *part),
            ).fetchall()

            if len(rows) != len(part):
                raise StoreError("", f"{len(part) - len(rows)} messages of {path!r} are missing.")

            found.extend(map(checked_message, rows))

        return found

    # ------------------------------------------------------------------------------------------ erasing

    def find_erasable(self, id: str, *, is_conversation: bool) -> list[ErasedRun]:
        """The runs that `forget` erases: one run, or all runs of a conversation."""
        select = "SELECT run_id, path, inherited FROM runs WHERE"
        erased: list[ErasedRun] = []

        if not is_conversation:
            erased = self._file.execute(f"{select} run_id = ?", (id,)).fetchall()

        if not erased:
            erased = self._file.execute(f"{select} conversation_id = ?", (id,)).fetchall()

        if not erased:
            raise UnknownRun(id)

        self._check_unused(id, [run_id for run_id, _, _ in erased])
        return erased

    def erase(self, runs: Sequence[ErasedRun]) -> None:
        """Erase these runs; the caller commits."""
        for run_id, path, inherited in runs:
            self.search.erase_messages("path = ? AND position >= ?", (path, inherited))
            self.search.erase_messages("path >= ? AND path < ?", (f"{run_id}/", f"{run_id}0"))

            for table, column in (
                ("events", "run_id"),
                ("effects", "run_id"),
                ("paths", "path"),
                ("metadata", "run_id"),
                ("leases", "run_id"),
            ):
                self._file.execute(f"DELETE FROM {table} WHERE {column} = ?", (run_id,))

            self._file.execute("DELETE FROM runs WHERE run_id = ?", (run_id,))

    def _check_unused(self, id: str, ids: Sequence[str]) -> None:
        # One parameter: a conversation may have more runs than a statement may have parameters.
        erased = "SELECT value FROM json_each(?1)"
        later = self._file.execute(
            "SELECT run_id, conversation_id FROM runs "
            f"WHERE parent_run IN ({erased}) AND run_id NOT IN ({erased}) LIMIT 1",
            (json.dumps(ids),),
        ).fetchone()

        if later is not None:
            raise continued_error(id, *later)
