"""Clocks that a test controls, an event loop that runs in virtual time, and a wait for other threads and processes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def fixed_clock() -> float:
    """Always the same time."""
    return 1_000.0


class TickingClock:
    """Advances by one second each time it is read."""

    def __init__(self, start: float = 1_000.0) -> None:
        self.now = start

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


class ManualClock:
    """Advances when the test sets `now`."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


class VirtualLoop(asyncio.SelectorEventLoop):
    """Time stands still while a task can run, and jumps to the next timer when none can."""

    now = 0.0

    def time(self) -> float:
        return self.now

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:
            self.now = max(self.now, self._scheduled[0]._when)

        super()._run_once()


def run_in_virtual_time(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in virtual time: waiting an hour takes no time, and a slow machine changes nothing."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)


def wait_until(is_true: Callable[[], bool], seconds: float = 30.0) -> None:
    """Wait for another thread or process, at most so long."""
    deadline = time.monotonic() + seconds

    while not is_true():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)
