"""The questions that a run waits for, as the inspector shows them, and the answers in a word."""

from __future__ import annotations

from typing import Any

from crew.runs.answers import is_approval
from crew.runs.call_text import argument_lines
from crew.runs.state import Pause


def pause_json(pause: Pause, *, may_answer: bool) -> dict[str, Any]:
    """A question that the run waits for, with everything that a person needs in order to answer it.

    A reply that is not accepted yet is shown to those who may answer.
    """
    call = pause.call
    return {
        "id": pause.id,
        "reason": pause.reason,
        "path": pause.run_id,
        "agent": pause.agent,
        "text": question_text(pause),
        "name": None if call is None else call.name,
        "call": None if call is None else call.id,
        "raw": None if call is None else call.arguments,
        "arguments": pause.arguments,
        "effect": pause.effect,
        "choices": list(pause.choices),
        "checked": pause.checked if may_answer else "",
    }


def question_text(pause: Pause) -> str:
    """The question without the arguments of the call, which the page shows itself, and whole."""
    if pause.call is None or pause.reason == "question":
        return pause.text

    lines = argument_lines(pause.arguments, pause.call.arguments)
    return pause.text.removesuffix("".join(f"\n  {line}" for line in lines))


def answer_word(reason: str, answer: object) -> str:
    """What a person decided about a pause, in one word or two."""
    match reason, answer:
        case "approval" | "consent", _:
            return "approved" if is_approval(answer) else "refused"
        case "in_doubt", "run again":
            return "run again"
        case "in_doubt", "skip":
            return "skipped"
        case "in_doubt", _:
            return "result given"
        case _:
            return "answered"
