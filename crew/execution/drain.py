"""A stream read to its end by whoever wants the result alone."""

from __future__ import annotations

import asyncio
import contextvars
import threading

from crew.execution.stream import EventStream
from crew.runs import RunResult


def in_a_loop_of_its_own(stream: EventStream) -> RunResult:
    """The same without `await`; inside a running event loop it works on a thread, in the caller's context."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(stream.drain())

    found: list[RunResult | BaseException] = []

    def work() -> None:
        try:
            found.append(asyncio.run(stream.drain()))
        except BaseException as error:  # raised again in the caller's thread, below
            found.append(error)

    context = contextvars.copy_context()
    thread = threading.Thread(target=lambda: context.run(work), name="crew-execute-sync")
    thread.start()
    thread.join()

    if isinstance(found[0], BaseException):
        raise found[0]

    return found[0]
