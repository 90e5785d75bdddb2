"""`advance`: the pure function from a state and an input event to the next state and its events."""

from __future__ import annotations

from typing import Literal, assert_never

from crew.fast_replace import fast_replace
from crew.history.token_budget import carry_over_budgets
from crew.messages import AssistantMessage, ToolMessage, ToolResult
from crew.runs.events import (
    AgentPrepared,
    BranchTimedOut,
    CallHeld,
    CallLost,
    Cancelled,
    ConsentAsked,
    Event,
    FellBack,
    GuardrailChecked,
    HistoryRepaired,
    LimitReached,
    Paused,
    QuestionAsked,
    Replied,
    Resumed,
    RunFailed,
    RunFinished,
    RunStarted,
    RunStopped,
    Summarised,
    TooLong,
    ToolReturned,
    ToolsStarted,
    Warned,
)
from crew.runs.open_calls import CallStatus, OpenCall
from crew.runs.state import (
    UNKNOWN_EFFECT,
    CallTools,
    CheckInput,
    CheckOutput,
    Finished,
    ReachedLimit,
    RunState,
    is_blocked,
    pending_pauses,
    total_usage,
)
from crew.transitions.activation import (
    merge_consents,
    merge_preparation,
    on_agent_prepared,
    on_consent_asked,
)
from crew.transitions.branches import archive_children, calls_in_doubt, on_branch_timed_out
from crew.transitions.compaction import on_summarised
from crew.transitions.guardrails import on_guardrail_checked, start_run
from crew.transitions.plan import Plan
from crew.transitions.replies import on_fell_back, on_replied, on_too_long
from crew.transitions.resume import on_resumed, warn_of_changed_crew
from crew.transitions.setting_conflicts import parameter_conflicts, window_conflicts
from crew.transitions.step import Step
from crew.transitions.tool_calls import on_child_changed, on_tool_returned

InputEvent = (
    RunStarted
    | AgentPrepared
    | ConsentAsked
    | GuardrailChecked
    | Replied
    | TooLong
    | FellBack
    | CallHeld
    | QuestionAsked
    | ToolsStarted
    | ToolReturned
    | CallLost
    | Summarised
    | BranchTimedOut
    | Resumed
    | LimitReached
    | RunStopped
    | Cancelled
    | RunFailed
)
"""The events that change a state; all other events only report what a change did."""


def advance(
    plan: Plan, state: RunState, event: InputEvent, errors: dict[str, BaseException] | None = None
) -> tuple[RunState, tuple[Event, ...]]:
    """The next state, and the events that follow from this one, numbered after it.

    An event reports a fact, so that no failure is raised here: it is stored in the state (`RunState.failure`), and the
    error behind it is added to `errors`, by run id. Only a run that can't start raises.
    """
    is_resume = isinstance(event, Resumed)
    collected = {} if errors is None else errors
    step = Step(plan, state, event, errors=None if isinstance(event, RunStarted) else collected)

    if isinstance(event, Resumed):
        merge_consents(step, event)

    _advance_tree(step, event, state.active_seconds + event.elapsed)

    if isinstance(event, AgentPrepared):
        merge_preparation(step, event)

    if isinstance(event, RunStarted | Resumed) and event.traceparent:
        step.traceparent = event.traceparent

    if isinstance(step.next, Finished):
        step.emit(RunFinished, stop_reason=step.next.stop_reason, output=step.next.output, usage=total_usage(step))
    elif is_blocked(step) and (is_resume or not is_blocked(state)):
        # A reply is not published before it is accepted: `Replied` has no text of it either.
        step.emit(Paused, pauses=tuple(fast_replace(pause, checked="") for pause in pending_pauses(step)))

    step.sequence = event.sequence + len(step.emitted)
    return step.freeze(), tuple(step.emitted)


def find_run(state: RunState, run_id: str) -> RunState | None:
    """The run with this id in the tree; None if it has finished and was archived."""
    if run_id == state.run_id:
        return state

    for child in state.children.values():
        if run_id == child.run_id or run_id.startswith(f"{child.run_id}/"):
            return find_run(child, run_id)

    return None


def _advance_tree(step: Step, event: InputEvent, active_seconds: float) -> None:
    step.last_event_at, step.active_seconds = event.at, active_seconds

    if event.run_id == step.run_id:
        _apply(step, event)
        return

    key, child = next(
        (key, child)
        for key, child in step.children.items()
        if event.run_id == child.run_id or event.run_id.startswith(f"{child.run_id}/")
    )
    inner = step.child_step(child)
    _advance_tree(inner, event, active_seconds)
    step.set_child(key, inner.freeze())

    if isinstance(event, RunStopped):
        _on_stopped(step, event)  # a tool of the child ended the whole run
    else:
        on_child_changed(step, key)


