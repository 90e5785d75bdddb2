"""Concurrency tools: errors that leave a task, several coroutines at once, functions on daemon threads."""

from __future__ import annotations

import asyncio
import contextvars
import os
import queue
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, TypeVar

from crew.errors import describe

Value = TypeVar("Value")


USER_CODE_ERRORS = (Exception, SystemExit, asyncio.CancelledError)
"""What is caught at a boundary to user code, and raised again unless `is_failure`."""


def is_failure(error: BaseException) -> bool:
    """Whether user code failed. Ctrl-C, a requested cancellation and the end of the process stop a run from outside.

    `sys.exit()` is a failure of the run that called it: other runs of the process go on.
    """
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is not None and not task.cancelling()

    return isinstance(error, Exception | SystemExit)


class CarriedError(BaseException):
    """Carries an error out of its task. Raised as it is, it would stop the event loop, or be lost."""

    def __init__(self, error: BaseException) -> None:
        self.error = error
        super().__init__(describe(error))


async def carry_errors(work: Awaitable[Value]) -> Value:
    """The coroutine of a task; `carried_result` raises the error of the task, whatever its class."""
    try:
        return await work
    except (KeyboardInterrupt, SystemExit) as error:
        raised: BaseException = error
    except asyncio.CancelledError as error:
        if not is_failure(error):
            raise

        raised = error

    raise CarriedError(raised)


def carried_result(task: asyncio.Future[Value]) -> Value:
    """The result of a task that is done; raises its error."""
    if not task.cancelled() and isinstance(error := task.exception(), CarriedError):
        raise error.error

    return task.result()


async def wait_until_done(task: asyncio.Future[Any]) -> bool:
    """Wait until this future is done, even if the wait is cancelled; returns whether it was."""
    cancelled = False

    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            cancelled = True

    return cancelled


async def acquire_lock(lock: asyncio.Lock) -> bool:
    """Acquire a lock, even if the wait is cancelled; returns whether it was."""
    cancelled = False

    while True:
        try:
            await lock.acquire()
        except asyncio.CancelledError:
            cancelled = True
        else:
            return cancelled


GRACE_SECONDS = 5.0
"""How long a cancelled tool or provider may take to end. Then the run continues without it."""


class TimedOut(Exception):
    """User code did not end in time. Not a `TimeoutError`, which user code may raise itself."""


OnAbandoned = Callable[[asyncio.Future[Any]], None]


async def run_or_abandon(
    work: Coroutine[Any, Any, Value], on_abandoned: OnAbandoned, seconds: float | None = None
) -> Value:
    """Run user code in a task. After `seconds`, or if this wait is cancelled, cancel the task, or else abandon it.

    Raises `TimedOut` after `seconds`. A task is needed because a coroutine that is awaited directly and ignores its
    cancellation would also hold up everything that awaits it.
    """
    task = asyncio.ensure_future(carry_errors(work))

    try:
        done, _ = await asyncio.wait((task,), timeout=seconds)
    except asyncio.CancelledError:
        await _stop(task, on_abandoned)
        raise

    if not done:
        await _stop(task, on_abandoned)
        raise TimedOut

    return carried_result(task)


async def _stop(task: asyncio.Future[Any], on_abandoned: OnAbandoned) -> None:
    """Cancel a task and wait a bounded time for its end, also if this wait is cancelled."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + GRACE_SECONDS
    cancelled = False
    task.cancel()

    while not task.done() and (left := deadline - loop.time()) > 0:
        try:
            await asyncio.wait((task,), timeout=left)
        except asyncio.CancelledError:
            cancelled = True

    if not task.done():
        on_abandoned(task)
    elif not task.cancelled():
        task.exception()  # mark it as retrieved: the caller raises its own error

    if cancelled:
        raise asyncio.CancelledError


async def cancel_and_wait(task: asyncio.Task[object]) -> None:
    """Cancel a task, of this event loop or of another thread's, and wait for its end."""
    loop = task.get_loop()

    if loop is asyncio.get_running_loop():
        task.cancel()
    elif not loop.is_closed():
        loop.call_soon_threadsafe(task.cancel)

    await wait_for_end(task)


async def wait_for_end(task: asyncio.Task[object]) -> None:
    """Wait for the end of a task, of this event loop or of another thread's."""
    here, loop, done = asyncio.get_running_loop(), task.get_loop(), asyncio.Event()

    def watch() -> None:
        task.add_done_callback(lambda _: here.call_soon_threadsafe(done.set))

    if loop is here:
        await asyncio.wait([task])
    elif not loop.is_closed():
        loop.call_soon_threadsafe(watch)
        await done.wait()


