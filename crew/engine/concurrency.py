"""Concurrency tools: run several coroutines, run a function on a daemon thread, wait in spite of cancellation."""

from __future__ import annotations

import asyncio
import contextvars
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

    def body() -> None:
        value, error = None, None

        try:
            value = context.run(work)
        except BaseException as raised:  # the tool boundary: raised again where the call is awaited
            error = raised

        try:
            loop.call_soon_threadsafe(settle, value, error)
        except RuntimeError:
            pass  # the loop was closed in the meantime

    threading.Thread(target=body, name=name, daemon=True).start()
    return await result
