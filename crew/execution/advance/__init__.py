"""`advance(plan, state, event)`: the state after an event, and what there is to tell of it. Pure.

A run is a tree: branches and called agents are states within the state, and an event finds its own by its run id.
"""

from __future__ import annotations

from typing import assert_never

from crew.change import changed, put
from crew.execution.advance.asking import ask
from crew.execution.advance.calls import close_if_answered, on_result
from crew.execution.advance.draft import Draft, spent
from crew.execution.advance.ending import on_end, on_timeout
from crew.execution.advance.fork import evaluate, fork, returned
from crew.execution.advance.records import total
from crew.execution.advance.reply import on_reply
from crew.execution.advance.resume import on_resume
from crew.execution.advance.summarised import on_summary
from crew.execution.advance.trouble import on_fallback, on_too_long
from crew.execution.gauges import remembered
from crew.execution.plan import Plan
from crew.runs import CallTools, Event, Finished, RunBranches, RunState, is_blocked, pauses
from crew.runs.events import (
    AgentStarted,
    BranchTimedOut,
    CallHeld,
    Cancelled,
    FellBack,
    HistoryRepaired,
    LimitReached,
    Paused,
    Replied,
    Resumed,
    RunFailed,
    RunFinished,
    RunStarted,
    Summarised,
    TooLong,
    ToolReturned,
    ToolsStarted,
)
from crew.runs.state import CallStatus

__all__ = ["advance", "at", "spent", "total"]

Happening = (
    RunStarted
    | Replied
    | TooLong
    | FellBack
    | CallHeld
    | ToolsStarted
    | ToolReturned
    | Summarised
    | BranchTimedOut
    | Resumed
    | LimitReached
    | Cancelled
    | RunFailed
)
"""The events that move a state; all others only tell of what a move did."""


def advance(plan: Plan, state: RunState, event: Happening) -> tuple[RunState, tuple[Event, ...]]:
    """The next state and the events that follow from this one, numbered after it."""
    idle = isinstance(event, Resumed)
    elapsed = 0.0 if idle or not state.seen_at else max(0.0, event.at - state.seen_at)
    draft = _step(plan, state, event, seen_at=event.at, active_seconds=state.active_seconds + elapsed)

    if isinstance(event, RunStarted | Resumed) and event.trace:
        draft.set(trace=event.trace)

    if isinstance(draft.state.next, Finished):
        end = draft.state.next
        draft.say(RunFinished, stop_reason=end.stop_reason, output=end.output, usage=spent(draft.state))
    elif is_blocked(draft.state) and (idle or not is_blocked(state)):
        draft.say(Paused, pauses=pauses(draft.state))

    for number, told in enumerate(draft.out, event.sequence + 1):
        put(told, sequence=number)

    draft.set(sequence=event.sequence + len(draft.out))
    return draft.state, tuple(draft.out)


def at(state: RunState, run_id: str) -> RunState | None:
    """The run of this id within the tree; None if it has ended and left."""
    if run_id == state.run_id:
        return state

    for child in state.children.values():
        if run_id == child.run_id or run_id.startswith(f"{child.run_id}/"):
            return at(child, run_id)

    return None


def _step(plan: Plan, state: RunState, event: Happening, **clock: float) -> Draft:
    draft = Draft(plan, state, event, **clock)

    if event.run_id == state.run_id:
        _own(draft, event)
        return draft

    key = next(
        k for k, c in state.children.items() if event.run_id == c.run_id or event.run_id.startswith(f"{c.run_id}/")
    )
    step = _step(plan, state.children[key], event, **clock)
    draft.out.extend(step.out)
    draft.set(children={**state.children, key: step.state})
    settle_child(draft, key)
    return draft


def settle_child(draft: Draft, key: str) -> None:
    """A child moved: if it has ended, what waits for it may go on."""
    child = draft.state.children[key]

    if not isinstance(child.next, Finished):
        return

    match draft.state.next:
        case RunBranches(failed=""):
            evaluate(draft)
        case CallTools():
            returned(draft, key)
            close_if_answered(draft)
        case _:
            pass


def _own(draft: Draft, event: Happening) -> None:
    match event:
        case RunStarted():
            _begin(draft, event)
        case Replied():
            on_reply(draft, event)
        case TooLong():
            on_too_long(draft, event)
        case FellBack():
            on_fallback(draft, event)
        case CallHeld():
            _mark(draft, {event.call_id}, "held")
        case ToolsStarted():
            _mark(draft, {call.id for call in event.calls}, "started")
        case ToolReturned():
            on_result(draft, event)
        case Summarised():
            on_summary(draft, event)
        case BranchTimedOut():
            on_timeout(draft, event)
        case Resumed():
            on_resume(draft, event, settle_child)
        case LimitReached() | Cancelled():
            on_end(draft, event)
        case RunFailed():
            failed = Finished(stop_reason="failed", error=event.error, output=draft.last_words())
            draft.set(next=failed, failed_at=draft.state.next)
        case _:
            assert_never(event)


def _begin(draft: Draft, event: RunStarted) -> None:
    if event.repairs:
        draft.say(HistoryRepaired, changes=event.repairs)

    draft.set(gauges=remembered(event.gauges, draft.state.gauges))
    draft.begin(event.messages, event.tokens)
    group = draft.plan.groups.get(draft.state.agent)

    if group is not None:
        fork(draft, group)
        return

    draft.say(AgentStarted)
    ask(draft)


def _mark(draft: Draft, ids: set[str], status: CallStatus) -> None:
    now = draft.state.next
    assert isinstance(now, CallTools)
    calls = tuple(changed(open, status=status) if open.call.id in ids else open for open in now.calls)
    draft.set(next=changed(now, calls=calls))
