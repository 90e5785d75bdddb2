"""How an SQLite store is closed while its threads use it, and what a call on a closed store gets."""

from __future__ import annotations

import asyncio
import gc
import threading
from pathlib import Path

import pytest

from crew.errors import StoreError
from crew.store import SQLiteStore
from tests.contracts.run_store import event, state


@pytest.mark.parametrize("read_only", [False, True])
async def test_close_waits_for_a_read_whose_caller_was_cancelled(read_only: bool, tmp_path: Path) -> None:
    """The read goes on in its thread: to close the connection below it would crash the process."""
    path = tmp_path / "runs.db"
    writer = SQLiteStore(path)
    await writer.commit("r", 0, [event()], state())
    store = SQLiteStore(path, read_only=True) if read_only else writer
    began, may_end, versions = threading.Event(), threading.Event(), list[int]()

    def read() -> None:
        began.set()
        may_end.wait()
        versions.append(store._reader.info("r").version)

    reading = asyncio.create_task(store._read(read))
    await asyncio.to_thread(began.wait)
    reading.cancel()

    with pytest.raises(asyncio.CancelledError):
        await reading

    closing = asyncio.create_task(asyncio.to_thread(store.close))
    done, _ = await asyncio.wait([closing], timeout=0.2)
    may_end.set()
    await closing
    assert (done, versions) == (set(), [1])
    writer.close()


async def test_calls_on_a_closed_store_name_the_file(tmp_path: Path) -> None:
    """Reads, commits, leases and effects; to close it again does nothing."""
    store = SQLiteStore(tmp_path / "runs.db")
    store.close()
    store.close()

    for work in (
        store.load("r"),
        store.runs(),
        store.search("word"),
        store.wait_for_events("r"),
        store.commit("r", 0, [event()], state()),
        store.forget("r"),
        store.leases().list(),
        store.effects().get("r", "key"),
        store.effects().put("r", "key", b"data"),
    ):
        with pytest.raises(StoreError, match=r"The store '.*runs\.db' is closed"):
            await work


async def test_leases_and_effects_keep_the_file_open(tmp_path: Path) -> None:
    """The file is closed with the last reference to it, not below a call on another thread."""
    leases, effects = SQLiteStore(tmp_path / "runs.db").leases(), SQLiteStore(tmp_path / "runs.db").effects()
    gc.collect()
    assert await leases.list() == []
    assert await effects.put("r", "key", b"data") == b"data"
