"""The connections of a PostgreSQL store are closed wherever its last reference is dropped; without a server."""

from __future__ import annotations

import asyncio

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
