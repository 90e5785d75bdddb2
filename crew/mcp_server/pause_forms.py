"""The questions of a paused run as forms of MCP (elicitation), and the filled-in forms as answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from crew.runs.state import Pause

NO_ANSWER = object()
"""The user closed the form without a decision."""

_APPROVAL = {
    "type": "object",
    "properties": {
        "approve": {"type": "boolean", "description": "Whether this may be done."},
        "reason": {"type": "string", "description": "Why not; the model reads it."},
    },
    "required": ["approve"],
}
_DOUBT = {
    "type": "object",
    "properties": {
        "decision": {
            "type": "string",
            "enum": ["run again", "skip", "done"],
            "description": "Run the call again, skip it, or say that it was done.",
        },
        "result": {"type": "string", "description": "The result of a call that was done."},
    },
    "required": ["decision"],
}


def form_schema(pause: Pause) -> dict[str, Any]:
    """The fields of the form for a pause."""
    match pause.reason:
        case "approval" | "consent":
            return _APPROVAL
        case "in_doubt":
            return _DOUBT
        case "input" | "question":
            return _text_form(pause.choices)


def _text_form(choices: Sequence[str]) -> dict[str, Any]:
    answer = {"type": "string", "description": "Your answer."} | ({"enum": [*choices]} if choices else {})
    return {"type": "object", "properties": {"answer": answer}, "required": ["answer"]}


def form_answer(pause: Pause, form: object) -> Any:
    """The answer of a form, as `CrewExecutor.resume` accepts it; `NO_ANSWER` if the user gave none."""
    from mcp.types import ElicitResult

    if not isinstance(form, ElicitResult):
        return NO_ANSWER

    asks_for_approval = pause.reason in ("approval", "consent")

    if form.action == "decline" and asks_for_approval:
        return False

    content = form.content or {}

    if form.action != "accept" or not content:
        return NO_ANSWER

    if asks_for_approval:
        return _approval(pause, content)

    if pause.reason == "in_doubt":
        decision = content.get("decision")
        return {"done": str(content.get("result") or "")} if decision == "done" else decision or NO_ANSWER

    return content.get("answer") or NO_ANSWER


def _approval(pause: Pause, content: dict[str, Any]) -> Any:
    if content.get("approve") is True:
        return True

    reason = content.get("reason")
    return reason if isinstance(reason, str) and reason.strip() and pause.reason == "approval" else False
