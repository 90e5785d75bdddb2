"""`run_all`: several coroutines at once, which end together and in the same order whenever they are repeated."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from crew.engine.concurrency import run_all


async def waiting(number: int, stopped: list[int], on_cancel: Callable[[], None] = lambda: None) -> None:
    try:
        await asyncio.sleep(600)
    except asyncio.CancelledError:
        stopped.append(number)
        on_cancel()
        raise


async def failing(error: Exception) -> None:
    await asyncio.sleep(0)
    raise error


async def test_first_error_cancels_the_others_in_their_order() -> None:
    """The order of a set would differ from replay to replay of a workflow."""
    stopped: list[int] = []
    error = ValueError("bad")

    with pytest.raises(ValueError, match="bad") as caught:
        await run_all([*(waiting(number, stopped) for number in range(50)), failing(error)])

    assert caught.value is error
    assert stopped == list(range(50))


async def test_cancellation_reaches_all_and_waits_for_their_end() -> None:
    """Also if the caller is cancelled again meanwhile; the cancellation is raised."""
    stopped: list[int] = []

    def cancel_again() -> None:
        task.cancel()

    task = asyncio.ensure_future(run_all(waiting(number, stopped, cancel_again) for number in range(20)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert stopped == list(range(20))


async def test_error_outranks_the_cancellation_that_it_met() -> None:
    """A store that fails while a run is cancelled is reported."""

    def fail() -> None:
        raise OSError("disk full")

    task = asyncio.ensure_future(run_all([waiting(0, []), waiting(1, [], fail)]))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()

    with pytest.raises(OSError, match="disk full"):
        await task
