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
    """The newest events of one run, from the first one after `start` on."""

    run_id: str
    reader: RunReader
    scrub: Scrub
    readers: int = 0
    _start: Cursor | None = None
    _events: list[EncodedEvent] = field(default_factory=list)
    _generation: object = None
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def after(self, cursor: Cursor | None, generation: object) -> list[EncodedEvent]:
        """Some of the events after a cursor; none if there are none.

        The store is asked only if no events after the cursor are kept, and if `generation` is not that of the last
        time: it changes whenever the log may have grown.
        """
        if not self._events and self._start is None:
            self._start = cursor  # the first reader decides where the tail begins

        if self._start is not None and (cursor is None or cursor < self._start):
            return await self._read(cursor)

        async with self._lock:
            if not (found := self._kept(cursor)) and self._generation != generation:
                page = await self._read(self._events[-1].cursor if self._events else self._start)
                self._events += page
                found = self._kept(cursor)

                if len(page) < PAGE:
                    self._generation = generation

        if len(self._events) > 2 * TAIL:
            self._start = self._events[-TAIL - 1].cursor
            del self._events[:-TAIL]

        return found

    def _kept(self, cursor: Cursor | None) -> list[EncodedEvent]:
        start = 0 if cursor is None else bisect_right(self._events, cursor, key=lambda one: one.cursor)
        return self._events[start:]

    @property
    def newest(self) -> int:
        """The sequence number of the newest event that was read."""
        return self._events[-1].event.sequence if self._events else 0

    async def _read(self, cursor: Cursor | None) -> list[EncodedEvent]:
        return [encode_stored(one, self.scrub) for one in await self.reader.events(self.run_id, cursor, PAGE)]


@dataclass(slots=True, eq=False)
class RunTails:
    """The tails of the runs that have readers."""

    _tails: dict[str, RunTail] = field(default_factory=dict)

    @contextmanager
    def tail(self, run_id: str, reader: RunReader, scrub: Scrub) -> Iterator[RunTail]:
        """The tail of a run, which all of its readers share."""
        tail = self._tails.setdefault(run_id, RunTail(run_id, reader, scrub))
        tail.readers += 1

        try:
            yield tail
        finally:
            tail.readers -= 1

            if not tail.readers:
                del self._tails[run_id]
