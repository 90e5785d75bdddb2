"""Sync work beside the event loop, on threads that never keep the process alive."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from typing import TypeVar

from crew.errors import describe

Value = TypeVar("Value")


async def on_daemon_thread(work: Callable[[], Value], *, name: str) -> Value:
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
