"""Searches the messages of an SQLite file, with an index that is built by the first search; erases messages."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any

from crew.errors import StoreError
from crew.runs.interfaces import FoundMessage
from crew.store.codec import decode_messages
from crew.store.rows import message_text
from crew.store.sqlite_file import transaction
from crew.store.sqlite_rows import MESSAGE_COLUMNS, checked_message

SEARCH_SCHEMA = """
CREATE TABLE IF NOT EXISTS indexed (
  id INTEGER PRIMARY KEY, path TEXT NOT NULL, position INTEGER NOT NULL, UNIQUE (path, position)
);
CREATE VIRTUAL TABLE IF NOT EXISTS texts USING fts5 (text, content='', tokenize='trigram');
"""
"""The index of the search. It is filled by the first search, and does not slow down commits."""

INDEX_BATCH = 500

MIN_WORD = 3
"""The index knows sequences of three characters; shorter words are only compared."""


class SQLiteSearch:
    """Searches on a connection. The caller holds the lock of the store."""

    def __init__(self, file: sqlite3.Connection) -> None:
        self._file = file

    def find(self, words: str, limit: int) -> tuple[FoundMessage, ...]:
        """The messages that contain all words, newest first."""
        wanted = [word.casefold() for word in words.split()]

        if not wanted:
            return ()

        if self._file.execute("PRAGMA query_only").fetchone()[0]:
            text = "the search keeps an index in the file, which was opened read-only: open it without read_only"
            raise StoreError("", text)

        self._update_index()
        found: list[FoundMessage] = []

        for row in self._candidates([word for word in wanted if len(word) >= MIN_WORD]):
            path, position, *_ = row
            message = decode_messages([checked_message(row)])[0]
            text = message_text(message).casefold()

            if all(word in text for word in wanted):
                found.append(FoundMessage(run_id=self._run_of(path, position), position=position, message=message))

            if len(found) == limit:
                break

        return tuple(found)

    def _candidates(self, words: Sequence[str]) -> Iterator[Sequence[Any]]:
        select = f"SELECT {MESSAGE_COLUMNS} FROM indexed i JOIN messages m USING (path, position)"

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

        with transaction(self._file):
            for row in self._unindexed():
                added = self._file.execute("INSERT INTO indexed (path, position) VALUES (?, ?)", row[:2])
                text = message_text(decode_messages([checked_message(row)])[0])
                self._file.execute("INSERT INTO texts (rowid, text) VALUES (?, ?)", (added.lastrowid, text))

    def _unindexed(self) -> Iterator[Sequence[Any]]:
        """The messages that are not in the index, by path and position; a part of them is in memory at a time."""
        last: tuple[str, int] = ("", -1)

        while rows := self._file.execute(
            f"SELECT {MESSAGE_COLUMNS} FROM messages m WHERE (path, position) > (?, ?) AND NOT EXISTS "
            "(SELECT 1 FROM indexed i WHERE i.path = m.path AND i.position = m.position) "
            "ORDER BY path, position LIMIT ?",
            (*last, INDEX_BATCH),
        ).fetchall():
            yield from rows
            last = (rows[-1][0], rows[-1][1])

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
