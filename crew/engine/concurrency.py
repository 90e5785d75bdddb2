"""Concurrency tools: run several coroutines, run a function on a daemon thread, wait in spite of cancellation."""

from __future__ import annotations

import asyncio
import contextvars
import os
import queue
import threading
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

from crew.errors import describe


async def wait_until_done(task: asyncio.Future[Any]) -> bool:
    """Wait until this future is done, even if the wait is cancelled; returns whether it was."""
    cancelled = False

    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            cancelled = True

    return cancelled


async def run_all(working: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run all coroutines to their end; the first error cancels the others and is raised without a group."""
    coroutines = list(working)

    if len(coroutines) == 1:
        await coroutines[0]
        return

    first: BaseException | None = None

    try:
        async with asyncio.TaskGroup() as group:
            for coroutine in coroutines:
                group.create_task(coroutine)
    except BaseExceptionGroup as errors:  # callers handle single errors: the first one is raised below
        first = errors.exceptions[0]

    # Raised outside the except block, so that the error keeps its cause.
    if first is not None:
        raise first


class DaemonThreads:
    """Reusable daemon threads: a job takes an idle thread or starts a new one; idle threads end after a while.

    Daemon threads never block the exit of the process. A job that hangs keeps its thread, and others are not affected.
    """

    def __init__(self, idle_seconds: float = 10.0) -> None:
        self._idle_seconds = idle_seconds
        self._lock = threading.Lock()
        self._idle: list[queue.SimpleQueue[Callable[[], None]]] = []
        self._process = os.getpid()

    def run(self, job: Callable[[], None]) -> None:
        """Run a job on a thread. The job must not raise."""
        with self._lock:
            if self._process != os.getpid():  # threads do not survive a fork
                self._idle, self._process = [], os.getpid()

            jobs = self._idle.pop() if self._idle else None

        if jobs is None:
            threading.Thread(target=self._work, args=(job,), name="crew-idle", daemon=True).start()
        else:
            jobs.put(job)

    def _work(self, job: Callable[[], None]) -> None:
        jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

        while True:
            job()
            threading.current_thread().name = "crew-idle"

            with self._lock:
                self._idle.append(jobs)

            try:
                job = jobs.get(timeout=self._idle_seconds)
            except queue.Empty:
                with self._lock:
                    if jobs in self._idle:
                        self._idle.remove(jobs)
                        return

                job = jobs.get()  # a job was assigned at the last moment


DAEMON_THREADS = DaemonThreads()

Value = TypeVar("Value")


async def run_in_daemon_thread(work: Callable[[], Value], *, name: str) -> Value:
    """Run a function on a daemon thread; if the wait is cancelled, the thread keeps running in the background.

    The default executor of the loop is no alternative: `asyncio.run` waits for its threads, forever if one hangs.
    """
    loop = asyncio.get_running_loop()
    result: asyncio.Future[Value] = loop.create_future()
    context = contextvars.copy_context()

    def settle(value: Value | None, error: BaseException | None) -> None:
        if result.done():
            return

        if error is None:
            result.set_result(value)  # type: ignore[arg-type]
        elif not isinstance(error, Exception | SystemExit | asyncio.CancelledError) or isinstance(error, StopIteration):
            # In the loop's thread these would mean something else: an interrupt, or the end of an iterator.
            result.set_exception(RuntimeError(describe(error)))
        else:
            result.set_exception(error)

    def job() -> None:
        threading.current_thread().name = name
        value, error = None, None

        try:
            value = context.run(work)
        except BaseException as raised:  # the tool boundary: raised again where the call is awaited
            error = raised

        try:
            loop.call_soon_threadsafe(settle, value, error)
        except RuntimeError:
            pass  # the loop was closed in the meantime

    DAEMON_THREADS.run(job)
    return await result
