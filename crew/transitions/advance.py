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


def _on_stopped(draft: Step, event: Cancelled | LimitReached) -> None:
    """The whole tree stops here. Calls that are open are answered, so that the history stays valid."""
    now = draft.state.next
    archive_children(draft, [*draft.state.children])

    if isinstance(now, CallTools):
        why = "the run was cancelled" if isinstance(event, Cancelled) else f"the run reached its limit of {event.limit}"
        results = [
            open.result
            or ToolResult(call_id=open.call.id, name=open.call.name, text=f"[Stopped: {why}.]", outcome="error")
            for open in now.calls
        ]
        draft.append(ToolMessage(tuple(results)))

    draft.finish("cancelled" if isinstance(event, Cancelled) else "limit", draft.last_reply_text())


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
    draft = _advance_tree(plan, state, event, last_event_at=event.at, active_seconds=state.active_seconds + elapsed)

    if isinstance(event, RunStarted | Resumed) and event.traceparent:
        draft.set(traceparent=event.traceparent)

    if isinstance(draft.state.next, Finished):
        end = draft.state.next
        draft.emit(RunFinished, stop_reason=end.stop_reason, output=end.output, usage=total_usage(draft.state))
    elif is_blocked(draft.state) and (idle or not is_blocked(state)):
        draft.emit(Paused, pauses=pending_pauses(draft.state))

    for number, told in enumerate(draft.emitted, event.sequence + 1):
        put(told, sequence=number)

    draft.set(sequence=event.sequence + len(draft.emitted))
    return draft.state, tuple(draft.emitted)


def find_run(state: RunState, run_id: str) -> RunState | None:
    """The run of this id within the tree; None if it has ended and left."""
    if run_id == state.run_id:
        return state

    for child in state.children.values():
        if run_id == child.run_id or run_id.startswith(f"{child.run_id}/"):
            return find_run(child, run_id)

    return None


def _advance_tree(plan: Plan, state: RunState, event: InputEvent, **clock: float) -> Step:
    draft = Step(plan, state, event, **clock)

    if event.run_id == state.run_id:
        _apply(draft, event)
        return draft

    key = next(
        k for k, c in state.children.items() if event.run_id == c.run_id or event.run_id.startswith(f"{c.run_id}/")
    )
    step = _advance_tree(plan, state.children[key], event, **clock)
    draft.emitted.extend(step.emitted)
    draft.set(children={**state.children, key: step.state})
    on_child_finished(draft, key)
    return draft


def _apply(draft: Step, event: InputEvent) -> None:
    match event:
        case RunStarted():
            _on_run_started(draft, event)
        case Replied():
            on_replied(draft, event)
        case TooLong():
            on_too_long(draft, event)
        case FellBack():
            on_fell_back(draft, event)
        case CallHeld():
            _set_call_status(draft, {event.call_id}, "held")
        case ToolsStarted():
            _set_call_status(draft, {call.id for call in event.calls}, "started")
        case ToolReturned():
            on_tool_returned(draft, event)
        case Summarised():
            on_summarised(draft, event)
        case BranchTimedOut():
            on_branch_timed_out(draft, event)
        case Resumed():
            on_resumed(draft, event, on_child_finished)
        case LimitReached() | Cancelled():
            _on_stopped(draft, event)
        case RunFailed():
            failed = Finished(stop_reason="failed", error=event.error, output=draft.last_reply_text())
            draft.set(next=failed, next_before_failure=draft.state.next)
        case _:
            assert_never(event)


def _on_run_started(draft: Step, event: RunStarted) -> None:
    if event.repairs:
        draft.emit(HistoryRepaired, changes=event.repairs)

    draft.set(token_budgets=carry_over_budgets(event.token_budgets, draft.state.token_budgets))
    draft.append_input(event.messages, event.tokens)
    group = draft.plan.groups.get(draft.state.agent)

    if group is not None:
        start_branches(draft, group)
        return

    draft.emit(AgentStarted)
    ask_model_next(draft)


def _set_call_status(draft: Step, ids: set[str], status: CallStatus) -> None:
    now = draft.state.next
    assert isinstance(now, CallTools)
    calls = tuple(changed(open, status=status) if open.call.id in ids else open for open in now.calls)
    draft.set(next=changed(now, calls=calls))
