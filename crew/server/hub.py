"""`RunHub`: drives each run in a task that no HTTP request owns, and signals readers that events were stored."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TypeAlias

from crew.engine.stream import EventStream
from crew.errors import CrewError, RunActive, describe
from crew.runs.events import Asked, Event, QuestionAsked, Replied, RunFailed, TextDelta, ToolProgress, ToolReturned

log = logging.getLogger("crew")

HELD_SECONDS = 10.0
"""How long a store with a bounded number of runs keeps one that ended here, for clients that then read its result."""

Hold: TypeAlias = Callable[[str], Callable[[], None]]
"""Keeps a run in the store until the function that it returns is called."""

LiveEvent: TypeAlias = TextDelta | ToolProgress
"""The events that are not stored: they reach the readers that are connected, in the process that drives the run."""


@dataclass(slots=True, eq=False)
class Subscription:
    """One reader of a run: a signal that there is something to read, and a bounded buffer of live events.

    A reader that is too slow for the buffer loses the live events of the replies that are under way, and gets those of
    later replies. It never loses a stored event: these are read from the store.
    """

    limit: int
    _buffer: deque[LiveEvent] = field(default_factory=deque)
    _signal: asyncio.Event = field(default_factory=asyncio.Event)
    _incomplete: set[str] = field(default_factory=set)
    """The runs and branches whose reply under way was received in part."""

    def publish(self, event: Event) -> None:
        """Add a live event; any other event is only signalled."""
        if isinstance(event, TextDelta | ToolProgress):
            self._add(event)
        elif isinstance(event, Asked):
            self._incomplete.discard(event.run_id)

        self._signal.set()

    def _add(self, event: LiveEvent) -> None:
        if len(self._buffer) >= self.limit:
            self._incomplete.update(lost.run_id for lost in self._buffer)
            self._incomplete.add(event.run_id)
            self._buffer.clear()
        elif event.run_id not in self._incomplete:
            self._buffer.append(event)

    def take(self, before: int | None = None) -> Iterator[LiveEvent]:
        """Remove the live events, in order: all, or those with a sequence number before this one."""
        while self._buffer and (before is None or self._buffer[0].sequence < before):
            yield self._buffer.popleft()

    def wake(self) -> None:
        """Let the reader look again."""
        self._signal.set()

    def clear(self) -> None:
        """Forget the signal; called before the store is read, so that no later event is missed."""
        self._signal.clear()

    async def wait(self, seconds: float) -> bool:
        """Wait for the next signal; False if none came in this time."""
        try:
            async with asyncio.timeout(seconds):
                await self._signal.wait()
        except TimeoutError:
            return False

        return True


@dataclass(slots=True, eq=False)
class RepliesUnderWay:
    """The text so far of the replies that models are generating, so that a new reader gets all of it."""

    _pieces: dict[str, list[TextDelta]] = field(default_factory=dict)

    def add(self, event: Event) -> None:
        """Note an event: a request or a whole reply ends what was generated before it."""
        if isinstance(event, TextDelta) and event.channel != "restart":
            self._pieces.setdefault(event.run_id, []).append(event)
        elif isinstance(event, TextDelta | Asked | Replied | RunFailed):
            self._pieces.pop(event.run_id, None)

    def texts(self, *, restart: bool) -> Iterator[TextDelta]:
        """The text of each run and branch; with `restart`, after a delta that makes a reader drop what it has."""
        for pieces in self._pieces.values():
            if restart:
                yield replace(pieces[0], text="", channel="restart")

            for channel, same in groupby(pieces, key=lambda piece: piece.channel):
                found = [*same]
                yield replace(found[-1], text="".join(piece.text for piece in found), channel=channel)


@dataclass(slots=True, eq=False)
class CallsUnderWay:
    """The newest progress of each running call, so that a new reader need not wait for the next one."""

    _newest: dict[tuple[str, str], ToolProgress] = field(default_factory=dict)

    def add(self, event: Event) -> None:
        """Note an event: a result or a question ends the call."""
        if isinstance(event, ToolProgress):
            self._newest[event.run_id, event.key or event.call_id] = event
        elif isinstance(event, ToolReturned):
            self._newest.pop((event.run_id, event.key or event.result.call_id), None)
        elif isinstance(event, QuestionAsked):
            self._newest.pop((event.run_id, event.key), None)

    def progress(self) -> Iterator[ToolProgress]:
        """The newest progress of each call."""
        yield from self._newest.values()


@dataclass(slots=True, eq=False)
class DrivenRun:
    """A run that this process drives. `began` ends with its first event, or with the run."""

    run_id: str
    token: str
    began: asyncio.Future[None]
    release: Callable[[], None]
    task: asyncio.Task[None] | None = None
    error: BaseException | None = None
    newest: int = 0
    replies: RepliesUnderWay = field(default_factory=RepliesUnderWay)
    calls: CallsUnderWay = field(default_factory=CallsUnderWay)


def _hold_nothing(run_id: str) -> Callable[[], None]:
    return lambda: None


class RunHub:
    """Drives runs. A client that disconnects, is slow, or crashes never stops or delays a run.

    `hold` keeps a run in the store while it is driven or read, and for `held_seconds` after its end.
    """

    def __init__(
        self, max_buffered_deltas: int = 1_000, hold: Hold | None = None, held_seconds: float = HELD_SECONDS
    ) -> None:
        self._limit = max_buffered_deltas
        self._hold, self._held_seconds = hold or _hold_nothing, held_seconds
        self._runs: dict[str, DrivenRun] = {}
        self._readers: dict[str, set[Subscription]] = {}
        self._tokens: Counter[str] = Counter()
        self.is_closing = False
        self.is_recovering = False
        """Whether interrupted runs are about to be resumed: until then they count as running."""
        self.stopped_runs: tuple[str, ...] = ()
        """The runs that `aclose` stopped."""

    # ------------------------------------------------------------------------------------------ driving

    async def start(self, run_id: str, stream: EventStream, token: str = "") -> None:
        """Drive a run that starts or resumes; returns with its first event, which is committed then.

        Raises the error of a run that did not start, and `RunActive` if this hub drives it already.
        """
        if run_id in self._runs:
            raise RunActive(run_id)

        run = DrivenRun(run_id, token, asyncio.get_running_loop().create_future(), self._hold(run_id))
        self._runs[run_id] = run
        self._tokens[token] += 1
        # The hub owns the task: a caller that is cancelled does not cancel the run.
        run.task = asyncio.create_task(self._drive(run, stream), name=f"crew run {run_id}")
        await asyncio.shield(run.began)

        if run.error is not None:
            raise run.error

    async def _drive(self, run: DrivenRun, stream: EventStream) -> None:
        def publish(event: Event) -> None:
            if not isinstance(event, TextDelta | ToolProgress):
                run.newest = event.sequence

            run.replies.add(event)
            run.calls.add(event)

            # A run whose first event is its failure has not begun: `start` raises the error.
            if not run.began.done() and not isinstance(event, RunFailed):
                run.began.set_result(None)

            for reader in self._readers.get(run.run_id, ()):
                reader.publish(event)

        try:
            await stream.drain(publish)
        except CrewError as error:
            if not run.began.done():
                run.error = error  # the caller of `start` gets it
            else:
                log.info("run %s ended: %s", run.run_id, describe(error))  # a stored event has the failure
        except Exception as error:  # the boundary to user code: one run must not end the server
            run.error = None if run.began.done() else error
            log.warning("run %s ended: %s", run.run_id, describe(error))
        finally:
            del self._runs[run.run_id]
            self._tokens[run.token] -= 1

            if not self._tokens[run.token]:
                del self._tokens[run.token]

            if not run.began.done():
                run.began.set_result(None)

            for reader in self._readers.get(run.run_id, ()):
                reader.wake()

            asyncio.get_running_loop().call_later(self._held_seconds, run.release)

    async def wait_until_begun(self, run_id: str) -> None:
        """Wait until a run that this hub drives is stored; returns at once if there is none."""
        if (run := self._runs.get(run_id)) is not None:
            await asyncio.shield(run.began)

    async def wait_until_released(self, run_id: str, seconds: float = 1.0) -> None:
        """Wait until this hub no longer drives a run whose last commit is stored; at most so long."""
        if (run := self._runs.get(run_id)) is not None and run.task is not None:
            await asyncio.wait([run.task], timeout=seconds)

    def drives(self, run_id: str) -> bool:
        """Whether this hub drives the run."""
        return run_id in self._runs

    def newest(self, run_id: str) -> int:
        """The sequence number of the newest event of a run that this hub drives, stored or not yet; not of deltas."""
        run = self._runs.get(run_id)
        return 0 if run is None else run.newest

    def runs_of(self, token: str) -> int:
        """How many runs of a token are under way."""
        return self._tokens[token]

    @property
    def active_runs(self) -> int:
        """How many runs are under way."""
        return len(self._runs)

    # ------------------------------------------------------------------------------------------ reading

    @contextmanager
    def subscribe(self, run_id: str, *, reconnects: bool = False) -> Iterator[Subscription]:
        """The live events and signals of a run, also of one that starts later.

        They begin with the text of the replies under way, and the newest progress of running calls. A reader that
        reconnects has a part of the text, and drops that.
        """
        run = self._runs.get(run_id)
        known: deque[LiveEvent] = deque()

        if run is not None:
            known.extend(run.replies.texts(restart=reconnects))
            known.extend(run.calls.progress())

        reader = Subscription(self._limit, known)
        self._readers.setdefault(run_id, set()).add(reader)
        release = self._hold(run_id)

        try:
            yield reader
        finally:
            release()
            readers = self._readers[run_id]
            readers.discard(reader)

            if not readers:
                del self._readers[run_id]

    @property
    def readers(self) -> int:
        """How many readers follow a run."""
        return sum(map(len, self._readers.values()))

    # ------------------------------------------------------------------------------------------ closing

    def end_streams(self) -> None:
        """End all streams of events; their clients reconnect and continue after the last event."""
        self.is_closing = True

        for readers in self._readers.values():
            for reader in readers:
                reader.wake()

    async def aclose(self) -> None:
        """Stop all runs, as committed so far: they can be resumed."""
        self.end_streams()
        tasks = {run.run_id: run.task for run in self._runs.values() if run.task is not None}

        for task in tasks.values():
            task.cancel()

        if tasks:
            await asyncio.wait(tasks.values())
            self.stopped_runs += tuple(run_id for run_id, task in tasks.items() if task.cancelled())