def _apply(step: Step, event: InputEvent) -> None:
    match event:
        case RunStarted():
            _on_run_started(step, event)
        case AgentPrepared():
            on_agent_prepared(step, event)
        case ConsentAsked():
            on_consent_asked(step, event)
        case GuardrailChecked():
            on_guardrail_checked(step, event)
        case Replied():
            on_replied(step, event)
        case TooLong():
            on_too_long(step, event)
        case FellBack():
            on_fell_back(step, event)
        case CallHeld():
            _hold_call(step, event)
        case QuestionAsked():
            _ask_question(step, event)
        case ToolsStarted():
            _set_call_status(step, {call.id for call in event.calls}, "started")
        case CallLost():
            _lose_call(step, event)
        case ToolReturned():
            on_tool_returned(step, event)
        case Summarised():
            on_summarised(step, event)
        case BranchTimedOut():
            on_branch_timed_out(step, event)
        case Resumed():
            warn_of_changed_crew(step)
            on_resumed(step, event)
        case LimitReached() | Cancelled() | RunStopped():
            _on_stopped(step, event)
        case RunFailed():
            _on_run_failed(step, event)
        case _:
            assert_never(event)


def _on_run_started(step: Step, event: RunStarted) -> None:
    if event.repairs:
        step.emit(HistoryRepaired, changes=event.repairs)

    for text in event.warnings:
        step.emit(Warned, text=text)

    step.fingerprint = step.plan.fingerprint
    step.token_budgets = carry_over_budgets(event.token_budgets, step.token_budgets, step.plan.prepares)
    _warn_of_conflicts(step)
    start_run(step, event)


def _warn_of_conflicts(step: Step) -> None:
    budgets = {name: budgets[0] for name, budgets in step.token_budgets.items() if budgets}
    texts = [conflict.text for conflict in parameter_conflicts(step.plan, step.parameters)]

    for text in (*texts, *window_conflicts(step.plan, step.parameters, budgets)):
        step.emit(Warned, text=text)


def _on_run_failed(step: Step, event: RunFailed) -> None:
    """Finish a branch as failed; `next_before_failure` lets a resume repeat it."""
    step.next_before_failure = step.next
    step.next = Finished(stop_reason="failed", error=event.error, output=step.last_reply_text())


def _hold_call(step: Step, event: CallHeld) -> None:
    for open in step.open_calls.calls:
        if open.call.id == event.call_id:
            step.set_call(fast_replace(open, status="held", arguments=event.arguments, effect=event.effect))


def _ask_question(step: Step, event: QuestionAsked) -> None:
    for open in step.open_calls.calls:
        if open.call.id == event.call_id:
            step.set_call(fast_replace(open, status="asking", question=event.question))


def _lose_call(step: Step, event: CallLost) -> None:
    for open in step.open_calls.calls:
        if open.call.id == event.call_id:
            step.set_call(fast_replace(open, status="in_doubt", effect="write"))


def _set_call_status(step: Step, ids: set[str], status: CallStatus) -> None:
    for open in step.open_calls.calls:
        if open.call.id in ids:
            step.set_call(fast_replace(open, status=status))


def _stopped_result(open: OpenCall, why: str, *, in_doubt: bool) -> ToolResult:
    text = f"[Stopped while it ran: {why}. {UNKNOWN_EFFECT}]" if in_doubt else f"[Stopped: {why}.]"
    text = open.with_edit_note(text) if in_doubt else text
    outcome: Literal["unknown", "error"] = "unknown" if in_doubt else "error"
    return ToolResult(call_id=open.call.id, name=open.call.name, text=text, outcome=outcome)


def _on_stopped(step: Step, event: Cancelled | LimitReached | RunStopped) -> None:
    """Stop the whole tree. Open calls get a result, so that the history stays valid."""
    archive_children(step, [*step.children])

    if isinstance(event, RunStopped) and event.run_id == step.run_id:
        _end_stopping_call(step, event)

    match step.next:
        case CheckInput(messages=(_, *_)) as unchecked:
            step.append_input(unchecked.messages, unchecked.tokens)
        case CheckOutput(message=AssistantMessage() as reply) as unchecked:
            step.append(reply, unchecked.tokens)
        case _:
            pass

    if isinstance(step.next, CallTools):
        why = _stop_text(event)
        step.in_doubt = tuple(calls_in_doubt(step.plan, step.freeze()))
        unknown = {doubt.key for doubt in step.in_doubt}
        results = [open.result or _stopped_result(open, why, in_doubt=open.key in unknown) for open in step.next.calls]
        step.append(ToolMessage(tuple(results)))

    match event:
        case Cancelled():
            step.finish("cancelled", step.last_reply_text())
        case RunStopped():
            step.finish("stopped", step.last_reply_text(), stop_text=event.reason)
        case LimitReached():
            step.finish("limit", step.last_reply_text(), ReachedLimit(name=event.limit, value=event.value))


def _end_stopping_call(step: Step, event: RunStopped) -> None:
    """Give the call that ended the run its result."""
    open = next(open for open in step.open_calls.calls if open.call.id == event.call_id)
    text = open.with_edit_note(f"[This call ended the run: {event.reason}]")
    result = ToolResult(call_id=open.call.id, name=open.call.name, text=text)
    step.count_tool(open.call.name, is_error=False)
    step.set_call(fast_replace(open, status="done", result=result))


def _stop_text(event: Cancelled | LimitReached | RunStopped) -> str:
    match event:
        case Cancelled():
            return "the run was cancelled"
        case LimitReached():
            return f"the run reached its limit of {event.limit}"
        case RunStopped():
            return f"{event.tool} ended the run"
