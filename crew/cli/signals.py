"""Handles Ctrl-C and SIGTERM: both cancel the run and wait until it has committed its state."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn, TypeVar

from crew.cli.escaped_output import terminal_streams

Result = TypeVar("Result")
Handler = Callable[[int, FrameType | None], object]


class Terminated(KeyboardInterrupt):
    """The process received SIGTERM."""


def run_until_signalled(work: Coroutine[object, object, Result]) -> Result:
    """`asyncio.run` that also cancels its work on SIGTERM; a second SIGTERM ends the process without waiting."""
    import asyncio  # `crew --help` needs this module, but no event loop

    received: list[int] = []

    async def main() -> Result:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None

        def stop(number: int, frame: FrameType | None) -> None:
            if received:
                _terminate(number, frame)

            received.append(number)
            loop.call_soon_threadsafe(task.cancel)

        with _signal_handler(signal.SIGTERM, stop):
            return await work

    try:
        return asyncio.run(main())
    except asyncio.CancelledError:
        if received:
            raise Terminated from None

        raise


def prompt(text: str) -> str:
    """Read a line from the terminal. No run is active meanwhile, so that either signal stops it at once."""
    with (
        _signal_handler(signal.SIGINT, signal.default_int_handler),
        _signal_handler(signal.SIGTERM, _terminate),
        terminal_streams(),
    ):
        return input(text)


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    raise Terminated


@contextmanager
def _signal_handler(number: int, handler: Handler) -> Iterator[None]:
    """Install a signal handler, unless the process ignores the signal or this is not the main thread."""
    previous = signal.getsignal(number)

    if previous in (None, signal.SIG_IGN) or threading.current_thread() is not threading.main_thread():
        yield
        return

    signal.signal(number, handler)

    try:
        yield
    finally:
        signal.signal(number, previous)
