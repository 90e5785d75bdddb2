"""The outcomes of effects in an SQLite store: the table `effects`."""

from __future__ import annotations

import asyncio
import sqlite3

from crew.errors import StoreError
from crew.store.sqlite_file import FileLock


class SQLiteEffects:
    """Implements `EffectRecords` on the connection of a store, which `lock` guards."""

    def __init__(self, file: sqlite3.Connection, lock: FileLock) -> None:
        self._file, self._lock = file, lock

    async def put(self, run_id: str, key: str, data: bytes) -> bytes:
        """Store the outcome of an effect, unless it has one; returns the stored one."""
        return await asyncio.to_thread(self._put, run_id, key, data)

    async def get(self, run_id: str, key: str) -> bytes | None:
        """The stored outcome of an effect."""
        return await asyncio.to_thread(self._get, run_id, key)

    def _put(self, run_id: str, key: str, data: bytes) -> bytes:
        try:
            with self._lock:
                self._file.execute("INSERT INTO effects VALUES (?, ?, ?) ON CONFLICT DO NOTHING", (run_id, key, data))
        except sqlite3.Error as error:
            raise StoreError(run_id, f"The effect {key!r} could not be stored: {error}.") from error

        return self._get(run_id, key) or data

    def _get(self, run_id: str, key: str) -> bytes | None:
        try:
            with self._lock:
                row = self._file.execute(
                    "SELECT data FROM effects WHERE run_id = ? AND key = ?", (run_id, key)
                ).fetchone()
        except sqlite3.Error as error:
            raise StoreError(run_id, f"The effect {key!r} can't be read: {error}.") from error

        return None if row is None else bytes(row[0])
