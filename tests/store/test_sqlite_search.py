"""The index of the search of an SQLite store: it is built in parts, by the first search."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from crew import Agent, CrewExecutor, ScriptedProvider
from crew.errors import StoreError
from crew.store import SQLiteStore
from crew.store.sqlite_search import FIRST_KEY, MessageKey, SQLiteSearch
from tests.contracts.run_store import event, state


def executor(store: SQLiteStore) -> CrewExecutor:
    """Its runs have two messages."""
    return CrewExecutor(Agent("a", model=ScriptedProvider(lambda request: "An answer.")), store=store)


async def test_the_index_of_the_search_is_built_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large store is not read into memory at once: each part continues after the last message of the one before."""
    monkeypatch.setattr("crew.store.sqlite_search.INDEX_BATCH", 3)
    store = SQLiteStore(tmp_path / "runs.db")

    for number in range(5):
        await executor(store).execute(f"Question {number}.", conversation=f"c{number % 2}")

    assert len(await store.search("question", limit=100)) == 5
    await executor(store).execute("One more question.")
    assert len(await store.search("question", limit=100)) == 6
    assert len(await store.search("answer", limit=100)) == 6
    store.close()


async def test_a_search_in_a_file_that_is_read_only_names_the_reason(tmp_path: Path) -> None:
    """The index of the search would change the file."""
    SQLiteStore(tmp_path / "runs.db").close()
    store = SQLiteStore(tmp_path / "runs.db", read_only=True)

    with pytest.raises(StoreError, match="open it without read_only"):
        await store.search("question")

    store.close()


async def test_other_writers_commit_while_the_index_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part is one transaction: between two of them, neither the store nor the file is locked."""
    store, other = SQLiteStore(tmp_path / "runs.db"), SQLiteStore(tmp_path / "runs.db")
    other._file.execute("PRAGMA busy_timeout = 0")

    for number in range(4):
        await executor(store).execute(f"Question {number}.")

    first, index_messages = asyncio.Event(), SQLiteSearch.index_messages
    loop = asyncio.get_running_loop()

    def index_and_report(self: SQLiteSearch, start: Any) -> Any:
        following = index_messages(self, start)
        loop.call_soon_threadsafe(first.set)
        return following

    with monkeypatch.context() as patched:
        patched.setattr("crew.store.sqlite_search.INDEX_BATCH", 3)
        patched.setattr("crew.store.sqlite.INDEX_PAUSE", 1e9)
        patched.setattr(SQLiteSearch, "index_messages", index_and_report)
        search = asyncio.create_task(store.search("question"))
        await first.wait()
        await store.commit("same", 0, [event()], state("same"))
        await other.commit("other", 0, [event()], state("other"))
        assert other._file.execute("SELECT COUNT(*) FROM indexed").fetchone() == (3,)
        assert not search.done()
        search.cancel()
        await asyncio.wait([search])

    assert len(await other.search("question")) == 4  # the search that was cancelled left a part of the index
    store.close()
    other.close()


async def test_writers_do_not_wait_for_a_search_that_adds_nothing(tmp_path: Path) -> None:
    """To look for new messages takes no lock of the file."""
    store, other = SQLiteStore(tmp_path / "runs.db"), SQLiteStore(tmp_path / "runs.db")
    await executor(store).execute("A question.")
    assert len(await store.search("question")) == 1
    store._file.execute("PRAGMA busy_timeout = 0")
    other._file.execute("BEGIN IMMEDIATE")
    assert len(await store.search("question")) == 1
    other._file.execute("ROLLBACK")
    store.close()
    other.close()


async def test_an_index_of_an_earlier_release_is_built_again(tmp_path: Path) -> None:
    """It had no times, and found the messages in the order of the ids of their runs."""
    store = SQLiteStore(tmp_path / "runs.db")

    for run_id in ("c", "a", "b"):
        await executor(store).execute("A question.", run_id=run_id)

    store._file.executescript(
        """
        CREATE TABLE indexed (
          id INTEGER PRIMARY KEY, path TEXT NOT NULL, position INTEGER NOT NULL, UNIQUE (path, position)
        );
        CREATE VIRTUAL TABLE texts USING fts5 (text, content='', tokenize='trigram');
        INSERT INTO indexed (path, position) VALUES ('a', 0);
        INSERT INTO texts (rowid, text) VALUES (1, 'A question.');
        """
    )
    assert [found.run_id for found in await store.search("question")] == ["b", "a", "c"]
    assert await store.forget("a") == 1
    assert [found.run_id for found in await store.search("question")] == ["b", "c"]
    store.close()


async def test_a_part_of_the_index_is_bounded_by_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long messages take long to add: other processes can't write before the transaction of a part ends."""
    store = SQLiteStore(tmp_path / "runs.db")

    for number in range(4):
        await executor(store).execute(f"Question {number}. {'x' * 3_000}")

    monkeypatch.setattr("crew.store.sqlite_search.INDEX_BATCH_CHARS", 5_000)
    search, counts = SQLiteSearch(store._file), [0]
    following: MessageKey | None = FIRST_KEY

    while following is not None:
        following = search.index_messages(following)
        counts += store._file.execute("SELECT COUNT(*) FROM indexed").fetchone()

    assert max(after - before for before, after in pairwise(counts)) <= 4
    assert counts[-1] == 8
    assert len(await store.search("question", limit=100)) == 4
    store.close()


async def test_search_leaves_out_a_message_that_another_process_erases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was found in the index, and is no longer there when it is read."""
    store, other = SQLiteStore(tmp_path / "runs.db"), SQLiteStore(tmp_path / "runs.db")

    for number in range(2):
        await executor(store).execute(f"Question {number}.", run_id=f"r{number}")

    assert len(await store.search("question")) == 2
    candidates = SQLiteSearch._candidates

    def erase_last(self: SQLiteSearch, words: Any) -> Iterator[Any]:
        found = list(candidates(self, words))
        asyncio.run(other.forget("r0"))
        yield from found

    monkeypatch.setattr(SQLiteSearch, "_candidates", erase_last)
    assert [found.run_id for found in await store.search("question")] == ["r1"]
    store.close()
    other.close()
