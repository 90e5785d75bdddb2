"""The answers that a pause accepts, as a JSON schema."""

from __future__ import annotations

from typing import Any, assert_never

from crew.runs.state import Pause

_PERMISSION = {"anyOf": [{"type": "boolean"}, {"type": "string"}]}
_REPEAT = {"enum": ["run again", "skip"]}
_RESULT = {"type": "object", "properties": {"done": {}}, "required": ["done"], "additionalProperties": False}


def answer_schema(pause: Pause) -> dict[str, Any]:
    """The JSON schema of the answers that a pause accepts."""
    match pause.reason:
        case "input" | "question":
            return {"type": "string", "enum": [*pause.choices]} if pause.choices else {"type": "string"}
        case "approval" | "consent":
            return {"description": "true approves, false or a text with the reason refuses."} | _PERMISSION
        case "in_doubt":
            return {"description": "Repeat the call, skip it, or give its result.", "anyOf": [_REPEAT, _RESULT]}
        case _:
            assert_never(pause.reason)
