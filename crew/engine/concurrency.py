"""Several at once, and none left behind."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

from crew.errors import describe


async def wait_until_done(task: asyncio.Future[Any]) -> bool:
    """Wait until this is done, whatever happens meanwhile; whether somebody cancelled the wait."""
    cancelled = False

    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            cancelled = True

    return cancelled


async def run_all(working: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run all of them to their end; the first error cancels the others and is raised as it is."""
    coroutines = list(working)

    if len(coroutines) == 1:
        await coroutines[0]
        return

    first: BaseException | None = None

    try:
        async with asyncio.TaskGroup() as group:
            for coroutine in coroutines:
                group.create_task(coroutine)
    except BaseExceptionGroup as errors:  # unpacked here and raised below: callers handle one error, not groups
        first = errors.exceptions[0]

    # Raised out here, the error keeps the cause that it came with.
    if first is not None:
        raise first


Value = TypeVar("Value")


async def run_in_daemon_thread(work: Callable[[], Value], *, name: str) -> Value:
    """Run this on a thread of its own; if the wait for it is given up, the thread is left to itself.

    The loop's own executor won't do: `asyncio.run` waits for its threads at the end, for ever if one hangs.
    """
    loop = asyncio.get_running_loop()
    waiting: asyncio.Future[Value] = loop.create_future()
    context = contextvars.copy_context()

    def settle(value: Value | None, error: BaseException | None) -> None:
        if waiting.done():
            return

        if error is None:
            waiting.set_result(value)  # type: ignore[arg-type]
        elif not isinstance(error, Exception | SystemExit | asyncio.CancelledError) or isinstance(error, StopIteration):
            # Raised in the loop's own thread these would mean something else: an interrupt, the end of an iterator.
            waiting.set_exception(RuntimeError(describe(error)))
        else:
            waiting.set_exception(error)

    def body() -> None:
        value, error = None, None

        try:
            value = context.run(work)
        except BaseException as raised:  # the tool boundary: it is raised again where the call is awaited
            error = raised

        try:
            loop.call_soon_threadsafe(settle, value, error)
        except RuntimeError:
            pass  # the loop has closed meanwhile: nobody waits any more

    threading.Thread(target=body, name=name, daemon=True).start()
    return await waiting
