"""The loop: while not finished — perform what is next, advance, commit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, assert_never

from crew.engine.compaction_step import make_summary
from crew.engine.concurrency import run_all
from crew.engine.model_step import ask_model
from crew.engine.run import ActiveRun
from crew.engine.tool_step import start_calls
from crew.errors import BranchesFailed, OutputInvalid, StoreError, describe
from crew.runs.events import BranchTimedOut, RunFailed
from crew.runs.state import AskModel, AwaitInput, CallTools, Compact, Finished, RunBranches, RunState, is_blocked
from crew.transitions.advance import find_run

Drive = Callable[[ActiveRun, str], Coroutine[Any, Any, None]]


async def _run_branches(run: ActiveRun, state: RunState, now: RunBranches, drive: Drive) -> None:
    """Carry every branch to its end or to its pause; when the group has joined or failed, the others are stopped."""
    if now.failure:
        raise BranchesFailed(now.failure)

    group = run.plan.groups[now.group]
    gate = asyncio.Semaphore(group.max_concurrency or len(now.branch_keys))
    tasks: list[asyncio.Task[None]] = []

    async def one(child: RunState) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.append(task)

        async with gate:
            await drive(run, child.run_id)

        if not _group_is_running(run, state, now):
            for other in tasks:
                if other is not task:
                    other.cancel()

    children = [state.children[key] for key in now.branch_keys]
    waiting = [child for child in children if not isinstance(child.next, Finished) and not is_blocked(child)]

    try:
        async with asyncio.timeout(group.timeout) as clock:
            await run_all(one(child) for child in waiting)
    except TimeoutError:
        if not clock.expired() or group.timeout is None:
            raise

        await run.record(BranchTimedOut(run_id=state.run_id, group=group.name, seconds=group.timeout))


def _group_is_running(run: ActiveRun, state: RunState, now: RunBranches) -> bool:
    here = find_run(run.state, state.run_id)
    return here is not None and here.next == now


async def drive(run: ActiveRun, run_id: str) -> None:
    """Carry a run, or a branch of it, to its end, or to where only a person can help."""
    while (state := find_run(run.state, run_id)) and not isinstance(state.next, Finished) and not is_blocked(state):
        try:
            await perform_next(run, state)
        except Exception as error:  # a policy or filter may be anybody's code: in a branch it fails that branch alone
            # A branch that can't go on has failed, and its group decides; a whole run stops, and can be resumed.
            # What can't be stored is no branch's fault.
            if run_id == run.state.run_id or isinstance(error, StoreError):
                raise

            await run.record(RunFailed(run_id=run_id, error=describe(error), error_type=type(error).__name__))


async def perform_next(run: ActiveRun, state: RunState) -> None:
    """Do what is next; what comes of it is recorded."""
    match state.next:
        case AskModel(failure=""):
            await ask_model(run, state)
        case AskModel(failure=failed):
            raise OutputInvalid(failed)
        case CallTools():
            await start_calls(run, state, state.next, drive)
        case RunBranches():
            await _run_branches(run, state, state.next, drive)
        case Compact():
            await make_summary(run, state, state.next)
        case AwaitInput() | Finished():
            raise AssertionError(f"{state.next.kind} can't be performed")
        case _:
            assert_never(state.next)
