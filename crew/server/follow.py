"""Follows one run: its stored events from a cursor on, each once and in order, with live events between them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, get_args

from crew.runs.events import Paused, RunFailed, RunFinished
from crew.runs.interfaces import Cursor, EventFollower, StoredEvent
from crew.runs.state import StopReason
from crew.server.hub import LiveEvent, RunHub, Subscription
from crew.server.run_tails import RunTail

POLL_SECONDS = 0.25
"""How often the events of a run are read that another process drives, if the store can't notify."""

STATUS_SECONDS = 2.0
"""How often the status of such a run is read, if no event reports that it stopped."""

STOPPING = (RunFinished, RunFailed, Paused)

ENDED = frozenset(get_args(StopReason)) - {"paused", "failed"}
"""The statuses of a run that can't continue."""

STOPPED = ENDED | {"paused", "failed", "interrupted"}
"""The statuses of a run that does not continue by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """Nothing happened for a while."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStopped:
    """The run stopped with this status, and the reader has all of its stored events."""

    run_id: str
    status: str


Followed: TypeAlias = StoredEvent | LiveEvent | Heartbeat | RunStopped


def merged(page: Sequence[StoredEvent], live: Subscription) -> list[Followed]:
    """Stored events, each after the live events that were published before it."""
    items: list[Followed] = []

    for stored in page:
        items += live.take(before=stored.event.sequence)
        items.append(stored)

    return items


@dataclass(slots=True, kw_only=True)
class Follower:
    """One reader of the log of a run. `status` finds the status of the run, `interrupted` if nothing drives it."""

    hub: RunHub
    tail: RunTail
    status: Callable[[], Awaitable[str]]
    heartbeat_seconds: float = 15.0
    _status: str = ""
    _checked_at: float = 0.0
    _may_have_stopped: bool = True
    _may_have_grown: bool = True

    async def batches(
        self, after: Cursor | None, until: frozenset[str], *, reconnects: bool
    ) -> AsyncGenerator[Sequence[Followed], None]:
        """Each stored event after this cursor; ends when the status of the run is in `until`, or the server closes.

        Live events only signal that the log has grown. So a reader that reconnects with the cursor of its last event
        gets every stored event exactly once. A batch is what there is at one moment.
        """
        beat_at = time.monotonic() + self.heartbeat_seconds

        with self.hub.subscribe(self.tail.run_id, reconnects=reconnects) as live:
            while not self.hub.is_closing:
                live.clear()
                # Asked before the log is read: what was stored until the run stopped is then read.
                status = await self._current_status()
                page = await self.tail.after(after, self._generation(status))

                if page:
                    after = page[-1].cursor
                    self._may_have_stopped |= any(isinstance(stored.event, STOPPING) for stored in page)
                    yield merged(page, live)
                    continue  # until there are no more: then it is safe to wait

                now, found = time.monotonic(), [*live.take()]

                if found:
                    yield found

                if status in until:
                    yield [RunStopped(run_id=self.tail.run_id, status=status)]
                    return

                if found:
                    beat_at = now + self.heartbeat_seconds
                elif now >= beat_at:
                    beat_at = now + self.heartbeat_seconds
                    yield [Heartbeat()]

                await self._wait(live, after, beat_at - now)

    async def _current_status(self) -> str:
        """The status; while another process drives the run, it is read when an event reports a stop, or at times."""
        now = time.monotonic()

        if self.hub.drives(self.tail.run_id):
            self._status, self._may_have_stopped = "running", True
        elif self._may_have_stopped or now - self._checked_at >= STATUS_SECONDS:
            self._status, self._checked_at, self._may_have_stopped = await self.status(), now, False

        return self._status

    def _generation(self, status: str) -> object:
        """Equal to that of the last time if the log can't have grown since then."""
        is_driven = status == "running" and self.hub.drives(self.tail.run_id)
        may_have_grown, self._may_have_grown = self._may_have_grown, False
        return object() if may_have_grown or not is_driven else self.hub.newest(self.tail.run_id)

    async def _wait(self, live: Subscription, after: Cursor | None, seconds: float) -> None:
        """Wait for a signal of the hub, or for an event that is stored without one; at most these seconds.

        The hub does not signal the events of another process, nor the moment in which an event that changes no state
        is stored.
        """
        run_id, store = self.tail.run_id, self.tail.reader

        if self.hub.drives(run_id) and self.hub.newest(run_id) <= self.tail.newest:
            await live.wait(seconds)
        elif isinstance(store, EventFollower):
            seconds = min(seconds, STATUS_SECONDS)
            grown = asyncio.ensure_future(store.wait_for_events(run_id, after, seconds))
            signal = asyncio.ensure_future(live.wait(seconds))

            try:
                await asyncio.wait((grown, signal), return_when=asyncio.FIRST_COMPLETED)
                self._may_have_grown = grown.done() and grown.result()
            finally:
                grown.cancel()
                signal.cancel()
        else:
            await live.wait(min(seconds, POLL_SECONDS))
            self._may_have_grown = True
