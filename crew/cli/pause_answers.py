"""Reads the user's answers to pauses: typed at the prompt, or given as `--answer`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from crew.cli.arguments import ACCEPTED_ANSWERS
from crew.cli.signals import prompt
from crew.cli.terminal import shorten
from crew.runs.answer_text import Answer, is_ambiguous, parse_answer
from crew.runs.state import Pause


def ask_user(pause: Pause) -> Answer:
    """Ask the user at the terminal to answer a pause, until the answer is one that the pause accepts."""
    print(f"\n{pause.full_text}", file=sys.stderr)
    print_choices(pause)

    while True:
        text = prompt(f"{accepted_answers(pause)} > ")
        is_edit = pause.reason == "approval" and text.strip().lower() in ("e", "edit")
        answer = _ask_for_arguments(pause) if is_edit else parse_answer(pause, text)

        if answer is not None:
            return answer

        if text.strip():
            print(f"crew: {answer_problem(pause, text.strip())}", file=sys.stderr)


def print_choices(pause: Pause) -> None:
    """Print the choices of a question, with their numbers."""
    for number, choice in enumerate(pause.choices, start=1):
        print(f"  {number}. {choice}", file=sys.stderr)


def accepted_answers(pause: Pause) -> str:
    """The answers that a pause accepts, for a prompt or an error."""
    return "a choice or its number" if pause.choices else ACCEPTED_ANSWERS[pause.reason]


def answer_problem(pause: Pause, text: str, answer: str = "the answer") -> str:
    """Why a pause does not accept this text; `answer` names it."""
    if pause.reason in ("approval", "consent") and is_ambiguous(text):
        return f"{text!r} is ambiguous: answer yes or no, or refuse with a reason: no, REASON"

    choices = f" ({', '.join(map(repr, pause.choices))})" if pause.choices else ""
    return f"{answer} must be {accepted_answers(pause)}{choices}, not {text!r}"


def _ask_for_arguments(pause: Pause) -> Answer:
    """Ask for each argument of the call; an empty line keeps it."""
    arguments: dict[str, Any] = {}
    print("Press Enter to keep an argument, or type a new value.", file=sys.stderr)

    for name, value in (pause.arguments or {}).items():
        typed = prompt(f"  {name} [{shorten(json.dumps(value, ensure_ascii=False))}] > ").strip()
        arguments[name] = _parse_value(typed, value) if typed else value

    return {"approve": {"arguments": arguments}}


def _parse_value(typed: str, before: object) -> object:
    """The typed value: JSON, unless the value before was a text that JSON would turn into something else."""
    try:
        value: object = json.loads(typed)
    except (ValueError, RecursionError):
        return typed

    return typed if isinstance(before, str) and not isinstance(value, str) else value


def print_refusals(pauses: Iterable[Pause], answers: Mapping[str, Answer]) -> None:
    """Print a line for each call that an answer refuses."""
    for pause in pauses:
        answer = answers.get(pause.id, True)
        is_approved = answer is True or (isinstance(answer, dict) and "approve" in answer)

        if pause.reason == "approval" and pause.call is not None and not is_approved:
            reason = f": {answer}" if isinstance(answer, str) else ""
            print(shorten(f"✗ {pause.call.name} was refused{reason}"), file=sys.stderr)
