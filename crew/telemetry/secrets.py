"""Values that nobody may see: provider keys, registered secrets, `SecretStr`; found in a text in any usual spelling."""

from __future__ import annotations

import base64
import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from threading import Lock
from typing import Any, ClassVar, NamedTuple
from urllib.parse import quote, quote_plus

from crew.errors import DefinitionError
from crew.telemetry.hidden import hidden, hidden_in

REPLACEMENT = "[secret]"
SHORTEST = 6
SHORTEST_KEY = 8


class _Spelled(NamedTuple):
    """All spellings of a set of values, as they were when so many had been added; replaced whole, never changed."""

    added: int = -1
    pattern: re.Pattern[str] | None = None
    spellings: tuple[str, ...] = ()
    longest: int = 0

    @classmethod
    def of(cls, added: int, values: Iterable[str]) -> _Spelled:
        spellings = {spelling for value in values for spelling in (*_spellings(value), *_spellings(value.strip()))}
        # The longest first: a secret that begins another one must not leave the other one's rest.
        longest_first = sorted(spellings, key=len, reverse=True)
        pattern = re.compile("|".join(map(re.escape, longest_first))) if spellings else None
        return cls(added, pattern, tuple(sorted(spellings)), max(map(len, spellings), default=0))

    def beginning(self, text: str, start: int) -> int:
        """The first place from `start` on from which the text may go on to one of them, or to a longer one."""
        for place in range(max(start, len(text) - self.longest + 1), len(text)):
            rest = text[place:]
            follows = bisect_right(self.spellings, rest)

            if follows < len(self.spellings) and self.spellings[follows].startswith(rest):
                return place

        return len(text)


class Secrets:
    """A set of values, and a way to take them out of texts. A `SecretStr` may stand wherever a text may."""

    _added: ClassVar[int] = 0
    """How often a set that others may stand on was added to: while it stands, no pattern has to be made anew."""

    _lock: ClassVar[Lock] = Lock()

    def __init__(self, values: Iterable[Any] = (), *, below: Secrets | None = None) -> None:
        self._below = below
        self._values = {_usable(value) for value in values}
        self._spelled = _Spelled()

    def add(self, value: Any) -> None:
        """One more; a text of at least 6 characters, because shorter ones are part of ordinary words."""
        text = _usable(value)

        with Secrets._lock:
            if text not in self._values:
                self._values.add(text)
                Secrets._added += 1

    @property
    def stamp(self) -> object:
        """The same one as long as the values are the same."""
        return self._newest().pattern

    def __bool__(self) -> bool:
        # Asked with every event of every run, and mostly in vain.
        spelled = self._spelled
        return (spelled if spelled.added == Secrets._added else self._newest()).pattern is not None

    def __call__(self, text: str) -> str:
        """The text without them."""
        pattern = self._newest().pattern
        return text if pattern is None else pattern.sub(REPLACEMENT, text)

    def split(self, text: str) -> tuple[str, str]:
        """The text without them, as far as what follows can't change that; and its end, as it is."""
        spelled = self._newest()

        if spelled.pattern is None:
            return text, ""

        end = spelled.beginning(text, 0)

        for found in spelled.pattern.finditer(text):
            if found.start() < end < found.end():
                end = spelled.beginning(text, found.end())

        return spelled.pattern.sub(REPLACEMENT, text[:end]), text[end:]

    def with_those_in(self, holder: Any) -> Secrets:
        """These, and every `SecretStr` that this object holds, in fields and items and in what those hold."""
        found = [text for text in hidden_in(holder) if len(text.strip()) >= SHORTEST]
        return Secrets(found, below=self) if found else self

    def _all(self) -> set[str]:
        return self._values | (self._below._all() if self._below is not None else set())

    def _newest(self) -> _Spelled:
        spelled = self._spelled

        if spelled.added != Secrets._added:
            with Secrets._lock:
                added, values = Secrets._added, self._all()

            # Others go on with their own, or make the same: what is half made is seen by nobody.
            spelled = self._spelled = _Spelled.of(added, values)

        return spelled


HELD = Secrets()
"""What the whole process must not show."""

CURRENT: ContextVar[Secrets] = ContextVar("crew_secrets", default=HELD)
"""What must not be shown here: in a run, also what that run's dependencies hold."""


def register_secret(value: Any) -> None:
    """From now on this value is replaced wherever it would enter a message, an event, a log line or a span."""
    HELD.add(value)


def keep(keys: Iterable[Any]) -> None:
    """Keys of providers, those that are long enough to be one."""
    for key in keys:
        text = _plain(key)

        if text is not None and len(text.strip()) >= SHORTEST_KEY:
            HELD.add(text)


def _usable(value: Any) -> str:
    text = _plain(value)

    if text is None or len(text.strip()) < SHORTEST:
        raise DefinitionError(
            "Secret", f"it must be a text or SecretStr of at least {SHORTEST} characters; it is not shown here"
        )

    return text


def _plain(value: Any) -> str | None:
    return value if isinstance(value, str) else hidden(value)


def _spellings(value: str) -> Iterator[str]:
    """As it is, inside JSON (and JSON inside that) and Python literals, in addresses, and in a Basic header."""
    encoded = value.encode("utf-8", "surrogatepass")
    yield value
    yield json.dumps(value).replace("/", "\\/")[1:-1]
    yield repr(value)[1:-1]
    yield repr(encoded)[2:-1]
    yield quote(encoded, safe="")
    yield quote(encoded)
    yield quote_plus(encoded)
    yield base64.b64encode(encoded).decode()

    for once in _in_json(value):
        yield once
        yield from _in_json(once)


def _in_json(text: str) -> Iterator[str]:
    yield json.dumps(text)[1:-1]
    yield json.dumps(text, ensure_ascii=False)[1:-1]
