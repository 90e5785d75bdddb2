"""The rules for what may come in; each yields what it finds."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from crew.errors import Violation
from crew.messages import AssistantMessage, Message, ToolMessage

AGENT_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")
RUN_ID = re.compile(r"[A-Za-z0-9_.:-]{1,128}")

_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_SURROGATE = re.compile("[\ud800-\udfff]")


def text_rules(where: str, value: object, limit: int, index: int | None = None) -> Iterator[Violation]:
    """A text: a string, not blank, not too long, valid Unicode, no control characters but \\n \\r \\t."""
    if not isinstance(value, str):
        text = f"{where} must be a text, not {type(value).__name__} ({_short(value)})."
        yield Violation(rule="type", text=text, index=index, value=value)
        return

    if not value.strip():
        text = f"{where} is blank; at least one character that is not white space is needed."
        yield Violation(rule="blank", text=text, index=index, value=value, limit=1)

    yield from character_rules(where, value, limit, index)


def character_rules(where: str, value: str, limit: int, index: int | None = None) -> Iterator[Violation]:
    """Length and characters of a text that may be blank."""
    if len(value) > limit:
        text = f"{where} has {len(value)} characters; at most {limit} are accepted."
        yield Violation(rule="too_long", text=text, index=index, value=len(value), limit=limit)

    if found := _SURROGATE.search(value):
        text = f"{where} has the lone surrogate {found[0]!a} at character {found.start()}; that is not valid Unicode."
        yield Violation(rule="unicode", text=text, index=index, value=found[0])

    if found := _CONTROL.search(value):
        name = "NUL" if found[0] == "\0" else "control"
        place = f"the {name} character {found[0]!r} at character {found.start()}"
        text = f"{where} has {place}; only \\n, \\r and \\t are accepted."
        yield Violation(rule="control", text=text, index=index, value=found[0])


def agent_rules(value: object) -> Iterator[Violation]:
    """An agent's name."""
    if not isinstance(value, str) or not AGENT_ID.fullmatch(value):
        text = f"The agent {_short(value)} is not a name: 1–128 of A–Z a–z 0–9 _ - are accepted."
        yield Violation(rule="agent", text=text, value=value)


def run_id_rules(value: object) -> Iterator[Violation]:
    """A run's id."""
    if not isinstance(value, str) or not RUN_ID.fullmatch(value):
        text = f"The run id {_short(value)} is not one: 1–128 of A–Z a–z 0–9 _ . : - are accepted."
        yield Violation(rule="run_id", text=text, value=value)


def size_rules(messages: Sequence[object], limit: int) -> Iterator[Violation]:
    """How many messages a history may have."""
    if len(messages) > limit:
        text = f"The history has {len(messages)} messages; at most {limit} are accepted."
        yield Violation(rule="too_many", text=text, value=len(messages), limit=limit)


def message_rules(messages: Sequence[tuple[int, Message]], limit: int) -> Iterator[Violation]:
    """The texts within a history, each message with the index of the item that it came from."""
    for index, message in messages:
        for where, text in _texts(message):
            if not isinstance(text, str):
                told = f"history[{index}]{where} must be a text, not {type(text).__name__} ({_short(text)})."
                yield Violation(rule="type", text=told, index=index, value=text)
            else:
                yield from character_rules(f"history[{index}]{where}", text, limit, index)


def _texts(message: Message) -> Iterator[tuple[str, object]]:
    if isinstance(message, ToolMessage):
        yield from ((f".results[{number}]", result.text) for number, result in enumerate(message.results))
        return

    yield "", message.text

    if isinstance(message, AssistantMessage):
        yield from ((f".calls[{number}].arguments", call.arguments) for number, call in enumerate(message.calls))


def _short(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= 60 else text[:57] + "..."
