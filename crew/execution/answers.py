"""Whether a person's answers are for what the run waits for, before anything is changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from crew.errors import InvalidInput, UnknownPause, Violation
from crew.runs import Pause, RunState, pauses
from crew.validation import InputValidator


def check_answers(state: RunState, answers: Mapping[str, Any], validator: InputValidator) -> None:
    """Every answer names a pending pause and is of its kind."""
    pending = {pause.id: pause for pause in pauses(state)}

    if unknown := [id for id in answers if id not in pending]:
        raise UnknownPause(state.run_id, unknown, [*pending])

    found: list[Violation] = []

    for id, answer in answers.items():
        if pending[id].reason == "input":
            validator.check_answer(id, answer)
        elif wanted := _misfit(pending[id], answer):
            text = f"The answer to {id!r} must be {wanted}, not {answer!r}."
            found.append(Violation(rule="answer", text=text, value=answer))

    if found:
        raise InvalidInput(found)


def _misfit(pause: Pause, answer: object) -> str:
    if pause.reason == "approval":
        fits = isinstance(answer, bool) or (isinstance(answer, str) and bool(answer.strip()))
        return "" if fits else "True, False, or a text that says why not"

    fits = answer in ("run again", "skip") or (isinstance(answer, dict) and set(answer) == {"done"})
    return "" if fits else "'run again', 'skip' or {'done': result}"
