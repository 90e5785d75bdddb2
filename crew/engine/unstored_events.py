"""The events of a run that its next commit will store, or a timer if no commit comes soon."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from typing import Any

from crew.engine.concurrency import wait_until_done
from crew.runs.events import Event

STORE_SECONDS = 0.2
"""How long an event waits for a commit."""


class UnstoredEvents:
    """Events that wait for a commit, and the timer that stores them without one.

    A timer is started by the first event, and only moved when it fires: a run whose commits follow each other quickly
    has one timer for each 0.2 s, and writes nothing more than its commits.
    """

    __slots__ = ("_is_failing", "_storing", "_timer", "_waiting_since", "events")

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._waiting_since, self._is_failing = 0.0, False
        self._timer: asyncio.TimerHandle | None = None
        self._storing: asyncio.Task[None] | None = None

    def add(self, event: Event) -> None:
        """Add an event at the end."""
        self.events.append(event)

    def take(self) -> tuple[Event, ...]:
        """Remove and return all events, in order."""
        events = tuple(self.events)
        self.events.clear()
        return events

    def put_back(self, events: tuple[Event, ...]) -> None:
        """Put events that could not be stored before those that were added meanwhile; they wait for the next commit."""
        self.events[:0] = events
        self._is_failing = True

    def clear(self) -> None:
        """Forget the events: they are stored."""
        self.events.clear()
        self._is_failing = False

    def store_soon(self, store: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Call `store` in 0.2 s, unless a commit comes first."""
        loop = asyncio.get_running_loop()

        if len(self.events) == 1:
            self._waiting_since = loop.time()

        if self._timer is None and self._storing is None and not self._is_failing:
            self._start_timer(loop, store)

    def _start_timer(self, loop: asyncio.AbstractEventLoop, store: Callable[[], Coroutine[Any, Any, None]]) -> None:
        # In an empty context: the timer may fire in a later step of the run.
        due = self._waiting_since + STORE_SECONDS
        self._timer = loop.call_at(due, self._fire, loop, store, context=contextvars.Context())

    def _fire(self, loop: asyncio.AbstractEventLoop, store: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._timer = None

        if not self.events or self._is_failing:
            return

        if self._waiting_since + STORE_SECONDS > loop.time() + 0.001:
            self._start_timer(loop, store)  # these events came later than the one that started the timer
            return

        def stored(task: asyncio.Task[None]) -> None:
            self._storing = None

            if self.events and not self._is_failing:
                self._start_timer(loop, store)

        self._storing = loop.create_task(store(), name="crew-events")
        self._storing.add_done_callback(stored)

    async def stop(self) -> None:
        """Stop the timer, and wait for the events that are being stored, also if this wait is cancelled."""
        if self._storing is not None and await wait_until_done(self._storing):
            task = asyncio.current_task()
            assert task is not None
            task.uncancel()
            task.cancel()

        self.stop_timer()

    def stop_timer(self) -> None:
        """Stop the timer: the events stay."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
