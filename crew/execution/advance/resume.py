"""A person's answers, and what a crash left in doubt, become the next steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from crew.execution.advance.asking import ask
from crew.execution.advance.calls import answer, close_if_answered
from crew.execution.advance.draft import Draft
from crew.messages import ToolResult, clean
from crew.runs import AskModel, AwaitInput, CallTools, Finished, OpenCall, RunBranches, RunState
from crew.runs.events import Resumed
from crew.tools import cut, to_text


def on_resume(draft: Draft, event: Resumed, settle_child: Callable[[Draft, str], None]) -> None:
    """Answers go to the pauses that they name, anywhere in the tree; what made a group fail is tried once more."""
    if isinstance(draft.state.next, Finished):
        return

    _revive(draft)

    for key, child in draft.state.children.items():
        inner = Draft(draft.plan, child, event)
        on_resume(inner, event, settle_child)
        draft.out.extend(inner.out)
        draft.set(children={**draft.state.children, key: inner.state})

    match draft.state.next:
        case AwaitInput(pause_id=id):
            if id in event.answers:
                draft.tell(clean(event.answers[id]), "answer")
                ask(draft)
        case CallTools(calls=calls):
            for open in calls:
                _call(draft, open, event.answers)

            close_if_answered(draft)
        case _:
            pass

    for key in [*draft.state.children]:
        if key in draft.state.children:
            settle_child(draft, key)


def _revive(draft: Draft) -> None:
    now = draft.state.next

    if isinstance(now, RunBranches) and now.failed:
        children = {key: _tried_again(child) for key, child in draft.state.children.items()}
        draft.set(children=children, next=replace(now, failed=""))
    elif isinstance(now, AskModel) and now.failed:
        draft.set(next=replace(now, failed=""))


def _tried_again(child: RunState) -> RunState:
    at = child.failed_at
    at = replace(at, failed="") if isinstance(at, AskModel) else at
    return child if at is None else replace(child, next=at, failed_at=None)


def _call(draft: Draft, open: OpenCall, answers: dict[str, Any]) -> None:
    id = f"{draft.state.run_id}:{open.call.id}"

    if open.status == "started":
        tool = draft.plan.toolkits[draft.state.agent].tools.get(open.call.name)
        _mark(draft, open, status="ready" if tool is not None and tool.effect == "read" else "in_doubt")
    elif open.status in ("held", "in_doubt") and id in answers:
        _decide(draft, open, answers[id])


def _decide(draft: Draft, open: OpenCall, given: Any) -> None:
    match open.status, given:
        case ("held", True) | ("in_doubt", "run again"):
            _mark(draft, open, status="ready", approved=True)
        case "held", False:
            _say(draft, open, "Not done: a person declined this call.", "error")
        case "held", reason:
            _say(draft, open, f"Not done: a person declined this call: {clean(str(reason))}", "error")
        case _, {"done": result}:
            _say(draft, open, cut(to_text(result), 20_000) or "(no output)", "ok")
        case _:
            _say(draft, open, "[Skipped: it is not known whether this call took effect.]", "error")


def _say(draft: Draft, open: OpenCall, text: str, outcome: Any) -> None:
    answer(draft, ToolResult(call_id=open.call.id, name=open.call.name, text=text, outcome=outcome))


def _mark(draft: Draft, open: OpenCall, **changes: Any) -> None:
    now = draft.state.next
    assert isinstance(now, CallTools)
    draft.set(
        next=replace(now, calls=tuple(replace(c, **changes) if c.call.id == open.call.id else c for c in now.calls))
    )
