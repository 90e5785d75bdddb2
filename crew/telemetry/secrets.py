"""Values that nobody may see: provider keys, registered secrets, `SecretStr`; found in a text in any usual spelling."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable
from contextvars import ContextVar
from typing import Any, ClassVar
from urllib.parse import quote, quote_plus

from crew.errors import DefinitionError

REPLACEMENT = "[secret]"
SHORTEST = 6
SHORTEST_KEY = 8


class Secrets:
    """A set of values, and a way to take them out of texts. A `SecretStr` may stand wherever a text may."""

    _added: ClassVar[int] = 0
    """How often a set that others may stand on was added to: while it stands, no pattern has to be made anew."""

    def __init__(self, values: Iterable[Any] = (), *, below: Secrets | None = None) -> None:
        self._below = below
        self._values = {_usable(value) for value in values}
        self._pattern: re.Pattern[str] | None = None
        self._spellings: tuple[str, ...] = ()
        self._known = -1

    def add(self, value: Any) -> None:
        """One more; a text of at least 6 characters, because shorter ones are part of ordinary words."""
        text = _usable(value)

        if text not in self._values:
            self._values.add(text)
            Secrets._added += 1

    def __bool__(self) -> bool:
        return bool(self._values) or bool(self._below)

    def __call__(self, text: str) -> str:
        """The text without them."""
        pattern = self._pattern if self._known == Secrets._added else self._compiled()
        return text if pattern is None else pattern.sub(REPLACEMENT, text)

    def waiting(self, text: str) -> int:
        """How many characters at the end may be the beginning of one."""
        self._compiled()
        longest = 0

        for spelling in self._spellings:
            for size in range(min(len(spelling) - 1, len(text)), longest, -1):
                if text.endswith(spelling[:size]):
                    longest = size
                    break

        return longest

    def with_those_in(self, holder: Any) -> Secrets:
        """These, and every `SecretStr` that this object holds as an attribute, a field or an item."""
        found = [text for held in _parts(holder) if (text := _hidden(held)) is not None and len(text) >= SHORTEST]
        return Secrets(found, below=self) if found else self

    def _all(self) -> set[str]:
        return self._values | (self._below._all() if self._below is not None else set())

    def _compiled(self) -> re.Pattern[str] | None:
        if self._known != Secrets._added:
            self._known = Secrets._added
            spellings = {spelling for value in self._all() for spelling in _spellings(value)}
            # The longest first: a secret that begins another one must not leave the other one's rest.
            self._spellings = tuple(sorted(spellings, key=len, reverse=True))
            self._pattern = re.compile("|".join(map(re.escape, self._spellings))) if spellings else None

        return self._pattern


HELD = Secrets()
"""What the whole process must not show."""

CURRENT: ContextVar[Secrets] = ContextVar("crew_secrets", default=HELD)
"""What must not be shown here: in a run, also what that run's dependencies hold."""


def register_secret(value: Any) -> None:
    """From now on this value is replaced wherever it would enter a message, an event, a log line or a span."""
    HELD.add(value)


def keep_from(models: Iterable[Any], keys: Iterable[str]) -> None:
    """The providers' keys: those that providers say they hold, and those of the environment."""
    held = [key for model in models for key in getattr(model, "secrets", ())]

    for key in (*held, *keys):
        text = _plain(key)

        if text is not None and len(text) >= SHORTEST_KEY:
            HELD.add(text)


def _usable(value: Any) -> str:
    text = _plain(value)

    if text is None or len(text.strip()) < SHORTEST:
        raise DefinitionError(
            "Secret", f"it must be a text or SecretStr of at least {SHORTEST} characters; it is not shown here"
        )

    return text


def _plain(value: Any) -> str | None:
    return value if isinstance(value, str) else _hidden(value)


def _hidden(value: Any) -> str | None:
    get = getattr(value, "get_secret_value", None)
    held = get() if callable(get) else None

    if isinstance(held, bytes):
        held = held.decode("utf-8", "replace")

    return held if isinstance(held, str) else None


def _parts(holder: Any) -> list[Any]:
    if isinstance(holder, dict):
        return list(holder.values())

    if isinstance(holder, list | tuple):
        return list(holder)

    slots = [getattr(holder, name, None) for name in getattr(type(holder), "__slots__", ()) if isinstance(name, str)]
    return [*getattr(holder, "__dict__", {}).values(), *slots]


def _spellings(value: str) -> Iterable[str]:
    """As it is, inside JSON and Python literals, in addresses, and in a Basic header."""
    encoded = value.encode("utf-8", "surrogatepass")
    yield value
    yield json.dumps(value)[1:-1]
    yield json.dumps(value, ensure_ascii=False)[1:-1]
    yield json.dumps(value).replace("/", "\\/")[1:-1]
    yield repr(value)[1:-1]
    yield repr(encoded)[2:-1]
    yield quote(encoded, safe="")
    yield quote(encoded)
    yield quote_plus(encoded)
    yield base64.b64encode(encoded).decode()
