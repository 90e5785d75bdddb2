"""Several at once, and none left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any


async def together(working: Iterable[Coroutine[Any, Any, None]]) -> None:
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
