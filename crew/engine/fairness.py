"""How the runs of a process share its event loop: a gate for steps, and optional admission of runs."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any, NamedTuple
from weakref import ReferenceType, WeakKeyDictionary, ref

STEPS_AT_ONCE = 64


class RunOrder(NamedTuple):
    """The place of a run among all runs of the process. A run that is started inside another one has its place."""

    number: int
    is_nested: bool = False


_NUMBERS = itertools.count()
_CURRENT: ContextVar[RunOrder | None] = ContextVar("crew_run_order", default=None)
_ENCLOSING: ContextVar[frozenset[str]] = ContextVar("crew_enclosing_runs", default=frozenset())
_TOOL_TASK: ContextVar[ReferenceType[asyncio.Task[Any]] | None] = ContextVar("crew_tool_task", default=None)
"""A weak reference: the task refers to its context, which would refer to the task."""


def next_order() -> RunOrder:
    """The place of a run that is started now."""
    outer = _CURRENT.get()
    return RunOrder(next(_NUMBERS)) if outer is None else RunOrder(outer.number, is_nested=True)


def enter_run(order: RunOrder, run_id: str) -> None:
    """Mark the current task, and the tasks and threads that it starts, as part of a run."""
    _CURRENT.set(order)
    _ENCLOSING.set(_ENCLOSING.get() | {run_id})
    _TOOL_TASK.set(None)


def enclosing_runs() -> frozenset[str]:
    """The ids of the runs that the current task is part of: they can't end before it."""
    return _ENCLOSING.get()


def enter_tool() -> None:
    """Mark the current task as the one in which a tool runs."""
    task = asyncio.current_task()
    assert task is not None
    _TOOL_TASK.set(ref(task))


def is_background_task() -> bool:
    """Whether a tool created the current task, and can end before it, unless it awaits it.

    Another event loop is that of a thread in which the tool waits.
    """
    reference = _TOOL_TASK.get()

    if reference is None:
        return False

    tool = reference()

    if tool is None or tool.done():
        return True

    return tool is not asyncio.current_task() and tool.get_loop() is asyncio.get_running_loop()


def leave_runs() -> None:
    """Mark the current task as no part of a run."""
    _ENCLOSING.set(frozenset())


@dataclass(slots=True, eq=False)
class Gate:
    """Lets at most 64 in at once, the oldest run first; belongs to one event loop.

    A place that becomes free can be taken in the next turn of the loop. So no turn of the loop performs more than 64
    steps, also if thousands of replies arrive together. The oldest run is first, so that runs finish one after the
    other: in the order of arrival, all of them would make their last step at the end.
    """

    _free: int = STEPS_AT_ONCE
    _left: int = 0
    _waiting: list[tuple[int, int, asyncio.Future[None]]] = field(default_factory=list)
    _arrivals: itertools.count[int] = field(default_factory=itertools.count)

    async def enter(self, order: RunOrder) -> None:
        """Wait for a place. A cancelled wait takes none."""
        if self._free and not self._waiting:
            self._free -= 1
            return

        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heappush(self._waiting, (order.number, next(self._arrivals), place))

        try:
            await place
        except asyncio.CancelledError:
            if not place.cancelled():
                self.leave()

            raise

    def leave(self) -> None:
        """Return the place."""
        self._left += 1

        if self._left == 1:
            with suppress(RuntimeError):  # the loop has ended, and nothing waits
                asyncio.get_running_loop().call_soon(self._admit)

    def _admit(self) -> None:
        self._free += self._left
        self._left = 0

        while self._free and self._waiting:
            *_, place = heappop(self._waiting)

            if not place.done():
                place.set_result(None)
                self._free -= 1


_TURNS: WeakKeyDictionary[asyncio.AbstractEventLoop, Gate] = WeakKeyDictionary()


async def take_turn(order: RunOrder) -> None:
    """Wait until this run may perform a step in the current turn of the event loop."""
    gate = _gate(_TURNS)
    await gate.enter(order)
    gate.leave()


@dataclass(slots=True, eq=False)
class CommitGate:
    """Lets at most 64 runs of an executor commit at once: a slow store has a short queue, in the order of the runs."""

    _gates: WeakKeyDictionary[asyncio.AbstractEventLoop, Gate] = field(default_factory=WeakKeyDictionary)

    @asynccontextmanager
    async def entered(self, order: RunOrder) -> AsyncIterator[None]:
        """Hold a place."""
        gate = _gate(self._gates)
        await gate.enter(order)

        try:
            yield
        finally:
            gate.leave()


def _gate(gates: WeakKeyDictionary[asyncio.AbstractEventLoop, Gate]) -> Gate:
    loop = asyncio.get_running_loop()
    gate = gates.get(loop)

    if gate is None:
        gate = gates[loop] = Gate()

    return gate


class _Waiting(NamedTuple):
    loop: asyncio.AbstractEventLoop
    place: asyncio.Future[None]


class Admission:
    """Lets at most `limit` runs be under way at once, in the order of their start; runs of all threads count.

    A run that is started inside another run does not wait, and does not count: the outer one waits for it.
    """

    def __init__(self, limit: int | None = None) -> None:
        self._limit = limit
        self._active = 0
        self._waiting: deque[_Waiting] = deque()
        self._lock = threading.Lock()

    @asynccontextmanager
    async def admitted(self, order: RunOrder) -> AsyncIterator[None]:
        """Wait for a place, and hold it."""
        if self._limit is None or order.is_nested:
            yield
            return

        await self._enter(self._limit)

        try:
            yield
        finally:
            with self._lock:
                self._leave()

    async def _enter(self, limit: int) -> None:
        loop = asyncio.get_running_loop()

        with self._lock:
            if self._active < limit:
                self._active += 1
                return

            waiting = _Waiting(loop, loop.create_future())
            self._waiting.append(waiting)

        try:
            await waiting.place
        except asyncio.CancelledError:
            with self._lock:
                if waiting in self._waiting:
                    self._waiting.remove(waiting)
                else:
                    self._leave()  # the place was given to this run just before

            raise

    def _leave(self) -> None:
        """Give the place to the run that waits longest. The lock is held."""
        while self._waiting:
            loop, place = self._waiting.popleft()

            try:
                loop.call_soon_threadsafe(_set_done, place)
                return
            except RuntimeError:
                continue  # its loop was closed, and the run with it

        self._active -= 1


def _set_done(place: asyncio.Future[None]) -> None:
    if not place.done():
        place.set_result(None)
