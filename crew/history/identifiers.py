"""Identifiers (paths, ids, numbers, URLs) of a span of messages, so that a summary can't drop them unseen."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from crew.history.tokens import estimate
from crew.messages import AssistantMessage, Message, SummaryMessage, ToolMessage, UserMessage

MOST_TOKENS = 256

_BETWEEN = re.compile(r"""(?:[\s"'`;(){}\[\]<>|=*]|,(?!\d))+""")
_FILE = re.compile(r"[\w-]{2,}\.[A-Za-z]{1,5}")
_FIRST, _ALSO = "Identifiers: ", "Also named: "
_MORE = re.compile(r"^\((\d+) more: recall\)$", re.MULTILINE)


def identifiers(text: str) -> Iterator[str]:
    """The words of a text that name something exactly."""
    for raw in _BETWEEN.split(text):
        word = raw.strip(".,:!?…-\\")

        if 2 <= len(word) <= 120 and _names(word):
            yield word


def _names(word: str) -> bool:
    if any(character.isdigit() for character in word) or "://" in word:
        return True

    path = "/" in word and (word.startswith(("/", "./", "~")) or word.count("/") > 1 or "." in word)
    inside = "_" in word.strip("_") or ("@" in word and "." in word)
    return path or inside or _FILE.fullmatch(word) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attached:
    """What an older summary had attached: what came first, what else, and how many found no room."""

    body: str
    first: tuple[str, ...]
    also: tuple[str, ...]
    more: int


def _attached(text: str) -> _Attached:
    lines = text.splitlines()
    first = next((line for line in lines if line.startswith(_FIRST)), "")
    also = next((line for line in lines if line.startswith(_ALSO)), "")
    more = _MORE.search(text)
    body = [line for line in lines if line not in (first, also) and not _MORE.match(line)]
    return _Attached(
        body="\n".join(body),
        first=tuple(first.removeprefix(_FIRST).split(", ")) if first else (),
        also=tuple(also.removeprefix(_ALSO).split(", ")) if also else (),
        more=int(more[1]) if more else 0,
    )


def attach(text: str, span: Sequence[Message], room: int) -> str:
    """The summary with what it dropped of the span's identifiers, verbatim, within `room` tokens.

    What the user said and what tools were asked for comes first, and what an older summary had attached stays ahead of
    it, so that it survives any number of summaries.
    """
    older = [_attached(m.text) for m in span if isinstance(m, SummaryMessage)]
    asked = [*_asked(span)]
    first = _dropped(text, [*(id for a in older for id in a.first), *(id for id in asked if not _small(id))])
    carried = [id for a in older for id in (*identifiers(a.body), *a.also)]
    also = _dropped(text, [*carried, *(id for id in asked if _small(id)), *_told(span)])
    also = [id for id in also if id not in set(first)]
    room = min(room, MOST_TOKENS) - 8
    ahead, left = _fitting(_FIRST, first, room)
    behind, rest = _fitting(_ALSO, also, room - (estimate(ahead) if ahead else 0)) if not left else ("", len(also))
    more = left + rest + sum(a.more for a in older)
    note = f"({more} more: recall)" if more and room > 0 else ""
    block = "\n".join(filter(None, (ahead, behind, note)))
    return f"{text}\n\n{block}" if block else text


def _small(id: str) -> bool:
    """A number of two digits names little: it takes no room from what names more."""
    return len(id) < 3 and id.isdigit()


def _asked(span: Sequence[Message]) -> Iterator[str]:
    for message in span:
        if isinstance(message, UserMessage):
            yield from identifiers(message.text)
        elif isinstance(message, AssistantMessage):
            for call in message.calls:
                yield from identifiers(_values(call.arguments))


def _told(span: Sequence[Message]) -> Iterator[str]:
    for message in span:
        if isinstance(message, AssistantMessage):
            yield from identifiers(message.text)
        elif isinstance(message, ToolMessage):
            for result in message.results:
                yield from identifiers(result.text)


def _values(arguments: str) -> str:
    """The values of a call's arguments: its keys name parameters, nothing in the world."""

    def leaves(value: Any) -> Iterator[str]:
        if isinstance(value, dict):
            for inner in value.values():
                yield from leaves(inner)
        elif isinstance(value, list):
            for inner in value:
                yield from leaves(inner)
        elif not isinstance(value, bool) and value is not None:
            yield str(value)

    try:
        return "\n".join(leaves(json.loads(arguments)))
    except ValueError:
        return arguments


def _dropped(text: str, found: Iterable[str]) -> list[str]:
    """Those that the text does not have as a word of its own, each once."""
    present = set(identifiers(text))
    return [id for id in dict.fromkeys(found) if id not in present and id.strip()]


def _fitting(heading: str, found: Sequence[str], room: int) -> tuple[str, int]:
    """As many as fit, as one line, and how many did not."""
    line = ""

    for index, id in enumerate(found):
        longer = f"{line}, {id}" if line else heading + id

        if estimate(longer) > room:
            return line, len(found) - index

        line = longer

    return line, 0
