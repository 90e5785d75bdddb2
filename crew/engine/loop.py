"""The loop: while a run is not finished, perform the next step, advance, commit."""

from __future__ import annotations

import asyncio
from typing import assert_never

from crew.engine.compaction_step import make_summary
from crew.engine.concurrency import USER_CODE_ERRORS, is_failure, run_all
from crew.engine.model_step import ask_model
from crew.engine.run import ActiveRun
from crew.engine.tool_step import run_call, start_calls
from crew.errors import BranchesFailed, RunActive, StoreError, describe
from crew.runs.events import BranchTimedOut, RunFailed
from crew.runs.state import AskModel, AwaitInput, CallTools, Compact, Finished, RunBranches, RunState, is_blocked
from crew.transitions.advance import find_run


async def drive(run: ActiveRun, run_id: str) -> None:
    """Drive a run, or a child of it, until it is finished or waits for a person."""
    while (state := find_run(run.state, run_id)) and not isinstance(state.next, Finished) and not is_blocked(state):
        try:
            await perform_next(run, state)
        except USER_CODE_ERRORS as error:  # policies and handoff filters are user code; they fail their branch alone
            # A failed branch is data, and its group decides. A failed root run raises, and can be resumed. A failing
            # store, or another process that took the run over, ends the whole run.
            if run_id == run.state.run_id or isinstance(error, StoreError | RunActive) or not is_failure(error):
                raise

            run.errors[run_id] = error
            await run.record(RunFailed(run_id=run_id, error=describe(error), error_type=type(error).__name__))


async def perform_next(run: ActiveRun, state: RunState) -> None:
    """Perform what is next and record its outcome; a failure of the step before, which is committed, is raised."""
    if state.failure is not None:
        raise run.errors.get(state.run_id) or state.failure.as_error()

    match state.next:
        case AskModel():
            await ask_model(run, state)
        case CallTools():
            await _call_tools(run, state, state.next)
        case RunBranches():
            await _run_branches(run, state, state.next)
        case Compact():
            await make_summary(run, state, state.next)
        case AwaitInput() | Finished():
            raise AssertionError(f"{state.next.kind} can't be performed")
        case _:
            assert_never(state.next)


async def _call_tools(run: ActiveRun, state: RunState, now: CallTools) -> None:
    """Run the calls that may run, and the agents that were called as tools, all at the same time."""
    started = await start_calls(run, state, now)
    children = [state.children[open.child_key] for open in now.calls if open.status == "child"]
    await run_all(
        [
            *(run_call(run, state, call) for call in started),
            *(drive(run, child.run_id) for child in children if not is_blocked(child)),
        ]
    )


async def _run_branches(run: ActiveRun, state: RunState, now: RunBranches) -> None:
    """Drive every branch until it is finished or paused; once the group has joined or failed, stop the others."""
    if now.failure:
        failed = (run.errors.get(state.children[key].run_id) for key in now.branch_keys)
        raise BranchesFailed(now.failure) from next((error for error in failed if error is not None), None)

    group = run.plan.groups[now.group]
    semaphore = asyncio.Semaphore(group.max_concurrency or len(now.branch_keys))
    tasks: list[asyncio.Task[None]] = []

    async def drive_branch(child: RunState) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.append(task)

        async with semaphore:
            await drive(run, child.run_id)

        if not _group_is_running(run, state, now):
            for other in tasks:
                if other is not task:
                    other.cancel()

    children = [state.children[key] for key in now.branch_keys]
    runnable = [child for child in children if not isinstance(child.next, Finished) and not is_blocked(child)]

    try:
        async with asyncio.timeout(group.timeout) as deadline:
            await run_all(drive_branch(child) for child in runnable)
    except TimeoutError:
        if not deadline.expired() or group.timeout is None:
            raise

        await run.record(BranchTimedOut(run_id=state.run_id, group=group.name, seconds=group.timeout))


def _group_is_running(run: ActiveRun, state: RunState, now: RunBranches) -> bool:
    """Whether the group has neither joined nor failed: `RunBranches` does not change while its branches run."""
    current = find_run(run.state, state.run_id)
    return current is not None and current.next == now
