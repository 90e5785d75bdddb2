"""Every `SecretStr` that an object holds, in whatever it holds: found without running code of the object's own."""

from __future__ import annotations

import base64
import json
import os
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from functools import lru_cache
from itertools import islice
from threading import Lock
from types import FunctionType, MemberDescriptorType, ModuleType
from typing import Any, ClassVar, NamedTuple
from urllib.parse import quote, quote_plus

from crew.errors import DefinitionError

KEY_VARIABLES = ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY", "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN")


def environment_keys(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The providers' keys, by their variables."""
    return {name: environment[name] for name in KEY_VARIABLES if name in environment}


DEEPEST = 6
MOST_OF_ONE = 500
MOST = 5_000
"""Dependencies may hold the world: of one thing so many parts are looked at, and of all together so many."""

_PLAIN = (str, bytes, bool, int, float, type(None))
_CLOSED = (type, ModuleType, FunctionType)
"""What these hold is the program, not the dependencies."""


def find_secrets(holder: Any) -> list[str]:
    """What the holder hides, if it is a secret itself, and what its fields and items hide; the nearest first."""
    found: list[str] = []
    seen: dict[int, Any] = {}
    layer, left = [holder], MOST

    for _ in range(DEEPEST + 1):
        beneath: list[Any] = []

        for held in layer:
            if type(held) in _PLAIN or id(held) in seen:
                continue

            seen[id(held)] = held

            if (text := secret_value(held)) is not None:
                found.append(text)
            elif left > 0:
                parts = _parts(held)
                left -= len(parts) + 1
                beneath += parts

        layer = beneath

    return found


def secret_value(value: Any) -> str | None:
    """The text of a `SecretStr`, or of what is like one; None of anything else."""
    try:
        get = getattr(type(value), "get_secret_value", None)
        held = get(value) if callable(get) else None
    except Exception:  # the tool boundary: dependencies may be anything, and may refuse to be looked at
        return None

    if isinstance(held, bytes):
        held = held.decode("utf-8", "replace")

    return held if isinstance(held, str) else None


def _parts(holder: Any) -> list[Any]:
    parts: list[Any] = []

    try:
        if isinstance(holder, _CLOSED):
            return parts

        kind: Any = type(holder)

        for name, member in _members(kind):
            parts += _held(name, member, holder)

        if isinstance(holder, dict):
            parts += islice(dict.values(holder), MOST_OF_ONE)
        elif isinstance(holder, list | tuple | set | frozenset):
            parts += islice(holder, MOST_OF_ONE)
        elif isinstance(holder, Mapping):
            parts += islice(holder.values(), MOST_OF_ONE)
    except Exception:  # the tool boundary: dependencies may be anything, and may refuse to be looked at
        pass

    return parts


def _held(name: str, member: Any, holder: Any) -> list[Any]:
    try:
        held = member.__get__(holder)
    except AttributeError:
        return []  # a slot that was never filled

    return list(islice(dict.values(held), MOST_OF_ONE)) if name == "__dict__" else [held]


@lru_cache(maxsize=1_000)
def _members(kind: Any) -> tuple[tuple[str, Any], ...]:
    """Where instances keep what they hold: their slots, and their `__dict__`. Properties are not among them."""
    return tuple(
        (name, member)
        for of in kind.__mro__
        for name, member in vars(of).items()
        if type(member) is MemberDescriptorType or (name == "__dict__" and not isinstance(member, property))
    )


REPLACEMENT = "[secret]"
MIN_LENGTH = 6
MIN_KEY_LENGTH = 8


class _Spellings(NamedTuple):
    """All spellings of a set of values, as they were when so many had been added; replaced whole, never changed."""

    revision: int = -1
    pattern: re.Pattern[str] | None = None
    spellings: tuple[str, ...] = ()
    longest: int = 0

    @classmethod
    def of(cls, added: int, values: Iterable[str]) -> _Spellings:
        spellings = {spelling for value in values for spelling in (*_spellings(value), *_spellings(value.strip()))}
        # The longest first: a secret that begins another one must not leave the other one's rest.
        longest_first = sorted(spellings, key=len, reverse=True)
        pattern = re.compile("|".join(map(re.escape, longest_first))) if spellings else None
        return cls(added, pattern, tuple(sorted(spellings)), max(map(len, spellings), default=0))

    def possible_start(self, text: str, start: int) -> int:
        """The first place from `start` on from which the text may go on to one of them, or to a longer one."""
        for place in range(max(start, len(text) - self.longest + 1), len(text)):
            rest = text[place:]
            follows = bisect_right(self.spellings, rest)

            if follows < len(self.spellings) and self.spellings[follows].startswith(rest):
                return place

        return len(text)


class SecretRegistry:
    """A set of values, and a way to take them out of texts. A `SecretStr` may stand wherever a text may."""

    _revision: ClassVar[int] = 0
    """How often a set that others may stand on was added to: while it stands, no pattern has to be made anew."""

    _lock: ClassVar[Lock] = Lock()

    def __init__(self, values: Iterable[Any] = (), *, below: SecretRegistry | None = None) -> None:
        self._parent = below
        self._values = {_checked(value) for value in values}
        self._spelled = _Spellings()

    def add(self, value: Any) -> None:
        """One more; a text of at least 6 characters, because shorter ones are part of ordinary words."""
        text = _checked(value)

        with SecretRegistry._lock:
            if text not in self._values:
                self._values.add(text)
                SecretRegistry._revision += 1

    @property
    def revision(self) -> object:
        """The same one as long as the values are the same."""
        return self._current().pattern

    def __bool__(self) -> bool:
        # Asked with every event of every run, and mostly in vain.
        spelled = self._spelled
        return (spelled if spelled.revision == SecretRegistry._revision else self._current()).pattern is not None

    def __call__(self, text: str) -> str:
        """The text without them."""
        pattern = self._current().pattern
        return text if pattern is None else pattern.sub(REPLACEMENT, text)

    def split(self, text: str) -> tuple[str, str]:
        """The text without them, as far as what follows can't change that; and its end, as it is."""
        spelled = self._current()

        if spelled.pattern is None:
            return text, ""

        end = spelled.possible_start(text, 0)

        for found in spelled.pattern.finditer(text):
            if found.start() < end < found.end():
                end = spelled.possible_start(text, found.end())

        return spelled.pattern.sub(REPLACEMENT, text[:end]), text[end:]

    def with_secrets_of(self, holder: Any) -> SecretRegistry:
        """These, and every `SecretStr` that this object holds, in fields and items and in what those hold."""
        found = [text for text in find_secrets(holder) if len(text.strip()) >= MIN_LENGTH]
        return SecretRegistry(found, below=self) if found else self

    def _all(self) -> set[str]:
        return self._values | (self._parent._all() if self._parent is not None else set())

    def _current(self) -> _Spellings:
        spelled = self._spelled

        if spelled.revision != SecretRegistry._revision:
            with SecretRegistry._lock:
                added, values = SecretRegistry._revision, self._all()

            # Others go on with their own, or make the same: what is half made is seen by nobody.
            spelled = self._spelled = _Spellings.of(added, values)

        return spelled


PROCESS_SECRETS = SecretRegistry()
"""What the whole process must not show."""

CURRENT_SECRETS: ContextVar[SecretRegistry] = ContextVar("crew_secrets", default=PROCESS_SECRETS)
"""What must not be shown here: in a run, also what that run's dependencies hold."""


def register_secret(value: Any) -> None:
    """From now on this value is replaced wherever it would enter a message, an event, a log line or a span."""
    PROCESS_SECRETS.add(value)


def register_keys(keys: Iterable[Any]) -> None:
    """Keys of providers, those that are long enough to be one."""
    for key in keys:
        text = _secret_text(key)

        if text is not None and len(text.strip()) >= MIN_KEY_LENGTH:
            PROCESS_SECRETS.add(text)


def _checked(value: Any) -> str:
    text = _secret_text(value)

    if text is None or len(text.strip()) < MIN_LENGTH:
        raise DefinitionError(
            "Secret", f"it must be a text or SecretStr of at least {MIN_LENGTH} characters; it is not shown here"
        )

    return text


def _secret_text(value: Any) -> str | None:
    return value if isinstance(value, str) else secret_value(value)


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

    for once in _json_spellings(value):
        yield once
        yield from _json_spellings(once)


def _json_spellings(text: str) -> Iterator[str]:
    yield json.dumps(text)[1:-1]
    yield json.dumps(text, ensure_ascii=False)[1:-1]
