"""Where runs are stored: an object, a path or a URL, the same in Python, in YAML and on the command line."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeAlias

from crew import store as stores
from crew.errors import DefinitionError, StoreError, abbreviate, describe
from crew.runs.interfaces import RunStore, StoredRun
from crew.store.memory import MemoryStore

StoreLocation: TypeAlias = str | Path
"""The path of an SQLite file, or a URL such as `sqlite:///runs.db` or `postgresql://host/database`."""

OpenedStore: TypeAlias = "stores.SQLiteStore | stores.PostgresStore"

ACCEPTED = "use 'runs.db', 'sqlite:///runs.db', 'postgresql://…', or SQLiteStore(…)"
IN_MEMORY = ":memory:"


def store_problem(store: object) -> str:
    """Why this is not a store and does not name one; empty if it is, or does. Looks at no file.

    Shows no URL: it may hold a password.
    """
    if store is None or isinstance(store, Path):
        return ""

    if not isinstance(store, str):
        is_store = isinstance(store, RunStore) and not isinstance(store, type)
        return "" if is_store else f"not a store: {abbreviate(store)}; {ACCEPTED}"

    scheme, separator, rest = store.partition("://")

    if not separator:
        return "" if store.strip() else f"expected a file such as runs.db, not {store!r}"

    match scheme.lower():
        case "sqlite":
            is_file = rest.startswith("/") and len(rest) > 1 and "?" not in rest
            form = "sqlite:///runs.db, or sqlite:////folder/runs.db for an absolute path, without options"
            return "" if is_file else f"the URL of an SQLite file must be {form}, not {store!r}"
        case "postgres" | "postgresql":
            return "" if rest else "the URL of a PostgreSQL database must be postgresql://user@host:5432/database"
        case _:
            return f"no store for {abbreviate(scheme)} URLs; {ACCEPTED}"


def _is_database(location: StoreLocation) -> bool:
    """Whether a location names a PostgreSQL database, not a file."""
    return isinstance(location, str) and location.lower().startswith(("postgres://", "postgresql://"))


def store_file(location: StoreLocation) -> str:
    """The path of the SQLite file that a location without a `store_problem` names."""
    text = str(location)
    return text.partition("://")[2][1:] if isinstance(location, str) and "://" in text else text


def relative_to(folder: Path, location: StoreLocation) -> StoreLocation:
    """The same location, where a relative path is one below this folder; its path is absolute."""
    if _is_database(location):
        return location

    file = store_file(location)
    return file if file == IN_MEMORY else (folder / file).absolute()


def open_store(location: StoreLocation, subject: str = "CrewExecutor") -> OpenedStore:
    """Open the store that a location names. Raises `DefinitionError` if it can't be one, else `StoreError`."""
    problem = store_problem(location)

    if not problem and _is_database(location):
        return stores.PostgresStore.from_url(str(location))

    if not problem and (file := store_file(location)) != IN_MEMORY:
        problem = file_problem(file, "runs.db")

    if problem:
        raise DefinitionError(subject, problem if subject.endswith("store") else f"store: {problem}")

    return stores.SQLiteStore(store_file(location))


def open_existing_store(location: StoreLocation, subject: str, *, read_only: bool = False) -> OpenedStore:
    """Open a store that holds runs: a mistyped name is an error, and creates no file.

    With `read_only`, the store is never changed, and need not be writable.
    """
    problem = store_problem(location)

    if not problem and not _is_database(location) and not Path(file := store_file(location)).is_file():
        problem = f"no such file: {file!r}; pass the SQLite file that holds the runs"

    if problem:
        raise DefinitionError(subject, problem)

    if not read_only:
        return open_store(location, subject)

    if _is_database(location):
        return stores.PostgresStore.from_url(str(location), read_only=True)

    return stores.SQLiteStore(store_file(location), read_only=True)


def file_problem(path: str, example: str) -> str:
    """Why this path can't be a file to write; empty if it can."""
    file = Path(path)

    if not path or file.is_dir():
        return f"expected a file such as {example}, not {path!r}"

    if not file.parent.is_dir():
        return f"no such folder: {str(file.parent)!r}; create it first"

    if not os.access(file if file.exists() else file.parent, os.W_OK):
        return f"can't write {path!r}: permission denied"

    return ""


class ExecutorStore:
    """The store of an executor: the object that it was given, or one that it opens by its location and closes."""

    def __init__(self, given: RunStore | StoreLocation | None) -> None:
        self._location = given if isinstance(given, StoreLocation) else None
        self._given = MemoryStore() if given is None or isinstance(given, StoreLocation) else given
        self._opened: OpenedStore | None = None
        self.get()  # reports a file that can't be opened now, not in the first run

        if self._location is not None:  # the process may change its folder before `get` opens it again
            self._location = relative_to(Path(), self._location)

    def get(self) -> RunStore:
        """The open store; one that was closed with the executor is opened again."""
        if self._location is None:
            return self._given

        if self._opened is None:
            self._opened = open_store(self._location)

        return self._opened

    async def load(self, run_id: str) -> StoredRun:
        """The newest state of a run that can be resumed."""
        try:
            return await self.get().load(run_id)
        except SystemExit as error:  # the store boundary: user code never ends the process
            raise StoreError(run_id, f"The store failed: {describe(error)}") from error

    def close(self) -> None:
        """Close what was opened here."""
        opened, self._opened = self._opened, None

        if opened is not None:
            opened.close()
