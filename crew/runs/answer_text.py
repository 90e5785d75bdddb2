"""Converts a text that a person wrote, in the terminal or in a chat, to the answer to a pause."""

from __future__ import annotations

import re
from typing import Any, TypeAlias

from crew.runs.call_text import parse_json_object
from crew.runs.state import Pause

APPROVALS = dict.fromkeys(("y", "yes", "ok", "okay", "true", "approve", "approved"), True) | dict.fromkeys(
    ("n", "no", "false", "refuse", "refused"), False
)
AFFIRMATIVE_WORDS = {"y", "yes", "ok", "okay", "true", "sure", "approve", "approved"}
"""A text is the reason of a refusal: one that begins with such a word, and says more, may mean the opposite."""

_FIRST_WORD = re.compile(r"\W", re.ASCII)
DOUBT_ANSWERS = {"r": "run again", "run again": "run again", "s": "skip", "skip": "skip"}

Answer: TypeAlias = str | bool | dict[str, Any]
"""An answer to a pause, as `CrewExecutor.resume` accepts it."""


def parse_answer(pause: Pause, text: str) -> Answer | None:
    """Convert typed text to an answer; None if the pause does not accept it."""
    stripped = text.strip()

    if not stripped:
        return None

    match pause.reason:
        case "input":
            return text
        case "question":
            return _parse_choice(pause, text)
        case "approval":
            return _parse_approval(pause, stripped)
        case "consent":
            return _parse_decision(stripped)
        case "in_doubt":
            key, equals, result = stripped.partition("=")
            is_result = bool(equals) and key.strip().lower() == "done"
            return {"done": result.strip()} if is_result else DOUBT_ANSWERS.get(stripped.lower())


def _parse_choice(pause: Pause, text: str) -> str | None:
    """The text; for a question with choices the choice that it is, or whose number it is."""
    if not pause.choices:
        return text

    given = text.strip()
    numbered = {str(number): choice for number, choice in enumerate(pause.choices, start=1)}
    return given if given in pause.choices else numbered.get(given)


def _parse_approval(pause: Pause, text: str) -> Answer | None:
    """`edit {…}` changes the arguments that it names; an object such as {"approve": {…}} is the answer itself."""
    word, _, rest = text.partition(" ")

    if word.lower() == "edit":
        changes = parse_json_object(rest) if rest.strip().startswith("{") else None
        return None if changes is None else {"approve": {"arguments": (pause.arguments or {}) | changes}}

    given = parse_json_object(text) if text.startswith("{") else None
    is_answer = given is not None and set(given) in ({"approve"}, {"refuse"})
    return given if is_answer else _parse_decision(text)


def _parse_decision(text: str) -> bool | str | None:
    """Yes or no, or the reason of a refusal; None if the text is ambiguous."""
    return APPROVALS.get(_plain(text), None if is_ambiguous(text) else text)


def is_ambiguous(text: str) -> bool:
    """Whether a text is no plain yes and looks like one, so that it is not taken for the reason of a refusal."""
    plain = _plain(text)
    return plain not in APPROVALS and (plain == "run again" or _FIRST_WORD.split(plain)[0] in AFFIRMATIVE_WORDS)


def _plain(text: str) -> str:
    return text.strip(" .!").lower()
