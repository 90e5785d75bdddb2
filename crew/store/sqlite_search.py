"""Searches the messages of an SQLite file, with an index that is built by the first search; erases messages."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

from crew.errors import StoreError
from crew.runs.interfaces import FoundMessage
from crew.store.codec import decode_messages
from crew.store.rows import message_text
from crew.store.sqlite_file import transaction
from crew.store.sqlite_rows import MESSAGE_COLUMNS, checked_message

INDEX_SCHEMA = (
    "DROP TABLE IF EXISTS texts",
    "DROP TABLE IF EXISTS indexed",
    """CREATE TABLE indexed (
      id INTEGER PRIMARY KEY, path TEXT NOT NULL, position INTEGER NOT NULL, at REAL NOT NULL DEFAULT 0,
      UNIQUE (path, position)
    )""",
    "CREATE VIRTUAL TABLE texts USING fts5 (text, content='', tokenize='trigram')",
)
"""The index of the search, with the times of the messages. Searches fill it, so that it does not slow down commits."""

UNINDEXED = """
FROM messages m WHERE (path, position) >= (?, ?)
AND NOT EXISTS (SELECT 1 FROM indexed i WHERE i.path = m.path AND i.position = m.position)
ORDER BY path, position LIMIT ?
"""

INDEX_BATCH = 2_000
"""The most messages of one transaction."""

INDEX_BATCH_CHARS = 1_000_000
"""A transaction ends with the message that reaches this size: it takes up to a second, and other writers wait so long.

Only a message that is larger takes longer.
"""

MIN_WORD = 3
"""The index knows sequences of three characters; shorter words are only compared."""

MessageKey = tuple[str, int]
"""The path and the position of a message."""

FIRST_KEY: MessageKey = ("", 0)


class SQLiteSearch:
    """Searches on a connection. The caller holds the lock of the store."""

    def __init__(self, file: sqlite3.Connection) -> None:
        self._file = file

    def find(self, words: str, limit: int) -> tuple[FoundMessage, ...]:
        """The messages in the index that contain all words, newest first."""
        wanted = [word.casefold() for word in words.split()]
        found: list[FoundMessage] = []

        for path, position in self._candidates([word for word in wanted if len(word) >= MIN_WORD]):
            row = self._file.execute(
                f"SELECT {MESSAGE_COLUMNS} FROM messages WHERE path = ? AND position = ?", (path, position)
            ).fetchone()

            if row is None:
                continue  # another process erased it after it was found in the index

            message = decode_messages([checked_message(row)])[0]
            text = message_text(message).casefold()

            if all(word in text for word in wanted):
                found.append(FoundMessage(run_id=self._run_of(path, position), position=position, message=message))

            if len(found) == limit:
                break

        return tuple(found)

    def _candidates(self, words: Sequence[str]) -> Iterator[MessageKey]:
        select, order = "SELECT path, position FROM indexed i", "ORDER BY i.at DESC, i.id DESC"

        if not words:
            yield from self._file.execute(f"{select} {order}")
            return

        query = " AND ".join('"' + word.replace('"', '""') + '"' for word in words)
        yield from self._file.execute(
            f"{select} JOIN texts ON texts.rowid = i.id WHERE texts MATCH ? {order}", (query,)
        )

    def index_messages(self, start: MessageKey) -> MessageKey | None:
        """Add a batch of the messages from this key on to the index; returns where the next batch starts, if any.

        Each batch is one transaction: other processes, and other threads of this store, write in between.
        """
        self._prepare_index()
        # Before the transaction: most searches add little, and have to look at many messages that are in the index.
        first = self._file.execute(f"SELECT path, position {UNINDEXED}", (*start, 1)).fetchone()

        if first is None:
            return None

        with transaction(self._file, is_synchronised=False):
            rows = self._read_batch(first)

            for row in rows:
                message = decode_messages([checked_message(row)])[0]
                added = self._file.execute(
                    "INSERT INTO indexed (path, position, at) VALUES (?, ?, ?)", (*row[:2], message.time)
                )
                self._file.execute(
                    "INSERT INTO texts (rowid, text) VALUES (?, ?)", (added.lastrowid, message_text(message))
                )

        return (rows[-1][0], rows[-1][1] + 1) if rows else None

    def _read_batch(self, start: MessageKey) -> list[Sequence[Any]]:
        """The next messages that are not in the index, as many as one transaction adds."""
        rows: list[Sequence[Any]] = []
        size = 0

        with closing(self._file.execute(f"SELECT {MESSAGE_COLUMNS} {UNINDEXED}", (*start, INDEX_BATCH))) as cursor:
            for row in cursor:
                rows.append(row)
                size += len(row[2])

                if size >= INDEX_BATCH_CHARS:
                    break

        return rows

    def _prepare_index(self) -> None:
        """Create the index, unless it exists; one without times, of an earlier release, is built again."""
        if self._file.execute("PRAGMA query_only").fetchone()[0]:
            text = "the search keeps an index in the file, which was opened read-only: open it without read_only"
            raise StoreError("", text)

        if self._has_times():
            return

        with transaction(self._file):
            if not self._has_times():  # another process may have created it
                for statement in INDEX_SCHEMA:
                    self._file.execute(statement)

    def _has_times(self) -> bool:
        return self._file.execute("SELECT 1 FROM pragma_table_info('indexed') WHERE name = 'at'").fetchone() is not None

    def _run_of(self, path: str, position: int) -> str:
        """The run or branch that wrote the message at this position of a path."""
        row = self._file.execute(
            "SELECT run_id FROM runs WHERE path = ? AND messages > ? ORDER BY messages LIMIT 1", (path, position)
        ).fetchone()
        return path if row is None else str(row[0])

    def erase_messages(self, where: str, values: tuple[object, ...]) -> None:
        """Erase messages, also from the index."""
        has_index = self._file.execute("SELECT 1 FROM sqlite_master WHERE name = 'indexed'").fetchone() is not None

        if has_index:
            rows = self._file.execute(
                f"SELECT i.id, path, position, m.message, m.checksum FROM indexed i JOIN messages m "
                f"USING (path, position) WHERE {where}",
                values,
            ).fetchall()

            try:
                self._erase_from_index(rows)
            except StoreError:
                # To delete an entry the index needs the very text: without it, the next search builds a new index.
                self._file.execute("DROP TABLE texts")
                self._file.execute("DROP TABLE indexed")

        self._file.execute(f"DELETE FROM messages WHERE {where}", values)

    def _erase_from_index(self, rows: Sequence[Sequence[Any]]) -> None:
        texts = [(id, message_text(decode_messages([checked_message(row)])[0])) for id, *row in rows]

        for id, text in texts:
            self._file.execute("INSERT INTO texts (texts, rowid, text) VALUES ('delete', ?, ?)", (id, text))
            self._file.execute("DELETE FROM indexed WHERE id = ?", (id,))

        self._file.execute("INSERT INTO texts (texts) VALUES ('optimize')")
