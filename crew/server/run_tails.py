"""The newest events of the runs that have readers: read from the store, scrubbed and encoded once for all readers."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from crew.runs.events import Event
from crew.runs.interfaces import Cursor, RunReader, StoredEvent
from crew.server.run_json import event_json

PAGE = 500
TAIL = 100
"""The number of events that are kept for each run with readers; a reader further behind reads from the store."""

BEGINNING = Cursor(0, -1)
"""Before the first event of a run."""

Scrub = Callable[[Event], Event]


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedEvent(StoredEvent):
    """A stored event, and its bytes in a stream of server-sent events."""

    frame: bytes = field(repr=False)


def encode_stored(stored: StoredEvent, scrub: Scrub) -> EncodedEvent:
    """A stored event without secrets. Its id is its cursor, which a client sends back as `Last-Event-ID`."""
    event = scrub(stored.event)
    id, kind = str(stored.cursor).encode(), event.kind.encode()
    return EncodedEvent(
        cursor=stored.cursor,
        event=event,
        frame=b"id: %s\nevent: %s\ndata: %s\n\n" % (id, kind, event_json(event)),
    )


@dataclass(slots=True, eq=False)
class RunTail:
    """The newest events of one run that a reader has read, from the first one after `start` on.

    A reader that is further than the tail moves it; a reader that is behind it reads from the store.
    """

    run_id: str
    reader: RunReader
    scrub: Scrub
    readers: int = 0
    _start: Cursor = BEGINNING
    _events: list[EncodedEvent] = field(default_factory=list)
    _complete: tuple[object, Cursor] = (None, BEGINNING)
    """A generation in which the log had no events after this cursor."""
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def after(self, cursor: Cursor | None, generation: object) -> list[EncodedEvent]:
        """Some of the events after a cursor; none only if there are none.

        The store is asked only if no events after the cursor are kept, and if none were found in this `generation`,
        which changes whenever the log may have grown.
        """
        after = BEGINNING if cursor is None else cursor

        async with self._lock:
            if after >= self._start:  # not before the lock: another reader may have moved the tail
                return self._kept(after) or await self._read_newest(after, generation)

        return await self._read(after)

    def _kept(self, after: Cursor) -> list[EncodedEvent]:
        return self._events[bisect_right(self._events, after, key=lambda one: one.cursor) :]

    async def _read_newest(self, after: Cursor, generation: object) -> list[EncodedEvent]:
        """Read the events after a cursor that is at the end of the tail or further, and keep them."""
        known, end = self._complete

        if generation == known and after >= end:
            return []

        page = await self._read(after)

        if len(page) < PAGE:
            self._complete = generation, page[-1].cursor if page else after

        if page:
            self._keep(after, page)

        return page

    def _keep(self, after: Cursor, page: list[EncodedEvent]) -> None:
        if after > (self._events[-1].cursor if self._events else self._start):
            self._start, self._events = after, []  # the events between are not known

        self._events += page

        if len(self._events) > 2 * TAIL:
            self._start = self._events[-TAIL - 1].cursor
            del self._events[:-TAIL]

    @property
    def newest(self) -> int:
        """The sequence number of the newest event that was read."""
        return self._events[-1].event.sequence if self._events else 0

    async def _read(self, after: Cursor) -> list[EncodedEvent]:
        return [encode_stored(one, self.scrub) for one in await self.reader.events(self.run_id, after, PAGE)]


@dataclass(slots=True, eq=False)
class RunTails:
    """The tails of the runs that have readers, for each group of readers that get the same events."""

    _tails: dict[tuple[str, object], RunTail] = field(default_factory=dict)

    @contextmanager
    def tail(self, run_id: str, reader: RunReader, scrub: Scrub, group: object = None) -> Iterator[RunTail]:
        """The tail of a run, which all readers of a group share: `scrub` depends on the group alone."""
        tail = self._tails.setdefault((run_id, group), RunTail(run_id, reader, scrub))
        tail.readers += 1

        try:
            yield tail
        finally:
            tail.readers -= 1

            if not tail.readers:
                del self._tails[run_id, group]
