"""`EventStream`: the events of one run as an async iterator, and its result."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import Any, Self

from pydantic_core import from_json

from crew.engine.concurrency import carried_result, carry_errors, wait_until_done
from crew.errors import CrewError
from crew.runs.events import Asked, Event, TextDelta
from crew.runs.result import RunResult

Publish = Callable[[Event], None]


def _discard(event: Event) -> None:
    """Drop an event: the caller only wants the result."""


class EventStream:
    """Iterate with `async for`, inside `async with` or not; `result` is available at the end.

    The run starts with the iteration. Leaving early cancels it: its state is committed, and it can be resumed.
    """

    def __init__(self, work: Callable[[Publish], Awaitable[RunResult]]) -> None:
        self._work = work
        self._queue: asyncio.Queue[Event | None] = asyncio.Queue()
        self._task: asyncio.Task[RunResult] | None = None
        self._publish: Publish = self._queue.put_nowait
        self._entered = False
        self._root = ""
        self._pieces: list[str] = []

    @property
    def partial(self) -> dict[str, Any] | None:
        """The structured output as far as its deltas were read; None before the first field.

        It is not validated: fields may be missing, and the last text may be incomplete.
        """
        try:
            value = from_json("".join(self._pieces), allow_partial="trailing-strings")
        except ValueError:
            return None

        return value if isinstance(value, dict) else None

    @property
    def result(self) -> RunResult:
        """The result of the run; raises the error that ended it."""
        if self._task is None or not self._task.done() or self._task.cancelled():
            raise CrewError(
                "The stream was not read to its end: iterate over all events before you ask for the result."
            )

        return carried_result(self._task)

    async def __aenter__(self) -> Self:
        self._entered = True
        self._begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end()

    async def drain(self) -> RunResult:
        """Wait for the result; events are dropped."""
        self._publish = _discard
        task = self._begin()

        try:
            await asyncio.wait([task])
            return carried_result(task)
        finally:
            await self._end()

    def __aiter__(self) -> AsyncIterator[Event]:
        # The reading loop holds the only reference: leaving it ends the generator, and with it the run.
        return self._read()

    async def _read(self) -> AsyncIterator[Event]:
        task = self._begin()

        try:
            # A stream that was read to its end gets no further events.
            while not (task.done() and self._queue.empty()) and (event := await self._queue.get()) is not None:
                self._track_partial(event)
                yield event

            await asyncio.wait([task])
            carried_result(task)
        finally:
            if not self._entered:
                await self._end()

    def _track_partial(self, event: Event) -> None:
        self._root = self._root or event.run_id

        if event.run_id != self._root:
            return

        if isinstance(event, Asked) or (isinstance(event, TextDelta) and event.channel == "restart"):
            self._pieces.clear()
        elif isinstance(event, TextDelta) and event.channel == "text":
            self._pieces.append(event.text)

    def _begin(self) -> asyncio.Task[RunResult]:
        if self._task is None:
            self._task = asyncio.ensure_future(self._run())

        return self._task

    async def _run(self) -> RunResult:
        try:
            return await carry_errors(self._work(self._publish))
        finally:
            self._queue.put_nowait(None)

    async def _end(self) -> None:
        if self._task is None:
            return

        interrupted = False

        if not self._task.done():
            self._task.cancel()
            interrupted = await wait_until_done(self._task)

        if not self._task.cancelled():
            self._task.exception()  # marks the exception as retrieved, so that asyncio does not log it

        if interrupted:
            raise asyncio.CancelledError
