"""Checks the answers to the pauses of a run before they change its state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Literal

from pydantic_core import to_json

from crew.errors import InvalidInput, UnknownPause, Violation, abbreviate, describe
from crew.runs.answers import Approve, Refuse, approval_part
from crew.runs.state import Pause, RunState, pending_pauses
from crew.tools.schema import InvalidArguments
from crew.tools.tool import Tool, to_text
from crew.validation.executor_arguments import json_problems
from crew.validation.validator import InputValidator

FindTool = Callable[[Pause], Tool | None]
"""The tool of the call that a pause waits for; None if it is not a tool of this crew."""


def answers_as_dict(answers: object) -> dict[str, object]:
    """The answers by the id of their pause; empty for None."""
    if answers is None:
        return {}

    if not isinstance(answers, Mapping):
        text = f"The answers must be a mapping such as {{result.pauses[0].id: True}}, not {abbreviate(answers)}."
        raise InvalidInput([Violation(rule="answer", text=text, value=answers)])

    return {id: answer.as_json() if isinstance(answer, Approve | Refuse) else answer for id, answer in answers.items()}


def check_answers(
    state: RunState, answers: Mapping[str, object], validator: InputValidator, find_tool: FindTool
) -> None:
    """Raise `UnknownPause` or `InvalidInput` unless each answer is for a pending pause and of an accepted type."""
    pending = {pause.id: pause for pause in pending_pauses(state)}

    if unknown := [id for id in answers if id not in pending]:
        raise UnknownPause(state.run_id, unknown, [*pending])

    listed = {pause.id for pause in pending.values() if pause.call is not None and _is_listed(state, pause)}
    violations = [
        violation
        for id, answer in answers.items()
        for violation in _answer_violations(pending[id], answer, validator, find_tool, is_listed=id in listed)
    ]

    if violations:
        raise InvalidInput(violations)


def _is_listed(state: RunState, pause: Pause) -> bool:
    """Whether a toolset listed the tool of this pause: then it checks the arguments when the call runs."""
    prepared = state.prepared.get(pause.agent) if state.run_id == pause.run_id else None

    if prepared is not None and pause.call is not None and prepared.tool(pause.call.name) is not None:
        return True

    return any(_is_listed(child, pause) for child in state.children.values())


AMBIGUOUS_REASONS = frozenset({"yes", "y", "ok", "okay", "true", "approve", "approved", "run again"})
"""A text refuses a call: these look like an approval."""


def _answer_violations(
    pause: Pause, answer: object, validator: InputValidator, find_tool: FindTool, *, is_listed: bool
) -> Iterator[Violation]:
    asks_permission = pause.reason in ("approval", "consent")

    if asks_permission and isinstance(answer, dict) and set(answer) in ({"approve"}, {"refuse"}):
        key: Literal["approve", "refuse"] = "approve" if "approve" in answer else "refuse"
        details = approval_part(answer, key)
        problems = _details_problems(pause, key, details, find_tool, is_listed=is_listed)
        yield from (Violation(rule="answer", text=f"The answer to {pause.id!r}: {problem}") for problem in problems)

        for name in ("reason", "by"):
            if isinstance(details, dict) and details.get(name, "") != "":
                yield from validator.answer_violations(f"{pause.id} ({name})", details[name])
    elif asks_permission and isinstance(answer, str) and answer.strip(" .!").lower() in AMBIGUOUS_REASONS:
        text = (
            f"The answer {answer!r} to {pause.id!r} is ambiguous: pass True to approve, or False or a reason to refuse."
        )
        yield Violation(rule="answer", text=text, value=answer)
    elif pause.reason in ("input", "question") or (asks_permission and isinstance(answer, str)):
        yield from validator.answer_violations(pause.id, answer)
        yield from _choice_problems(pause, answer)
    elif accepted := _accepted_answers(pause, answer):
        text = f"The answer to {pause.id!r} must be {accepted}, not {abbreviate(answer)}."
        yield Violation(rule="answer", text=text, value=answer)


def _choice_problems(pause: Pause, answer: object) -> Iterator[Violation]:
    if pause.choices and isinstance(answer, str) and answer not in pause.choices:
        accepted = ", ".join(map(repr, pause.choices))
        text = f"The answer to {pause.id!r} must be one of {accepted}, not {abbreviate(answer)}."
        yield Violation(rule="answer", text=text, value=answer)


def _accepted_answers(pause: Pause, answer: object) -> str:
    """The answers that the pause accepts, in words; empty if this answer is one of them."""
    if pause.reason == "approval":
        accepted = (
            "True, False, a string with the reason for the refusal, Approve(...) or Refuse(...), in JSON "
            '{"approve": {…}} or {"refuse": {…}}'
        )
        return "" if isinstance(answer, bool) else accepted

    if pause.reason == "consent":
        return "" if isinstance(answer, bool) else "True, False, or a string with the reason for the refusal"

    if isinstance(answer, dict) and set(answer) == {"done"}:
        return "" if _has_json(answer["done"]) else "{'done': result} with a result that can be converted to JSON"

    is_accepted = isinstance(answer, str) and answer in ("run again", "skip")
    return "" if is_accepted else "'run again', 'skip' or {'done': result}"


def _has_json(value: object) -> bool:
    try:
        to_text(value)
    except Exception:  # user code: the result of a tool may be any object, and its conversion may raise anything
        return False

    return True


ACCEPTED_DETAILS = {"approve": {"arguments", "by"}, "refuse": {"reason", "by"}}


def _details_problems(
    pause: Pause,
    key: Literal["approve", "refuse"],
    details: object,
    find_tool: FindTool,
    *,
    is_listed: bool,
) -> Iterator[str]:
    """What is wrong with the content of an {"approve": …} or {"refuse": …}."""
    accepted = ACCEPTED_DETAILS[key]

    if not isinstance(details, dict):
        keys = " and ".join(sorted(accepted))
        yield f"{key!r} must be an object with the optional keys {keys}, not {abbreviate(details)}."
        return

    if unknown := [name for name in details if name not in accepted]:
        yield f"{key!r} has the unknown key {abbreviate(unknown[0])}; accepted: {', '.join(sorted(accepted))}."

    if key == "approve" and details.get("arguments") is not None:
        yield from _argument_problems(pause, details["arguments"], find_tool(pause), is_listed=is_listed)


def _argument_problems(pause: Pause, arguments: object, tool: Tool | None, *, is_listed: bool) -> Iterator[str]:
    name = "" if pause.call is None else pause.call.name

    if pause.call is None:
        yield "this pause has no call whose arguments could be changed; approve it without arguments."
    elif not isinstance(arguments, dict):
        yield f"the arguments must be an object with all arguments of {name}, not {abbreviate(arguments)}."
    elif problems := [*json_problems("arguments", arguments)]:
        yield from problems
    elif tool is None and is_listed:
        return
    elif tool is None:
        yield f"the arguments of {name} can't be checked, because the crew has no such tool."
    else:
        try:
            tool.signature.parse_arguments(to_json(arguments).decode())
        except InvalidArguments as error:
            yield f"{name} does not accept these arguments. {error.problems}."
        except Exception as error:  # the tool boundary: a validator of an argument may raise anything
            yield f"{name} does not accept these arguments: {describe(error)}"
