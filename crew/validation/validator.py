"""`InputValidator`: checks the input of a run by all rules and reports every violation."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from crew.errors import InvalidInput, Violation
from crew.message_rules.validate import validate
from crew.messages import AssistantMessage, Message, ToolMessage
from crew.run_ids import RUN_ID_RULE, is_run_id
from crew.settings import NonNegativeInt, PositiveInt, check_settings
from crew.validation.message_import import import_messages, is_from_run, merge_tool_messages

AGENT_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")

_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_SURROGATE = re.compile("[\ud800-\udfff]")


def text_violations(
    where: str, value: object, limit: int, option: str, index: int | None = None
) -> Iterator[Violation]:
    """A text must be a string, not blank, not too long, valid Unicode, without control characters but \\n \\r \\t."""
    if not isinstance(value, str):
        text = f"{where} must be a string, not {type(value).__name__} ({_abbreviate(value)})."
        yield Violation(rule="type", text=text, index=index, value=value)
        return

    if not value.strip():
        text = f"{where} is blank; at least one character other than white space is required."
        yield Violation(rule="blank", text=text, index=index, value=value, limit=1)

    yield from character_violations(where, value, limit, option, index)


def character_violations(
    where: str, value: str, limit: int, option: str, index: int | None = None
) -> Iterator[Violation]:
    """The length and the characters of a text that may be blank; `option` of the validator sets the limit."""
    if len(value) > limit:
        text = f"{where} has {len(value)} characters; at most {limit} are accepted. {_raise_limit(option)}"
        yield Violation(rule="too_long", text=text, index=index, value=len(value), limit=limit)

        value = value[:limit]  # searching the whole of a huge text would block the event loop

    if found := _SURROGATE.search(value):
        text = f"{where} has the lone surrogate {found[0]!a} at character {found.start()}; this is not valid Unicode."
        yield Violation(rule="unicode", text=text, index=index, value=found[0])

    if found := _CONTROL.search(value):
        name = "NUL" if found[0] == "\0" else "control"
        place = f"the {name} character {found[0]!r} at character {found.start()}"
        text = f"{where} has {place}; only \\n, \\r and \\t are accepted."
        yield Violation(rule="control", text=text, index=index, value=found[0])


def _raise_limit(option: str) -> str:
    return f"Raise the limit with validator=InputValidator({option}=…)."


def agent_violations(value: object) -> Iterator[Violation]:
    if not isinstance(value, str) or not AGENT_ID.fullmatch(value):
        text = f"The agent must be a name of 1–128 characters A–Z a–z 0–9 _ -, not {_abbreviate(value)}."
        yield Violation(rule="agent", text=text, value=value)


def run_id_violations(value: object, name: str = "run id") -> Iterator[Violation]:
    if not is_run_id(value):
        text = f"The {name} must be {RUN_ID_RULE}, not {_abbreviate(value)}."
        yield Violation(rule=name.replace(" ", "_"), text=text, value=value)


def size_violations(messages: Sequence[object], limit: int) -> Iterator[Violation]:
    count = len(messages) if len(messages) <= limit else sum(not is_from_run(message) for message in messages)

    if count > limit:
        text = f"The history has {count} messages; at most {limit} are accepted. "
        text += _raise_limit("max_history_messages")
        yield Violation(rule="too_many", text=text, value=count, limit=limit)


def message_violations(messages: Sequence[tuple[int, Message]], limit: int) -> Iterator[Violation]:
    """The texts of messages, each message with the index of its item in the history."""
    for index, message in messages:
        for where, text in _message_texts(message):
            if not isinstance(text, str):
                problem = f"history[{index}]{where} must be a string, not {type(text).__name__} ({_abbreviate(text)})."
                yield Violation(rule="type", text=problem, index=index, value=text)
            elif not is_from_run(message):
                yield from character_violations(f"history[{index}]{where}", text, limit, "max_message_chars", index)


def _message_texts(message: Message) -> Iterator[tuple[str, object]]:
    if isinstance(message, ToolMessage):
        yield from ((f".results[{number}]", result.text) for number, result in enumerate(message.results))
        return

    yield "", message.text

    if isinstance(message, AssistantMessage):
        yield from ((f".calls[{number}].arguments", call.arguments) for number, call in enumerate(message.calls))


def _abbreviate(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= 60 else text[:57] + "..."


_PAIRING = ("unanswered_call", "orphan_result", "duplicate_result", "duplicate_call")


@dataclass(frozen=True, slots=True, kw_only=True)
class InputValidator:
    """The input that an executor accepts.

    The limits are for what an outsider may send: the input, answers, and messages without an id. Messages of an earlier
    run, from its result or from a recording, have ids and any size.

    `tool_pairs` decides whether tool calls without results, and results without calls, are repaired or refused.
    """

    max_query_chars: PositiveInt = 10_000
    max_history_messages: NonNegativeInt = 1_000
    max_message_chars: PositiveInt = 100_000
    tool_pairs: Literal["repair", "refuse"] = "repair"

    def __post_init__(self) -> None:
        check_settings(self)

    def is_too_long(self, query: object) -> bool:
        """Whether `check` refuses an input for its length."""
        return isinstance(query, str) and len(query) > self.max_query_chars

    def check(
        self, query: object, *, history: Sequence[object] = (), agent: object = None, run_id: object = None
    ) -> tuple[Message, ...]:
        """The history as messages. Raises `InvalidInput` with all violations of all arguments."""
        violations = [*text_violations("The input", query, self.max_query_chars, "max_query_chars")]

        if agent is not None:
            violations.extend(agent_violations(agent))

        if run_id is not None:
            violations.extend(run_id_violations(run_id))

        messages, history_violations = self.check_history(history)
        violations.extend(history_violations)

        if violations:
            raise InvalidInput(violations)

        return messages

    def check_history(self, history: object) -> tuple[tuple[Message, ...], list[Violation]]:
        """The messages of a history, and its violations."""
        if isinstance(history, str | bytes) or not isinstance(history, Sequence):
            text = f"The history must be a list of messages or a RunResult, not {type(history).__name__}."
            return (), [Violation(rule="type", text=text, value=history)]

        if not history:
            return (), []

        if too_many := [*size_violations(history, self.max_history_messages)]:
            return (), too_many

        imported, violations = import_messages(history)
        violations.extend(message_violations(imported, self.max_message_chars))
        merged = merge_tool_messages(imported)
        messages = tuple(message for _, message in merged)

        if self.tool_pairs == "refuse":
            broken = (v for v in validate(messages) if v.rule in _PAIRING and v.index is not None)
            violations.extend(replace(v, index=merged[min(v.index or 0, len(merged) - 1)][0]) for v in broken)

        return messages, violations

    def answer_violations(self, id: str, answer: object) -> list[Violation]:
        """The violations of a text that answers a pause."""
        return [*text_violations(f"The answer to {id!r}", answer, self.max_query_chars, "max_query_chars")]
