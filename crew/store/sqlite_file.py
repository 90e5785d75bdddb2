"""The file of an SQLite store: how it is opened, its transactions, and what its errors mean."""

from __future__ import annotations

import os
import sqlite3
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from crew.errors import StoreError, describe

BUSY_SECONDS = 10.0
"""How long a transaction waits for those of other processes."""

_ADVICE = {
    "SQLITE_FULL": "The disk is full, or the file may not grow. Free some space, then resume the run.",
    "SQLITE_IOERR": "The disk can't be read or written. Check that it works and is not full, then resume the run.",
    "SQLITE_READONLY": "The file or its folder is read-only. Change the permissions, or use another file.",
    "SQLITE_CANTOPEN": "The file, or a journal beside it, can't be opened. Check the folder and its permissions.",
    "SQLITE_BUSY": "Another process has locked the file for too long. End that process or wait, then resume the run.",
    "SQLITE_CORRUPT": "The file is damaged. Restore it from a backup, or use another file.",
    "SQLITE_NOTADB": "It is not an SQLite file, or its start is damaged. Restore a backup, or use another file.",
}
"""What to do, by the name of SQLite's error code, whose end may have more detail."""


def file_problem(error: Exception) -> str:
    """What went wrong with a file, and what to do about it."""
    text = str(error) if isinstance(error, sqlite3.Error | StoreError) else describe(error)
    code = str(error.__dict__.get("sqlite_errorname", "")) if isinstance(error, sqlite3.Error) else ""
    advice = next((f" {advice}" for name, advice in _ADVICE.items() if code.startswith(name)), "")
    return f"{text.rstrip('.')}.{advice}"


def open_file(path: str | Path) -> sqlite3.Connection:
    """Open a file, or create it with access for its owner only; SQLite gives its journal files the same access."""
    if _is_on_disk(path):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))

    return _connect(str(path))


def use_journal(file: sqlite3.Connection) -> None:
    """Let readers and writers work at the same time, and overwrite what is deleted; the file keeps the former."""
    file.execute("PRAGMA journal_mode=WAL")
    file.execute("PRAGMA secure_delete=ON")


def open_read_only(path: str | Path) -> sqlite3.Connection:
    """Open a file that this connection can't change, also one on a disk or in a folder that can't be written."""
    address, folder = Path(path).absolute().as_uri(), Path(path).absolute().parent
    is_writable = os.access(path, os.W_OK) and os.access(folder, os.W_OK)
    # SQLite shares a file with writers by files beside it, which a connection with mode=ro would leave behind.
    file = _connect(f"{address}?mode={'rw' if is_writable else 'ro'}", is_uri=True)

    try:
        with closing_on_error(file):
            file.execute("PRAGMA user_version")
    except sqlite3.OperationalError:  # it could not create them
        file = _connect(f"{address}?mode=ro&immutable=1", is_uri=True)

    with closing_on_error(file):
        file.execute("PRAGMA query_only=ON")

    return file


def copy_to_temporary_file(file: sqlite3.Connection) -> sqlite3.Connection:
    """A private copy on disk, which SQLite deletes when it is closed."""
    with closing_on_error(_connect("")) as copy:
        file.backup(copy)

    file.close()
    return copy


@contextmanager
def closing_on_error(file: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """Close the connection if the block raises: the caller gets an error and has nothing to close."""
    try:
        yield file
    except BaseException:  # raised again; a damaged file can hold anything
        file.close()
        raise


def _connect(path: str, *, is_uri: bool = False) -> sqlite3.Connection:
    return sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=BUSY_SECONDS, uri=is_uri)


def absolute_path(path: str | Path) -> str:
    """The path of the same file, also after the process has changed its folder."""
    return str(Path(path).absolute()) if _is_on_disk(path) else str(path)


def _is_on_disk(path: str | Path) -> bool:
    return str(path) not in ("", ":memory:")


def _identity(name: str) -> tuple[int, int] | None:
    try:
        info = Path(name).stat()
    except FileNotFoundError:
        return None

    return info.st_dev, info.st_ino


class FileLock:
    """Lets one thread at a time use a connection, and none after it was closed.

    A read whose caller was cancelled goes on in its thread: to close the connection meanwhile would crash the process.
    """

    def __init__(self, file: sqlite3.Connection, path: str) -> None:
        self._file, self._path = file, path
        self._lock, self._is_closed = threading.Lock(), False
        # A file that was not closed is closed with the last reference to its lock. Not in __del__: in a cycle of
        # references, the connection may be finalized first, and warns.
        weakref.finalize(self, file.close).atexit = False

    def __enter__(self) -> None:
        self._lock.acquire()

        if self._is_closed:
            self._lock.release()
            raise StoreError("", f"The store {self._path!r} is closed.")

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def close(self) -> None:
        """Close the connection when no thread uses it."""
        with self._lock:
            self._is_closed = True
            self._file.close()


class FileIdentity:
    """Detects whether a path still leads to the file that was opened.

    SQLite goes on writing to a file that was deleted: what it stores then is lost when the process ends.
    """

    def __init__(self, path: str | Path) -> None:
        names = (str(path), f"{path}-wal") if _is_on_disk(path) else ()
        self._opened = {name: _identity(name) for name in names}

    def check(self) -> None:
        """Raise `StoreError` if the file, or its journal, was deleted or replaced."""
        for name, opened in self._opened.items():
            found = _identity(name)

            if opened is None:
                self._opened[name] = found  # SQLite creates the journal when it needs it, and keeps it
            elif found != opened:
                raise StoreError(
                    "",
                    f"The file {name!r} was deleted or replaced while it was open. Restore it, or use another file, "
                    "and open the store again.",
                )


@contextmanager
def transaction(file: sqlite3.Connection, *, is_synchronised: bool = True) -> Iterator[None]:
    """A transaction that writes; it need not survive a power cut if it is not synchronised with the disk."""
    synchronous = 0

    if not is_synchronised:
        synchronous = file.execute("PRAGMA synchronous").fetchone()[0]
        file.execute("PRAGMA synchronous = NORMAL")

    try:
        with file:
            file.execute("BEGIN IMMEDIATE")
            yield
    finally:
        if not is_synchronised:
            file.execute(f"PRAGMA synchronous = {synchronous}")
