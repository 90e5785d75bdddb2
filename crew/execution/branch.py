"""Running the branches of a group: at the same time, each by the same loop, and none left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from crew.errors import BranchesFailed
from crew.execution.advance import at
from crew.execution.group import together
from crew.execution.run import Run
from crew.runs import Finished, RunBranches, RunState, is_blocked
from crew.runs.events import BranchTimedOut

Drive = Callable[[Run, str], Coroutine[Any, Any, None]]


async def branch(run: Run, state: RunState, now: RunBranches, drive: Drive) -> None:
    """Carry every branch to its end or to its pause; when the group has joined or failed, the others are stopped."""
    if now.failed:
        raise BranchesFailed(now.failed)

    group = run.plan.groups[now.group]
    gate = asyncio.Semaphore(group.max_concurrency or len(now.branches))
    tasks: list[asyncio.Task[None]] = []

    async def one(child: RunState) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.append(task)

        async with gate:
            await drive(run, child.run_id)

        if not _goes_on(run, state, now):
            for other in tasks:
                if other is not task:
                    other.cancel()

    children = [state.children[key] for key in now.branches]
    waiting = [child for child in children if not isinstance(child.next, Finished) and not is_blocked(child)]

    try:
        async with asyncio.timeout(group.timeout) as clock:
            await together(one(child) for child in waiting)
    except TimeoutError:
        if not clock.expired() or group.timeout is None:
            raise

        await run.record(BranchTimedOut(run_id=state.run_id, group=group.name, seconds=group.timeout))


def _goes_on(run: Run, state: RunState, now: RunBranches) -> bool:
    here = at(run.state, state.run_id)
    return here is not None and here.next == now
