"""The loop: while a run is not finished, perform the next step, advance, commit."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, assert_never

from crew.engine.compaction_step import make_summary
from crew.engine.concurrency import USER_CODE_ERRORS, is_failure, run_all
from crew.engine.guardrail_step import check_calls, check_input, check_output
from crew.engine.model_step import ask_model
from crew.engine.prepare_step import prepare_agent
from crew.engine.run import ActiveRun, Effect, EffectKind, RunEnded
from crew.engine.tool_step import prepare_started, run_call, start_calls, starts_without_user_code
from crew.errors import BranchesFailed, RunActive, StoreError, describe
from crew.runs.events import BranchTimedOut, RunFailed
from crew.runs.state import (
    AskModel,
    AwaitInput,
    CallTools,
    CheckInput,
    CheckOutput,
    ChooseNext,
    Compact,
    Finished,
    PrepareAgent,
    RunBranches,
    RunState,
    is_blocked,
)
from crew.transitions.advance import find_run
from crew.transitions.checks import unchecked_calls

FOR_THE_WHOLE_RUN = (StoreError, RunActive, RunEnded)


async def drive(run: ActiveRun, run_id: str) -> None:
    """Drive a run, or a child of it, until it is finished or waits for a person."""
    while (state := find_run(run.state, run_id)) and not isinstance(state.next, Finished) and not is_blocked(state):
        if run.effects is not None:
            await run.effects.before_step()

        try:
            await perform_next(run, state)
        except USER_CODE_ERRORS as error:  # policies and handoff filters are user code; they fail their branch alone
            # A failed branch is data, and its group decides. A failed root run raises, and can be resumed. A failing
            # store, another process that took the run over, or a tool that stopped it, ends the whole run.
            if run_id == run.state.run_id or isinstance(error, FOR_THE_WHOLE_RUN) or not is_failure(error):
                raise

            run.errors[run_id] = error
            await run.record(RunFailed(run_id=run_id, error=describe(error), error_type=type(error).__name__))


async def perform_next(run: ActiveRun, state: RunState) -> None:
    """Perform what is next and record its outcome; a failure of the step before, which is committed, is raised."""
    if state.failure is not None:
        raise run.errors.get(state.run_id) or state.failure.as_error()

    match state.next:
        case CheckInput():
            await (check_input(run, state, state.next) if run.effects is None else _remote(run, "check_input", state))
        case CheckOutput():
            await (check_output(run, state, state.next) if run.effects is None else _remote(run, "check_output", state))
        case PrepareAgent():
            await (prepare_agent(run, state) if run.effects is None else _remote(run, "prepare_agent", state))
        case AskModel():
            await (ask_model(run, state) if run.effects is None else _remote(run, "ask_model", state))
        case CallTools():
            await _call_tools(run, state, state.next)
        case RunBranches():
            await _run_branches(run, state, state.next)
        case Compact():
            await (make_summary(run, state, state.next) if run.effects is None else _remote(run, "make_summary", state))
        case AwaitInput() | ChooseNext() | Finished():
            raise AssertionError(f"{state.next.kind} can't be performed")
        case _:
            assert_never(state.next)


def _remote(run: ActiveRun, kind: EffectKind, state: RunState, call_key: str = "") -> Coroutine[Any, Any, None]:
    assert run.effects is not None
    return run.effects.perform(run, Effect(kind=kind, run_id=state.run_id, call_key=call_key))


async def perform_effect(run: ActiveRun, effect: Effect) -> None:
    """Perform an effect here, for the process that drives the run; nothing if the run does not need it any more."""
    state = find_run(run.state, effect.run_id)

    match effect.kind, state and state.next:
        case "ask_model", AskModel():
            assert state is not None
            await ask_model(run, state)
        case "check_input", CheckInput() as now:
            assert state is not None
            await check_input(run, state, now)
        case "check_output", CheckOutput() as now:
            assert state is not None
            await check_output(run, state, now)
        case "check_calls", CallTools() as now:
            assert state is not None
            await check_calls(run, state, now)
        case "prepare_agent", PrepareAgent():
            assert state is not None
            await prepare_agent(run, state)
        case "make_summary", Compact() as now:
            assert state is not None
            await make_summary(run, state, now)
        case "start_calls", CallTools() as now:
            assert state is not None
            await start_calls(run, state, now)
        case "run_call", CallTools(calls=calls):
            assert state is not None
            open = next((one for one in calls if one.key == effect.call_key and one.status == "started"), None)

            if open is not None and (prepared := await prepare_started(run, state, open)):
                await run_call(run, state, prepared)
        case _:
            pass  # its branch was stopped in the meantime


async def _call_tools(run: ActiveRun, state: RunState, now: CallTools) -> None:
    """Run the calls that may run, and the agents that were called as tools, all at the same time.

    Guardrails check the calls first: what they lead to is the next step.
    """
    if unchecked_calls(run.plan, state.agent, now):
        await (check_calls(run, state, now) if run.effects is None else _remote(run, "check_calls", state))
        return

    if run.effects is not None:
        calls = [_remote(run, "run_call", state, key) for key in await _start_remote_calls(run, state, now)]
    else:
        calls = [run_call(run, state, call) for call in await start_calls(run, state, now)]

    children = [state.children[open.child_key] for open in now.calls if open.status == "child"]
    await run_all(
        [
            *(_run_one(run, call) for call in calls),
            *(drive(run, child.run_id) for child in children if not is_blocked(child)),
        ]
    )


async def _run_one(run: ActiveRun, call: Coroutine[Any, Any, None]) -> None:
    """Run one call. Raises `RunEnded` if it ended the whole run, so that everything else stops."""
    await call

    if isinstance(run.state.next, Finished):
        raise RunEnded


async def _start_remote_calls(run: ActiveRun, state: RunState, now: CallTools) -> list[str]:
    """Start the calls that may run; the keys of those that effects have to run. User code is called in an effect."""
    if starts_without_user_code(run, state, now):
        await start_calls(run, state, now)
    else:
        await _remote(run, "start_calls", state)

    ready = {open.key for open in now.calls if open.status == "ready"}
    current = find_run(run.state, state.run_id)
    calls = current.next.calls if current is not None and isinstance(current.next, CallTools) else ()
    return [open.key for open in calls if open.key in ready and open.status == "started"]


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
