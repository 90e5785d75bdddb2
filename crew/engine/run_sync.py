"""`run_sync`: runs a coroutine from code without `await`, on an event loop that each thread keeps between calls."""

from __future__ import annotations

import asyncio
import atexit
import contextvars
import os
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType, MethodType
from typing import Any, Generic, TypeVar
from weakref import WeakSet

from crew.engine.concurrency import DAEMON_THREADS, CarriedError, carry_errors

Value = TypeVar("Value")

CANCEL_SECONDS = 5.0


def run_sync(work: Callable[[], Coroutine[Any, Any, Value]]) -> Value:
    """Run to the result, in a copy of the caller's context; inside a running event loop, on a daemon thread.

    A daemon thread is used by one call at a time, so that a call never waits for the loop that it comes from.
    """
    if _is_loop_running():
        return _BackgroundCall(work).result()

    # Outside the except block of the check, so that an error of the run has no RuntimeError as its context.
    return _run_on_this_thread(work)


def _is_loop_running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False

    return True


def _run_on_this_thread(work: Callable[[], Coroutine[Any, Any, Value]]) -> Value:
    if _THREAD.owner is None or not _THREAD.owner.loop.is_usable():
        _THREAD.owner = _LoopOwner(_ThreadLoop())

    loop = _THREAD.owner.loop

    try:
        return loop.run(work)
    except (KeyboardInterrupt, SystemExit):
        # A second Ctrl-C leaves tasks in the middle of their work: they end with their loop.
        _THREAD.owner = None
        raise


class _ThreadLoop:
    """The event loop of one thread; closed when the thread ends, or at the exit of the process.

    In a child process the loop of the parent is never closed: both share its selector and its sockets.
    """

    def __init__(self) -> None:
        # With a factory, the runner does not make its loop the current one of the thread.
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._process = os.getpid()
        self._lock = threading.Lock()

        if not _THREAD_LOOPS:
            atexit.unregister(_close_at_exit)
            atexit.register(_close_at_exit)

        _THREAD_LOOPS.add(self)

    def is_usable(self) -> bool:
        """Whether it can run: it is not closed, and this process made it."""
        return self._process == os.getpid() and not self._runner.get_loop().is_closed()

    def run(self, work: Callable[[], Coroutine[Any, Any, Value]]) -> Value:
        """Run to the result; Ctrl-C cancels the work, waits for its end, and raises KeyboardInterrupt."""
        with self._lock:
            try:
                return self._runner.run(_run_alone(work), context=contextvars.copy_context())
            except CarriedError as carried:
                error = carried.error

        raise error

    def close(self) -> None:
        """Close the loop, unless it runs: at the exit, a daemon thread may still use it."""
        loop = self._runner.get_loop()

        if self._process != os.getpid():
            _FOREIGN_LOOPS.append(loop)
        elif not loop.is_closed() and self._lock.acquire(blocking=False):
            # Not `Runner.close`: it waits for the threads of `asyncio.to_thread`, forever if one hangs.
            loop.run_until_complete(_cancel_other_tasks())
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()


class _LoopOwner:
    """Closes the loop of a thread when the thread ends, before `join` returns: the thread has the only reference.

    The loop itself may live longer, in the traceback of an error.
    """

    def __init__(self, loop: _ThreadLoop) -> None:
        self.loop = loop

    def __del__(self) -> None:
        self.loop.close()


class _Thread(threading.local):
    owner: _LoopOwner | None = None


_THREAD = _Thread()
_THREAD_LOOPS: WeakSet[_ThreadLoop] = WeakSet()
_FOREIGN_LOOPS: list[asyncio.AbstractEventLoop] = []
"""Loops of the parent process, kept forever."""


def _close_at_exit() -> None:
    for loop in tuple(_THREAD_LOOPS):
        loop.close()

    if _FOREIGN_LOOPS:
        import ctypes

        # The end of the interpreter drops all references and would close these loops: this one is never dropped.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(tuple(_FOREIGN_LOOPS)))


async def _run_alone(work: Callable[[], Coroutine[Any, Any, Value]]) -> Value:
    """Run to the result, and cancel the tasks that were left behind: between calls the loop does not run."""
    try:
        return await carry_errors(work())
    finally:
        await _cancel_other_tasks()


async def _cancel_other_tasks() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}

    for task in others:
        task.cancel()

    if others:
        await asyncio.wait(others, timeout=CANCEL_SECONDS)


class _BackgroundCall(Generic[Value]):
    """A call on a daemon thread, for which the calling thread waits."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, Value]]) -> None:
        self._work = work
        self._context = contextvars.copy_context()
        self._finished = threading.Event()
        self._task: asyncio.Task[Any] | None = None
        self._cancelled = False
        self._values: list[Value] = []
        self._error: BaseException | None = None

    def result(self) -> Value:
        """Wait for the result; Ctrl-C cancels the work, waits for its end, and raises KeyboardInterrupt."""
        DAEMON_THREADS.run(self._run, self._finished.set)

        with _interrupt_calls(self._cancel):
            self._finished.wait()

        if self._cancelled:
            raise KeyboardInterrupt

        if self._error is not None:
            raise self._error

        return self._values[0]

    def _run(self) -> None:
        threading.current_thread().name = "crew-execute-sync"

        try:
            self._values.append(self._context.run(_run_on_this_thread, self._cancellable))
        except BaseException as error:  # raised again in the calling thread
            self._error = error

    async def _cancellable(self) -> Value:
        self._task = asyncio.current_task()

        if self._cancelled:
            raise asyncio.CancelledError

        return await self._work()

    def _cancel(self) -> None:
        self._cancelled = True

        if self._task is not None:
            with suppress(RuntimeError):  # the loop was closed in the meantime
                self._task.get_loop().call_soon_threadsafe(self._task.cancel)


@contextmanager
def _interrupt_calls(cancel: Callable[[], None]) -> Iterator[None]:
    """Make the first Ctrl-C call `cancel`; the second one raises KeyboardInterrupt at once."""
    previous = signal.getsignal(signal.SIGINT)
    received: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        if received:
            raise KeyboardInterrupt

        received.append(number)
        cancel()

    if threading.current_thread() is not threading.main_thread() or not _is_default_handler(previous):
        yield
        return

    signal.signal(signal.SIGINT, handle)

    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def _is_default_handler(handler: object) -> bool:
    """Whether it is the handler of Python or of `asyncio.run`, not one of the application."""
    if isinstance(handler, partial) and isinstance(handler.func, MethodType):
        return isinstance(handler.func.__self__, asyncio.Runner)

    return handler is signal.default_int_handler