async def run_all(working: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run all coroutines to their end; the first error cancels the others and is raised.

    Not a `TaskGroup`, which cancels its tasks in the order of a set: a workflow that is replayed must cancel them in
    the same order again.
    """
    coroutines = list(working)

    if len(coroutines) == 1:
        await coroutines[0]
        return

    tasks = [asyncio.ensure_future(carry_errors(coroutine)) for coroutine in coroutines]
    stopped_by: BaseException | None = None

    while not all(task.done() for task in tasks):
        try:
            await asyncio.wait(tasks, return_when="FIRST_EXCEPTION" if stopped_by is None else "ALL_COMPLETED")
            raised = _first_error(tasks)
        except asyncio.CancelledError as error:
            raised = error

        if stopped_by is None and raised is not None:
            stopped_by = raised

            for task in tasks:
                task.cancel()

    if isinstance(stopped_by, asyncio.CancelledError):
        stopped_by = _first_error(tasks) or stopped_by  # as in a `TaskGroup`, an error outranks the cancellation

    if stopped_by is not None:
        raise stopped_by.error if isinstance(stopped_by, CarriedError) else stopped_by


def _first_error(tasks: list[asyncio.Task[None]]) -> BaseException | None:
    """The error of the first of these tasks that failed; marks all errors as retrieved."""
    errors = [task.exception() for task in tasks if task.done() and not task.cancelled()]
    return next((error for error in errors if error is not None), None)


Job = tuple[Callable[[], None], Callable[[], None] | None]


class DaemonThreads:
    """Reusable daemon threads: a job takes an idle thread or starts a new one; idle threads end after a while.

    Daemon threads never block the exit of the process. A job that hangs keeps its thread, and others are not affected.
    """

    def __init__(self, idle_seconds: float = 10.0) -> None:
        self._idle_seconds = idle_seconds
        self._lock = threading.Lock()
        self._idle: list[queue.SimpleQueue[Job]] = []
        self._process = os.getpid()

    def run(self, work: Callable[[], None], finished: Callable[[], None] | None = None) -> None:
        """Run a job on a thread. When the thread can take the next job, it calls `finished`. Neither must raise."""
        if self._process != os.getpid():  # threads do not survive a fork, and one of them may have held the lock
            self._lock, self._idle, self._process = threading.Lock(), [], os.getpid()

        with self._lock:
            jobs = self._idle.pop() if self._idle else None

        if jobs is None:
            job = (work, finished)
            threading.Thread(target=self._work, args=(job,), name="crew-idle", daemon=True).start()
        else:
            jobs.put((work, finished))

    def _work(self, job: Job) -> None:
        jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()

        while True:
            work, finished = job
            work()
            threading.current_thread().name = "crew-idle"

            with self._lock:
                self._idle.append(jobs)

            if finished is not None:
                finished()

            del job, work, finished  # an idle thread keeps no reference to what it ran

            try:
                job = jobs.get(timeout=self._idle_seconds)
            except queue.Empty:
                with self._lock:
                    if jobs in self._idle:
                        self._idle.remove(jobs)
                        return

                job = jobs.get()  # a job was assigned at the last moment


DAEMON_THREADS = DaemonThreads()


async def run_in_daemon_thread(
    work: Callable[[], Value], *, name: str, on_abandoned: OnAbandoned | None = None
) -> Value:
    """Run a function on a daemon thread; if the wait is cancelled, the thread keeps running in the background.

    A thread can't be cancelled, so `on_abandoned` gets a future of its outcome at once.
    The default executor of the loop is no alternative: `asyncio.run` waits for its threads, forever if one hangs.
    """
    loop = asyncio.get_running_loop()
    result: asyncio.Future[Value] = loop.create_future()
    late: asyncio.Future[Value] = loop.create_future()
    context = contextvars.copy_context()

    def settle(value: Value | None, error: BaseException | None) -> None:
        target = late if result.done() else result

        if error is None:
            target.set_result(value)  # type: ignore[arg-type]
        elif isinstance(error, StopIteration | GeneratorExit):
            # Thrown into a coroutine, these would mean something else: the end of an iterator, or of the coroutine.
            target.set_exception(RuntimeError(describe(error)))
        else:
            target.set_exception(error)

    outcome: list[tuple[Value | None, BaseException | None]] = []

    def job() -> None:
        threading.current_thread().name = name

        try:
            outcome.append((context.run(work), None))
        except BaseException as raised:  # the tool boundary: raised again where the call is awaited
            outcome.append((None, raised))

    def finished() -> None:
        try:
            loop.call_soon_threadsafe(settle, *outcome.pop())
        except RuntimeError:
            pass  # the loop was closed in the meantime

    DAEMON_THREADS.run(job, finished)

    try:
        return await result
    except asyncio.CancelledError:
        if result.cancelled():
            # Retrieve the outcome, so that asyncio does not log it.
            late.add_done_callback(lambda done: done.cancelled() or done.exception())

            if on_abandoned is not None:
                on_abandoned(late)

        raise
