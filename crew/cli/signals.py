"""How a command is stopped: Ctrl-C, and SIGTERM, with which containers end, cancel the run and let it tidy up."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn, TypeVar

Result = TypeVar("Result")
Handler = Callable[[int, FrameType | None], Any]


class Terminated(KeyboardInterrupt):
    """The process was asked to end."""


def run_until_signalled(work: Coroutine[Any, Any, Result]) -> Result:
    """`asyncio.run`, which cancels its work on SIGTERM as it does on Ctrl-C; a second signal does not wait."""
    asked: list[int] = []

    async def main() -> Result:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None

        def stop(number: int, frame: FrameType | None) -> None:
            if asked:
                _terminate(number, frame)

            asked.append(number)
            loop.call_soon_threadsafe(task.cancel)

        with _signal_handler(signal.SIGTERM, stop):
            return await work

    try:
        return asyncio.run(main())
    except asyncio.CancelledError:
        if asked:
            raise Terminated from None

        raise


def prompt(prompt: str) -> str:
    """What a person types. Nothing is under way meanwhile, so that either signal ends it at once."""
    with _signal_handler(signal.SIGINT, signal.default_int_handler), _signal_handler(signal.SIGTERM, _terminate):
        return input(prompt)


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    raise Terminated


@contextmanager
def _signal_handler(number: int, handler: Handler) -> Iterator[None]:
    """Handle a signal, unless it is ignored on purpose, or this thread may not."""
    before = signal.getsignal(number)

    if before in (None, signal.SIG_IGN) or threading.current_thread() is not threading.main_thread():
        yield
        return

    signal.signal(number, handler)

    try:
        yield
    finally:
        signal.signal(number, before)
