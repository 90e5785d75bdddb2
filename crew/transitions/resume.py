"""What follows a resume: answers to pauses, calls in doubt, and failures that are tried again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal

from crew.errors import CrewChanged
from crew.messages import NO_OUTPUT, AssistantMessage, ToolResult, replace_surrogates
from crew.runs.answers import refusal_reason
from crew.runs.call_text import describe_changes
from crew.runs.events import CallEdited, Resumed, Warned
from crew.runs.open_calls import OpenCall
from crew.runs.state import (
    UNKNOWN_EFFECT,
    AskModel,
    AwaitInput,
    CallTools,
    CheckInput,
    CheckOutput,
    ChooseNext,
    Finished,
    PrepareAgent,
    RunBranches,
    RunState,
)
from crew.tools.questions import AnsweredQuestion
from crew.tools.tool import to_text, truncate_middle
from crew.transitions.activation import resume_preparation
from crew.transitions.before_request import ask_model_next
from crew.transitions.checks import find_guardrail
from crew.transitions.fingerprint import crew_changes
from crew.transitions.guardrails import resume_check
from crew.transitions.plan import Plan
from crew.transitions.prepared_agents import tool_effect
from crew.transitions.replies import choose_again
from crew.transitions.step import Step
from crew.transitions.tool_calls import (
    finish_if_all_returned,
    hand_off,
    on_child_changed,
    record_result,
    start_called_agents,
)


def check_crew(plan: Plan, state: RunState, *, strict: bool = False) -> None:
    """Raise `CrewChanged` if the crew lacks what the next step needs; with `strict`, if it changed at all."""
    missing = [*dict.fromkeys(_missing(plan, state))]
    changed = [*_changes(plan, state)] if strict else []

    if missing or changed:
        raise CrewChanged(state.run_id, plan.crew.name, missing, changed)


def _changes(plan: Plan, state: RunState | Step) -> Iterator[str]:
    """What changed in the crew since the run was started or resumed last; nothing for a state that does not show it."""
    return crew_changes(state.fingerprint, plan.fingerprint) if state.fingerprint else iter(())


def warn_of_changed_crew(step: Step) -> None:
    """Warn once of a crew that changed, and note it as it is now."""
    if changed := [*_changes(step.plan, step)]:
        step.emit(Warned, text=f"The crew changed since this run was started: {'; '.join(changed)}.")

    step.fingerprint = step.plan.fingerprint


def _missing(plan: Plan, state: RunState) -> Iterator[str]:
    if state.crew != plan.crew.name:
        yield f"the crew {state.crew!r}"

    if isinstance(state.next, Finished) and state.next_before_failure is None:
        return

    if state.agent not in plan.agents and state.agent not in plan.groups:
        yield f"the agent {state.agent!r}"
    elif isinstance(state.next, CallTools):
        # A call that is ready may name a tool that the model invented: that gets an error result.
        names = {open.call.name for open in state.next.calls if open.status == "started" or open.is_waiting}
        yield from (
            f"the tool {name!r} of {state.agent!r}"
            for name in sorted(names)
            if tool_effect(plan, state, name) is None and name not in plan.toolkits[state.agent].agents
        )
    elif isinstance(state.next, AskModel) and state.next.handoff not in ("", *plan.toolkits[state.agent].handoffs):
        yield f"the handoff {state.next.handoff!r} of {state.agent!r}"

    checked = (
        *state.unchecked_input,
        *(state.next.guardrails if isinstance(state.next, CheckInput | CheckOutput) else ()),
    )
    yield from (f"the guardrail {n!r}" for n in checked if find_guardrail(plan, state.agent, n) is None)
    if isinstance(state.next, ChooseNext):
        needed = [name for name in (state.next.after, state.next.target) if name]
        yield from (f"the agent or group {name!r}" for name in needed if name not in {*plan.agents, *plan.groups})

    if isinstance(state.next, RunBranches) and state.next.group not in plan.groups:
        yield f"the group {state.next.group!r}"

    for child in state.children.values():
        yield from _missing(plan, child)


def on_resumed(step: Step, event: Resumed) -> None:
    """Apply answers to the pauses that they name, anywhere in the tree, and clear failures so that work is retried."""
    if isinstance(step.next, Finished):
        return

    failure, step.failure = step.failure, None
    _retry_branches(step)

    for key, child in step.children.items():
        inner = step.child_step(child)
        on_resumed(inner, event)
        step.set_child(key, inner.freeze())

    match step.next:
        case AskModel() if failure is not None:
            _try_again(step, step.next)
        case AskModel():
            step.next = replace(step.next, view=None)  # computed again: the stored state does not hold it
        case CheckInput() | CheckOutput():
            resume_check(step, step.next, event)
        case ChooseNext():
            choose_again(step, step.next)
        case PrepareAgent():
            resume_preparation(step, step.next, event)
        case AwaitInput(pause_id=id):
            if id in event.answers:
                step.append_framework_message(replace_surrogates(event.answers[id]), "answer")
                ask_model_next(step)
        case CallTools(calls=calls):
            for open in calls:
                _resume_call(step, open, event.answers)

            start_called_agents(step)
            finish_if_all_returned(step)
        case _:
            pass

    for key in [*step.children]:
        if key in step.children:
            on_child_changed(step, key)


def _retry_branches(step: Step) -> None:
    now = step.next

    if isinstance(now, RunBranches) and now.failure:
        step.children = {key: _retry_child(child) for key, child in step.children.items()}
        step.next = replace(now, failure="")


def _retry_child(child: RunState) -> RunState:
    at = child.next_before_failure
    return child if at is None else replace(child, next=at, next_before_failure=None)


def _try_again(step: Step, now: AskModel) -> None:
    """Repeat what failed between the last fact and the request: a handoff, or the view of the agent."""
    reply = step.history.entries[-2].message if now.handoff else None

    if isinstance(reply, AssistantMessage):
        hand_off(step, next(call for call in reply.calls if call.name == now.handoff))
    else:
        ask_model_next(step, now.repeat_reason)


def _resume_call(step: Step, open: OpenCall, answers: Mapping[str, object]) -> None:
    if open.status == "started":
        is_repeatable = tool_effect(step.plan, step, open.call.name) == "read"
        step.set_call(
            replace(open, status="ready") if is_repeatable else replace(open, status="in_doubt", effect="write")
        )
    elif open.is_waiting and open.pause_id in answers:
        _apply_answer(step, open, answers[open.pause_id])


def _apply_answer(step: Step, open: OpenCall, answer: object) -> None:
    match open.status, answer:
        case "asking", _:
            _answer_question(step, open, str(answer))
        case ("held", True) | ("in_doubt", "run again"):
            step.set_call(replace(open, status="ready", approved=True))
        case "held", {"approve": details}:
            _approve_edited(step, open, details)
        case "held", False | {"refuse": _} | str():
            _record_answer(step, open, _refusal_text(answer), "error")
        case _, {"done": result}:
            _record_answer(step, open, truncate_middle(to_text(result), 20_000) or NO_OUTPUT, "ok")
        case _:
            _record_answer(step, open, f"[Skipped. {UNKNOWN_EFFECT}]", "unknown")


def _answer_question(step: Step, open: OpenCall, answer: str) -> None:
    """Let the call run again from its start, with all answers so far; it was approved before it ran first."""
    assert open.question is not None
    answered = AnsweredQuestion(text=open.question.text, answer=replace_surrogates(answer))
    answers = (*open.answers, answered)
    step.set_call(replace(open, status="ready", approved=True, question=None, answers=answers))


def _approve_edited(step: Step, open: OpenCall, details: Mapping[str, Any]) -> None:
    """Let the call run with the arguments of the answer, where they differ from those that the person saw.

    Guardrails passed the arguments before, so they check again; except the one whose question the person answered.
    """
    arguments, before = details.get("arguments"), open.shown_arguments or {}
    open = replace(open, status="ready", approved=True)

    if arguments is not None and arguments != before:
        answered = open.checks[-1:] if open.held_question else ()
        open = replace(open, edited=dict(arguments), edited_by="", checks=answered)
        step.emit(
            CallEdited,
            call_id=open.call.id,
            tool=open.call.name,
            key=open.key,
            arguments=dict(arguments),
            changes=describe_changes(before, arguments),
            by=details.get("by", ""),
        )

    step.set_call(open)


def _refusal_text(answer: object) -> str:
    reason = refusal_reason(answer)
    return f"Not done: a person declined this call: {replace_surrogates(reason)}" if reason else DECLINED


DECLINED = "Not done: a person declined this call."


def _record_answer(step: Step, open: OpenCall, text: str, outcome: Literal["ok", "error", "unknown"]) -> None:
    text = open.with_edit_note(text)
    record_result(step, ToolResult(call_id=open.call.id, name=open.call.name, text=text, outcome=outcome))
