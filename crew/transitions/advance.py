"""How a run ends before its work is done: cancelled, at a limit, out of time."""

from __future__ import annotations

from typing import assert_never

from crew.change import changed, put
from crew.history.token_budget import carry_over_budgets
from crew.messages import ToolMessage, ToolResult
from crew.runs.events import (
    AgentStarted,
    BranchTimedOut,
    CallHeld,
    Cancelled,
    Event,
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
from crew.runs.state import CallStatus, CallTools, Finished, RunState, is_blocked, pending_pauses, total_usage
from crew.transitions.before_request import ask_model_next
from crew.transitions.branches import archive_children, on_branch_timed_out, start_branches
from crew.transitions.compaction import on_summarised
from crew.transitions.plan import Plan
from crew.transitions.replies import on_fell_back, on_replied, on_too_long
from crew.transitions.resume import on_resumed
from crew.transitions.step import Step
from crew.transitions.tool_calls import on_child_finished, on_tool_returned


def _on_stopped(step: Step, event: Cancelled | LimitReached) -> None:
    """The whole tree stops here. Calls that are open are answered, so that the history stays valid."""
    now = step.state.next
    archive_children(step, [*step.state.children])

    if isinstance(now, CallTools):
        why = "the run was cancelled" if isinstance(event, Cancelled) else f"the run reached its limit of {event.limit}"
        results = [
            open.result
            or ToolResult(call_id=open.call.id, name=open.call.name, text=f"[Stopped: {why}.]", outcome="error")
            for open in now.calls
        ]
        step.append(ToolMessage(tuple(results)))

    step.finish("cancelled" if isinstance(event, Cancelled) else "limit", step.last_reply_text())


InputEvent = (
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


def advance(plan: Plan, state: RunState, event: InputEvent) -> tuple[RunState, tuple[Event, ...]]:
    """The next state and the events that follow from this one, numbered after it."""
    idle = isinstance(event, Resumed)
    elapsed = 0.0 if idle or not state.last_event_at else max(0.0, event.at - state.last_event_at)
    step = _advance_tree(plan, state, event, last_event_at=event.at, active_seconds=state.active_seconds + elapsed)

    if isinstance(event, RunStarted | Resumed) and event.traceparent:
        step.set(traceparent=event.traceparent)

    if isinstance(step.state.next, Finished):
        end = step.state.next
        step.emit(RunFinished, stop_reason=end.stop_reason, output=end.output, usage=total_usage(step.state))
    elif is_blocked(step.state) and (idle or not is_blocked(state)):
        step.emit(Paused, pauses=pending_pauses(step.state))

    for number, told in enumerate(step.emitted, event.sequence + 1):
        put(told, sequence=number)

    step.set(sequence=event.sequence + len(step.emitted))
    return step.state, tuple(step.emitted)


def find_run(state: RunState, run_id: str) -> RunState | None:
    """The run of this id within the tree; None if it has ended and left."""
    if run_id == state.run_id:
        return state

    for child in state.children.values():
        if run_id == child.run_id or run_id.startswith(f"{child.run_id}/"):
            return find_run(child, run_id)

    return None


def _advance_tree(plan: Plan, state: RunState, event: InputEvent, **clock: float) -> Step:
    step = Step(plan, state, event, **clock)

    if event.run_id == state.run_id:
        _apply(step, event)
        return step

    key = next(
        k for k, c in state.children.items() if event.run_id == c.run_id or event.run_id.startswith(f"{c.run_id}/")
    )
    child = _advance_tree(plan, state.children[key], event, **clock)
    step.emitted.extend(child.emitted)
    step.set(children={**state.children, key: child.state})
    on_child_finished(step, key)
    return step


def _apply(step: Step, event: InputEvent) -> None:
    match event:
        case RunStarted():
            _on_run_started(step, event)
        case Replied():
            on_replied(step, event)
        case TooLong():
            on_too_long(step, event)
        case FellBack():
            on_fell_back(step, event)
        case CallHeld():
            _set_call_status(step, {event.call_id}, "held")
        case ToolsStarted():
            _set_call_status(step, {call.id for call in event.calls}, "started")
        case ToolReturned():
            on_tool_returned(step, event)
        case Summarised():
            on_summarised(step, event)
        case BranchTimedOut():
            on_branch_timed_out(step, event)
        case Resumed():
            on_resumed(step, event, on_child_finished)
        case LimitReached() | Cancelled():
            _on_stopped(step, event)
        case RunFailed():
            failed = Finished(stop_reason="failed", error=event.error, output=step.last_reply_text())
            step.set(next=failed, next_before_failure=step.state.next)
        case _:
            assert_never(event)


def _on_run_started(step: Step, event: RunStarted) -> None:
    if event.repairs:
        step.emit(HistoryRepaired, changes=event.repairs)

    step.set(token_budgets=carry_over_budgets(event.token_budgets, step.state.token_budgets))
    step.append_input(event.messages, event.tokens)
    group = step.plan.groups.get(step.state.agent)

    if group is not None:
        start_branches(step, group)
        return

    step.emit(AgentStarted)
    ask_model_next(step)


def _set_call_status(step: Step, ids: set[str], status: CallStatus) -> None:
    now = step.state.next
    assert isinstance(now, CallTools)
    calls = tuple(changed(open, status=status) if open.call.id in ids else open for open in now.calls)
    step.set(next=changed(now, calls=calls))
