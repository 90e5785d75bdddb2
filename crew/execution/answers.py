"""Whether a person's answers are for what the run waits for, before anything is changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from crew.errors import InvalidInput, UnknownPause, Violation
from crew.runs import Pause, RunState, pauses
from crew.tools import to_text
from crew.validation import InputValidator


def check_answers(state: RunState, answers: Mapping[str, Any], validator: InputValidator) -> None:
    """Every answer names a pending pause and is of its kind."""
    pending = {pause.id: pause for pause in pauses(state)}

    if unknown := [id for id in answers if id not in pending]:
        raise UnknownPause(state.run_id, unknown, [*pending])

    found: list[Violation] = []

    for id, answer in answers.items():
        if pending[id].reason == "input" or (pending[id].reason == "approval" and isinstance(answer, str)):
            found.extend(validator.answer_rules(id, answer))
        elif wanted := _misfit(pending[id], answer):
            text = f"The answer to {id!r} must be {wanted}, not {answer!r}."
            found.append(Violation(rule="answer", text=text, value=answer))

    if found:
        raise InvalidInput(found)


def _misfit(pause: Pause, answer: object) -> str:
    if pause.reason == "approval":
        return "" if isinstance(answer, bool) else "True, False, or a text that says why not"

    if isinstance(answer, dict) and set(answer) == {"done"}:
        return "" if _has_json(answer["done"]) else "{'done': result} with a result that can be written as JSON"

    fits = isinstance(answer, str) and answer in ("run again", "skip")
    return "" if fits else "'run again', 'skip' or {'done': result}"


def _has_json(value: object) -> bool:
    try:
        to_text(value)
    except Exception:  # the tool boundary: what a person hands in for a tool's result may be any object
        return False

    return True
