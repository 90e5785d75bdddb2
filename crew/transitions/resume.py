"""A person's answers, and what a crash left in doubt, become the next steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from crew.messages import ToolResult, replace_surrogates
from crew.runs.events import Resumed
from crew.runs.state import AskModel, AwaitInput, CallTools, Finished, OpenCall, RunBranches, RunState
from crew.tools.tool import to_text, truncate_middle
from crew.transitions.before_request import ask_model_next
from crew.transitions.step import Step
from crew.transitions.tool_calls import finish_if_all_returned, record_result


def on_resumed(step: Step, event: Resumed, settle_child: Callable[[Step, str], None]) -> None:
    """Answers go to the pauses that they name, anywhere in the tree; what made a group fail is tried once more."""
    if isinstance(step.state.next, Finished):
        return

    _clear_failure(step)

    for key, child in step.state.children.items():
        inner = Step(step.plan, child, event)
        on_resumed(inner, event, settle_child)
        step.emitted.extend(inner.emitted)
        step.set(children={**step.state.children, key: inner.state})

    match step.state.next:
        case AwaitInput(pause_id=id):
            if id in event.answers:
                step.append_framework_message(replace_surrogates(event.answers[id]), "answer")
                ask_model_next(step)
        case CallTools(calls=calls):
            for open in calls:
                _resume_call(step, open, event.answers)

            finish_if_all_returned(step)
        case _:
            pass

    for key in [*step.state.children]:
        if key in step.state.children:
            settle_child(step, key)


def _clear_failure(step: Step) -> None:
    now = step.state.next

    if isinstance(now, RunBranches) and now.failure:
        children = {key: _retry_child(child) for key, child in step.state.children.items()}
        step.set(children=children, next=replace(now, failure=""))
    elif isinstance(now, AskModel) and now.failure:
        step.set(next=replace(now, failure=""))


def _retry_child(child: RunState) -> RunState:
    at = child.next_before_failure
    at = replace(at, failure="") if isinstance(at, AskModel) else at
    return child if at is None else replace(child, next=at, next_before_failure=None)


def _resume_call(step: Step, open: OpenCall, answers: dict[str, Any]) -> None:
    id = f"{step.state.run_id}:{open.call.id}"

    if open.status == "started":
        tool = step.plan.toolkits[step.state.agent].tools.get(open.call.name)
        _update_call(step, open, status="ready" if tool is not None and tool.effect == "read" else "in_doubt")
    elif open.status in ("held", "in_doubt") and id in answers:
        _apply_answer(step, open, answers[id])


def _apply_answer(step: Step, open: OpenCall, given: Any) -> None:
    match open.status, given:
        case ("held", True) | ("in_doubt", "run again"):
            _update_call(step, open, status="ready", approved=True)
        case "held", False:
            _record_call_result(step, open, "Not done: a person declined this call.", "error")
        case "held", reason:
            _record_call_result(
                step, open, f"Not done: a person declined this call: {replace_surrogates(str(reason))}", "error"
            )
        case _, {"done": result}:
            _record_call_result(step, open, truncate_middle(to_text(result), 20_000) or "(no output)", "ok")
        case _:
            _record_call_result(step, open, "[Skipped: it is not known whether this call took effect.]", "error")


def _record_call_result(step: Step, open: OpenCall, text: str, outcome: Any) -> None:
    record_result(step, ToolResult(call_id=open.call.id, name=open.call.name, text=text, outcome=outcome))


def _update_call(step: Step, open: OpenCall, **changes: Any) -> None:
    now = step.state.next
    assert isinstance(now, CallTools)
    step.set(
        next=replace(now, calls=tuple(replace(c, **changes) if c.call.id == open.call.id else c for c in now.calls))
    )
