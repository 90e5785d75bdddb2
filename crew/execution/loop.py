"""The loop: while not finished — perform what is next, advance, commit."""

from __future__ import annotations

from typing import assert_never

from crew.errors import OutputInvalid, StoreError, describe
from crew.execution.advance import at
from crew.execution.ask import ask
from crew.execution.branch import branch
from crew.execution.call import call
from crew.execution.compact import compact
from crew.execution.run import Run
from crew.runs import AskModel, AwaitInput, CallTools, Compact, Finished, RunBranches, RunState, is_blocked
from crew.runs.events import RunFailed


async def drive(run: Run, run_id: str) -> None:
    """Carry a run, or a branch of it, to its end, or to where only a person can help."""
    while (state := at(run.state, run_id)) and not isinstance(state.next, Finished) and not is_blocked(state):
        try:
            await perform(run, state)
        except Exception as error:  # a policy or filter may be anybody's code: in a branch it fails that branch alone
            # A branch that can't go on has failed, and its group decides; a whole run stops, and can be resumed.
            # What can't be stored is no branch's fault.
            if run_id == run.state.run_id or isinstance(error, StoreError):
                raise

            await run.record(RunFailed(run_id=run_id, error=describe(error), error_type=type(error).__name__))


async def perform(run: Run, state: RunState) -> None:
    """Do what is next; what comes of it is recorded."""
    match state.next:
        case AskModel(failed=""):
            await ask(run, state)
        case AskModel(failed=failed):
            raise OutputInvalid(failed)
        case CallTools():
            await call(run, state, state.next, drive)
        case RunBranches():
            await branch(run, state, state.next, drive)
        case Compact():
            await compact(run, state, state.next)
        case AwaitInput() | Finished():
            raise AssertionError(f"{state.next.kind} can't be performed")
        case _:
            assert_never(state.next)
