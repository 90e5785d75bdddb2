"""`EventStream`: the events of one run as an async iterator, and its result."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import Any, Generic, Self

from pydantic_core import from_json
from typing_extensions import TypeVar

from crew.agents.output_type import OutputType
from crew.engine.concurrency import carried_result, carry_errors, wait_until_done
from crew.engine.fairness import is_background_task, leave_runs
from crew.errors import CrewError, UnknownRun
from crew.runs.events import Asked, Event, TextDelta
from crew.runs.result import RunResult

StreamOutput_co = TypeVar("StreamOutput_co", covariant=True, default=Any)

Publish = Callable[[Event], None]


def _discard(event: Event) -> None:
    """Drop an event: the caller only wants the result."""


class EventStream(Generic[StreamOutput_co]):
    """Iterate with `async for`, inside `async with` or not; `result` is available at the end.

    The run starts with the iteration. Leaving early interrupts it: its state is committed, and it can be resumed.
    """

    def __init__(
        self,
        work: Callable[[Publish], Awaitable[RunResult[StreamOutput_co]]],
        run_id: str,
        cancel: Callable[[str], Awaitable[bool]],
        close: Callable[[Publish], Awaitable[RunResult[StreamOutput_co]]],
        output_type: Callable[[str], OutputType | None] = lambda agent: None,
        *,
        resumes: bool = False,
    ) -> None:
        self._work, self._run_id, self._resumes = work, run_id, resumes
        self._cancel, self._close, self._output_type = cancel, close, output_type
        self._closed: RunResult[StreamOutput_co] | None = None
        self._queue: asyncio.Queue[Event | None] = asyncio.Queue()
        self._task: asyncio.Task[RunResult[StreamOutput_co]] | None = None
        self._publish: Publish = self._queue.put_nowait
        self._entered = False
        self._agent = ""
        self._pieces: list[str] = []

    @property
    def run_id(self) -> str:
        """The id of the run, also before it starts."""
        return self._run_id

    async def cancel(self) -> None:
        """Cancel the run: it ends with `stop_reason="cancelled"`. The stream goes on to its end, and has a result.

        A run that waits for a conversation is cancelled when its turn comes, and a paused run also if its stream has
        ended, or if it was resumed elsewhere. A finished run stays as it is.
        """
        if self._task is None and self._resumes:
            self._work = self._close  # nothing of the run is performed

        task = self._begin()

        while not task.done() and not await self._cancel(self._run_id):
            await asyncio.wait([task], timeout=0.01)  # the run is being prepared, and has no first commit yet

        await asyncio.wait([task])
        is_ended = self._closed is not None or task.cancelled() or task.exception() is not None

        if not is_ended and task.result().stop_reason == "paused":
            try:
                self._closed = await self._close(_discard)  # the stream of its events has ended
            except UnknownRun as error:
                if not error.is_finished:  # else it was resumed to its end, and its store keeps no finished runs
                    raise

    @property
    def partial(self) -> Any:
        """The structured output as far as its deltas were read; None before its first part.

        It is not validated: fields may be missing, and the last text may be incomplete.
        """
        try:
            value = from_json("".join(self._pieces), allow_partial="trailing-strings")
        except ValueError:
            return None

        output = self._output_type(self._agent)
        return value if output is None else output.partial_value(value)

    @property
    def result(self) -> RunResult[StreamOutput_co]:
        """The result of the run; raises the error that ended it."""
        if self._closed is not None:
            return self._closed

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

    async def drain(self, publish: Publish = _discard) -> RunResult[StreamOutput_co]:
        """Wait for the result; `publish` is called with each event, by default they are dropped."""
        self._publish = publish
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
        if event.run_id != self._run_id:
            return

        if isinstance(event, Asked) or (isinstance(event, TextDelta) and event.channel == "restart"):
            self._pieces.clear()
            self._agent = event.agent
        elif isinstance(event, TextDelta) and event.channel == "text":
            self._pieces.append(event.text)

    def _begin(self) -> asyncio.Task[RunResult[StreamOutput_co]]:
        if self._task is None:
            self._task = asyncio.ensure_future(self._run(is_in_background=is_background_task()))

        return self._task

    async def _run(self, *, is_in_background: bool) -> RunResult[StreamOutput_co]:
        if is_in_background:
            leave_runs()  # the run whose tool started this one does not wait for it

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
