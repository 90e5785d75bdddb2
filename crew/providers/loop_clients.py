"""Closes what belongs to an event loop before the loop is closed: by `asyncio.run`, by a bare `close`, or at exit."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from weakref import WeakSet

from crew.providers.sdk_clients import SDKClient


@dataclass(slots=True, kw_only=True, eq=False)
class LoopClient:
    """The client of one event loop; closed when it is `closing` and its last request has ended.

    `forget` is called when it starts closing: the next request opens another client.
    """

    client: SDKClient
    forget: Callable[[], None]
    users: int = 0
    closing: bool = False

    async def close_if_idle(self) -> None:
        """Close the client if it is to be closed and no request uses it."""
        if self.closing and not self.users:
            await self.client.client.close()


@dataclass(slots=True, kw_only=True, eq=False, weakref_slot=True)
class LoopClients:
    """The clients of one event loop. It takes the place of `loop.close`, and so it lives as long as the loop.

    `asyncio.run` finalizes the async generators of its loop: there, a generator closes the clients. A bare
    `loop.close()` finalizes nothing: there, calling this object closes them first.
    """

    loop: asyncio.AbstractEventLoop
    close_loop: Callable[[], None]
    _open: set[LoopClient] = field(default_factory=set)
    _dropped: set[LoopClient] = field(default_factory=set)
    _generator: AsyncGenerator[None, None] | None = None
    _process: int = field(default_factory=os.getpid)

    @classmethod
    def of(cls, loop: asyncio.AbstractEventLoop) -> LoopClients:
        """The clients of this loop."""
        found = vars(loop).get("close")

        if not isinstance(found, LoopClients):
            found = vars(loop)["close"] = LoopClients(loop=loop, close_loop=loop.close)

        return found

    async def add(self, client: LoopClient) -> None:
        """Close this client with its loop, if it is not closed before. Also closes the clients that were dropped."""
        _close_at_exit(self)
        self._open.add(client)

        if self._generator is None:
            self._generator = self._until_loop_ends()
            await anext(self._generator)

        while self._dropped:
            await self.close(self._dropped.pop())

    async def close(self, client: LoopClient) -> None:
        """Close this client once its last request has ended."""
        self._open.discard(client)

        if not client.closing:
            client.closing = True
            client.forget()
            await client.close_if_idle()

    def drop(self, client: LoopClient) -> None:
        """Close the client of a provider that no longer exists; called from any thread."""
        if self._process != os.getpid() or self.loop.is_closed():
            return

        self._dropped.add(client)

        if self.loop.is_running():
            # Otherwise it is closed when the loop opens another client, or is closed itself.
            self.loop.call_soon_threadsafe(lambda: self.loop.create_task(self._close_dropped(client)))

    async def _close_dropped(self, client: LoopClient) -> None:
        if client in self._dropped:
            self._dropped.discard(client)
            await self.close(client)

    async def _close_all(self) -> None:
        while self._open:
            await self.close(self._open.pop())

        self._dropped.clear()

    async def _until_loop_ends(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            self._generator = None
            await self._close_all()

    def __call__(self) -> None:
        """Close the loop."""
        self.close_now()
        self.close_loop()

    def close_now(self) -> None:
        """Close all clients, unless the loop can't run: it runs already, is closed, or belongs to another process."""
        if not self._open or self.loop.is_running() or self.loop.is_closed() or self._process != os.getpid():
            return

        if _is_loop_running():
            thread = threading.Thread(target=self._run, args=(self._close_all,))
            thread.start()
            thread.join()
        else:
            self._run(self._close_all)

    def _run(self, work: Callable[[], Awaitable[None]]) -> None:
        self.loop.run_until_complete(work())
        # A transport closes its socket in the next iteration of its loop.
        self.loop.run_until_complete(asyncio.sleep(0))


def _is_loop_running() -> bool:
    with suppress(RuntimeError):
        asyncio.get_running_loop()
        return True

    return False


_LOOPS: WeakSet[LoopClients] = WeakSet()


def _close_at_exit(clients: LoopClients) -> None:
    """Close them at the exit of the process if their loop was never closed."""
    if not _LOOPS:
        atexit.unregister(_close_all_loops)
        atexit.register(_close_all_loops)

    _LOOPS.add(clients)


def _close_all_loops() -> None:
    for clients in tuple(_LOOPS):
        clients.close_now()
