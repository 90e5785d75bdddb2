"""Waits for the stored events of a run: commits of this process end a wait at once, other commits are polled for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

POLL_SECONDS = 0.2
"""How often the waits of an event loop look into a store that other processes write to without a notification."""

Waiter = tuple[asyncio.AbstractEventLoop, asyncio.Event]


@dataclass(slots=True)
class EventWaiters:
    """The waits of one store, by run. Commits may come from any thread, and waits belong to any event loop."""

    _lock: threading.Lock = field(default_factory=threading.Lock)
    _waiting: dict[str, list[Waiter]] = field(default_factory=dict)
    _pollers: dict[asyncio.AbstractEventLoop, asyncio.Event] = field(default_factory=dict)
    """The wait of each event loop that polls for all of them."""

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
        recheck_seconds: float | None = None,
        poll: Callable[[], Awaitable[None]] | None = None,
    ) -> bool:
        """Wait until `is_stored` is true, or False after `timeout`.

        It is asked again after a wake, and after `recheck_seconds` without one. One wait of each event loop calls
        `poll` every 0.2 s, which wakes all waits if the store has changed.
        """
        loop, stored = waiter = (asyncio.get_running_loop(), asyncio.Event())

        with self._lock:
            self._waiting.setdefault(run_id, []).append(waiter)

        try:
            async with asyncio.timeout(timeout) as deadline:
                while not await is_stored():
                    if poll is None:
                        await wait_at_most(stored, recheck_seconds)
                    elif self._pollers.setdefault(loop, stored) is stored:
                        await poll()  # before the wait: a wait with a short timeout polls too
                        await wait_at_most(stored, POLL_SECONDS)
                    else:
                        await stored.wait()

                    stored.clear()

            return True
        except TimeoutError:
            if not deadline.expired():
                raise

            return False
        finally:
            self._remove(run_id, waiter, polls=poll is not None)

    def _remove(self, run_id: str, waiter: Waiter, *, polls: bool) -> None:
        """End a wait. If it polled for its event loop, or if no wait does, another one is woken to poll."""
        loop, stored = waiter

        with self._lock:
            self._waiting[run_id].remove(waiter)

            if not self._waiting[run_id]:
                del self._waiting[run_id]

            if not polls or self._pollers.get(loop, stored) is not stored:
                return

            self._pollers.pop(loop, None)
            newest_first = (one for waiters in reversed(self._waiting.values()) for one in reversed(waiters))
            next_poller = next((one for one in newest_first if one[0] is loop), None)

        if next_poller is not None:
            _wake([next_poller])


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
