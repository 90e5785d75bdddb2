"""Waits for the stored events of a run: commits of this process end a wait at once, other commits are polled for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

POLL_SECONDS = 0.2
"""How often a wait looks into a store that other processes write to without a notification."""

Waiter = tuple[asyncio.AbstractEventLoop, asyncio.Event]


@dataclass(slots=True)
class EventWaiters:
    """The waits of one store, by run. Commits may come from any thread, and waits belong to any event loop."""

    _lock: threading.Lock = field(default_factory=threading.Lock)
    _waiting: dict[str, list[Waiter]] = field(default_factory=dict)

    def notify(self, run_id: str) -> None:
        """Wake the waits for this run."""
        if run_id not in self._waiting:
            return

        with self._lock:
            waiting = tuple(self._waiting.get(run_id, ()))

        _wake(waiting)

    def notify_all(self) -> None:
        """Wake all waits."""
        with self._lock:
            waiting = tuple(waiter for waiters in self._waiting.values() for waiter in waiters)

        _wake(waiting)

    async def wait(
        self,
        run_id: str,
        is_stored: Callable[[], Awaitable[bool]],
        timeout: float | None,
        poll_seconds: float | None = None,
    ) -> bool:
        """Wait until `is_stored` is true, or False after `timeout`; looks again after `poll_seconds` without a wake."""
        waiter = (asyncio.get_running_loop(), asyncio.Event())

        with self._lock:
            self._waiting.setdefault(run_id, []).append(waiter)

        try:
            async with asyncio.timeout(timeout) as deadline:
                while not await is_stored():
                    await wait_at_most(waiter[1], poll_seconds)
                    waiter[1].clear()

            return True
        except TimeoutError:
            if not deadline.expired():
                raise

            return False
        finally:
            with self._lock:
                self._waiting[run_id].remove(waiter)

                if not self._waiting[run_id]:
                    del self._waiting[run_id]


def _wake(waiting: Iterable[Waiter]) -> None:
    for loop, stored in waiting:
        try:
            loop.call_soon_threadsafe(stored.set)
        except RuntimeError:
            pass  # the loop of this wait was closed


async def wait_at_most(event: asyncio.Event, seconds: float | None) -> None:
    """Wait for an event, or until so much time has passed."""
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        pass
