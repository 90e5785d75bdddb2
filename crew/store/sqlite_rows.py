"""The rows of an SQLite store as they are read: each is checked against its checksum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from crew.errors import StoreError
from crew.runs.interfaces import Cursor, StoredRunInfo
from crew.store.checksums import check_row
from crew.store.rows import INFO_COLUMNS, run_info

MESSAGE_COLUMNS = "path, position, message, checksum"
"""The columns of `checked_message`."""

RUN_COLUMNS = f"{INFO_COLUMNS}, path, inherited, parent_run, newest_events, has_gaps, state_checksum, checksum"
"""The columns of `checked_run`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRow:
    """A run in the table: its `RUN_COLUMNS`, which were checked."""

    columns: Sequence[Any]

    @property
    def info(self) -> StoredRunInfo:
        return run_info(self.columns[:10])

    @property
    def constants(self) -> tuple[str, str, float, str]:
        """The conversation, the crew, the time of the first commit, and the metadata as JSON: they never change."""
        return self.columns[1], self.columns[2], self.columns[7], self.columns[9]

    @property
    def path(self) -> str:
        """The path of its messages."""
        return str(self.columns[10])

    @property
    def inherited(self) -> int:
        return int(self.columns[11])

    @property
    def parent_run(self) -> str:
        return str(self.columns[12])

    @property
    def newest_events(self) -> int:
        """How many events the newest commit has, or the failure after it; events between commits are not counted."""
        return int(self.columns[13])

    @property
    def has_gaps(self) -> bool:
        """Whether a commit of this run had no event."""
        return bool(self.columns[14])

    @property
    def state_checksum(self) -> int:
        return int(self.columns[15])

    def check_events(self, cursors: Sequence[Cursor], after: Cursor, *, are_all: bool) -> None:
        """Raise `StoreError` if an event is missing between or, if these are all, after these cursors."""
        end, previous = Cursor(self.info.version, self.newest_events - 1), after

        for cursor in cursors:
            is_next = cursor == (previous.version, previous.number + 1) or cursor == (previous.version + 1, 0)

            if not is_next and not self.has_gaps:
                raise StoreError("", f"Events of run {self.info.run_id!r} between {previous} and {cursor} are missing.")

            previous = cursor

        if are_all and previous < end and not self.has_gaps:
            raise StoreError("", f"Events of run {self.info.run_id!r} between {previous} and {end} are missing.")

    def as_failed(self, newest_events: int) -> tuple[Any, ...]:
        """The columns of the run after its failure was stored, without the checksum."""
        return (*self.columns[:4], "failed", *self.columns[5:13], newest_events, *self.columns[14:-1])


def checked_run(row: Sequence[Any]) -> Sequence[Any]:
    """The `INFO_COLUMNS` of a run from its `RUN_COLUMNS`; `StoreError` if the checksum differs."""
    check_row(f"Run {row[0]!r}", row[-1], *row[:-1])
    return row[:10]


def checked_message(row: Sequence[Any]) -> bytes:
    """A stored message from its `MESSAGE_COLUMNS`; `StoreError` if the checksum differs."""
    path, position, message, checksum = row
    check_row(f"Message {position} of {path!r}", checksum, path, position, message)
    data: bytes = message
    return data
