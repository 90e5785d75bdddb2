"""The connections of a PostgreSQL store are closed wherever its last reference is dropped; without a server."""

from __future__ import annotations

import asyncio

import pytest

from crew.errors import StoreError
from crew.store.postgres_server import PostgresServer


def server() -> PostgresServer:
    return PostgresServer("postgresql://127.0.0.1:9/runs", schema="crew", pool_size=1, reconnect_seconds=1)


async def test_a_call_on_the_loop_of_the_connections_can_close_them() -> None:
    """A call that was given up may hold the last reference to its store: its thread ends, and waits for nothing."""
    opened = server()

    async def close() -> str:
        opened.close()
        return "closed"

    async with asyncio.timeout(5):
        assert await opened.run(close()) == "closed"

    thread = opened._thread
    assert thread is not None
    await asyncio.to_thread(thread.join, 5)
    assert not thread.is_alive()


async def test_close_waits_for_the_end_of_the_thread() -> None:
    """Called from another thread: nothing is left when it returns."""
    opened = server()

    async def nothing() -> None:
        pass

    await opened.run(nothing())
    thread = opened._thread
    await asyncio.to_thread(opened.close)
    assert thread is not None
    assert not thread.is_alive()


async def test_a_call_that_close_ends_gets_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a cancellation, which its caller did not ask for; also if the call takes a while to end."""
    monkeypatch.setattr("crew.store.postgres_server.CLOSE_SECONDS", 0.1)
    opened, began = server(), asyncio.Event()
    loop = asyncio.get_running_loop()

    async def hang() -> None:
        loop.call_soon_threadsafe(began.set)

        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)

    calling = asyncio.create_task(opened.run(hang()))
    await began.wait()
    await asyncio.to_thread(opened.close)

    async with asyncio.timeout(20):
        with pytest.raises(StoreError, match=r"The store postgresql://127\.0\.0\.1:9/runs is closed"):
            await calling


async def test_a_caller_that_is_cancelled_stays_cancelled() -> None:
    """Also if the store is closed meanwhile."""
    opened, began = server(), asyncio.Event()
    loop = asyncio.get_running_loop()

    async def hang() -> None:
        loop.call_soon_threadsafe(began.set)
        await asyncio.Event().wait()

    calling = asyncio.create_task(opened.run(hang()))
    await began.wait()
    calling.cancel()
    await asyncio.to_thread(opened.close)

    with pytest.raises(asyncio.CancelledError):
        await calling
