"""Readers of one run share its newest events; each gets every event after its cursor once, wherever the others are."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from typing import cast

from crew.runs.events import Warned
from crew.runs.interfaces import Cursor, RunReader, StoredEvent
from crew.server.run_tails import PAGE, TAIL, EncodedEvent, RunTail


class Log:
    """The events of a run in a store that suspends its readers, as one in a file does."""

    def __init__(self, count: int = 0) -> None:
        self.stored: list[StoredEvent] = []
        self.reads = 0
        self.add(count)

    def add(self, count: int) -> None:
        for number in range(len(self.stored), len(self.stored) + count):
            event = Warned(run_id="r", sequence=number, text="")
            self.stored.append(StoredEvent(cursor=Cursor(1 + number // 5, number % 5), event=event))

    async def events(self, run_id: str, after: Cursor | None = None, limit: int = 1_000) -> tuple[StoredEvent, ...]:
        self.reads += 1
        found = [one for one in self.stored if after is None or one.cursor > after][:limit]
        await asyncio.sleep(0)
        return tuple(found)


def tail_of(log: Log) -> RunTail:
    return RunTail("r", cast("RunReader", log), lambda event: event)


async def read_all(tail: RunTail, after: Cursor | None = None) -> list[int]:
    """The numbers of all events after a cursor."""
    return [number async for page in pages(tail, after) for number in numbers(page)]


async def pages(tail: RunTail, after: Cursor | None = None) -> AsyncIterator[Sequence[EncodedEvent]]:
    while page := await tail.after(after, object()):
        after = page[-1].cursor
        yield page


def numbers(page: Sequence[EncodedEvent]) -> list[int]:
    return [one.event.sequence for one in page]


async def test_a_reader_ahead_of_the_others_gets_its_events() -> None:
    """The tail is where the other reader stopped, several pages behind."""
    log = Log(3 * PAGE)
    tail = tail_of(log)
    idle = pages(tail)  # reads one page, and then nothing
    first = numbers(await anext(idle))
    assert await read_all(tail, log.stored[-21].cursor) == list(range(3 * PAGE - 20, 3 * PAGE))
    assert first + [number async for page in idle for number in numbers(page)] == list(range(3 * PAGE))


async def test_two_readers_from_the_start_get_all_events() -> None:
    """While one reads a page from the store, the other waits: it may be behind the tail afterwards."""
    log = Log(2 * PAGE)
    tail = tail_of(log)
    first, second = await asyncio.gather(read_all(tail), read_all(tail))
    assert first == second == list(range(2 * PAGE))


async def test_readers_anywhere_get_each_event_once() -> None:
    """The log grows while they read; some pause, and some begin after its end."""
    choose = random.Random(7)
    log = Log(2 * PAGE)
    tail = tail_of(log)
    total = 3 * PAGE

    async def follow(start: int) -> list[int]:
        after = log.stored[start - 1].cursor if start else None
        found: list[int] = []

        while start + len(found) < total:
            page = await tail.after(after, object())
            after = page[-1].cursor if page else after
            found += numbers(page)

            for _ in range(choose.choice((1, 1, 5, 40))):
                await asyncio.sleep(0)

        return found

    async def grow() -> None:
        while len(log.stored) < total:
            log.add(min(choose.choice((1, 7, 2 * TAIL)), total - len(log.stored)))
            await asyncio.sleep(0)

    starts = [0, 0, *(choose.randrange(2 * PAGE) for _ in range(10)), 2 * PAGE]

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        readers = [group.create_task(follow(start)) for start in starts]
        group.create_task(grow())

    assert [reader.result() for reader in readers] == [list(range(start, total)) for start in starts]


async def test_readers_at_the_end_share_one_read_of_the_store() -> None:
    """A signal without a stored event costs no read, also for a reader that begins at the end of the log."""
    log = Log(10)
    tail = tail_of(log)
    last = log.stored[-1].cursor

    for _ in range(5):
        assert await tail.after(last, 10) == []

    assert log.reads == 1
    log.add(1)

    for _ in range(5):
        assert numbers(await tail.after(last, 11)) == [10]
        assert await tail.after(log.stored[-1].cursor, 11) == []

    assert log.reads == 2


async def test_a_cursor_of_another_store_does_not_hide_events_from_others() -> None:
    """Its reader gets none, and the tail of the others stays where it is."""
    log = Log(10)
    tail = tail_of(log)
    foreign = Cursor(9_999, 0)
    assert await tail.after(foreign, 10) == []
    assert numbers(await tail.after(None, 10)) == list(range(10))
    assert await tail.after(foreign, 10) == []
    log.add(1)
    assert await tail.after(foreign, 11) == []
    assert numbers(await tail.after(log.stored[9].cursor, 11)) == [10]
