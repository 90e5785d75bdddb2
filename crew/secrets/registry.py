"""The registry of secret values, how they are spelled in texts, and how they are found in objects."""

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
from crew.interfaces import HasSecrets

KEY_VARIABLES = ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY", "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN")


def environment_keys(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The providers' API keys in the environment, by variable."""
    return {name: environment[name] for name in KEY_VARIABLES if name in environment}


# ------------------------------------------------------------------------------------------------ secrets in objects

MAX_PARTS = 500

_CODE_TYPES = (type, ModuleType, FunctionType)
"""Their attributes are the program, not the dependencies."""


def find_secrets(holder: object) -> list[str]:
    """The text of every `SecretStr` that is this object, one of its attributes, or one of its items.

    No property and no method of the object is called, except `values` of a mapping that is not a dict.
    """
    values = [holder, *_parts(holder)]
    return [text for value in values if (text := secret_value(value)) is not None]


def secret_value(value: object) -> str | None:
    """The text of a `SecretStr` or a similar object with `get_secret_value`; None for any other object."""
    try:
        get = getattr(type(value), "get_secret_value", None)  # foreign: a type of the user, such as pydantic's
        secret = get(value) if callable(get) else None
    except Exception:  # the tool boundary: dependencies are user objects that may raise on any access
        return None

    if isinstance(secret, bytes):
        secret = secret.decode("utf-8", "replace")

    return secret if isinstance(secret, str) else None


def _parts(holder: object) -> list[object]:
    """The attribute values and items of an object."""
    parts: list[object] = []

    try:
        if isinstance(holder, _CODE_TYPES):
            return parts

        kind: Any = type(holder)

        for name, member in _attribute_members(kind):
            parts += _attribute_values(name, member, holder)

        if isinstance(holder, dict):
            parts += islice(dict.values(holder), MAX_PARTS)
        elif isinstance(holder, list | tuple | set | frozenset):
            parts += islice(holder, MAX_PARTS)
        elif isinstance(holder, Mapping):
            parts += islice(holder.values(), MAX_PARTS)
    except Exception:  # the tool boundary: dependencies are user objects that may raise on any access
        pass

    return parts


def _attribute_values(name: str, member: Any, holder: object) -> list[object]:
    try:
        value = member.__get__(holder)
    except AttributeError:
        return []  # a slot without a value

    # `__dict__`, and the mappings in which pydantic keeps extra and private fields.
    is_namespace = name.startswith("__") and name.endswith("__") and isinstance(value, dict)
    return list(islice(dict.values(value), MAX_PARTS)) if is_namespace else [value]


@lru_cache(maxsize=1_000)
def _attribute_members(kind: type) -> tuple[tuple[str, Any], ...]:
    """The descriptors of slots and of `__dict__`; properties are left out, because reading them runs code."""
    return tuple(
        (name, member)
        for base in kind.__mro__
        for name, member in vars(base).items()
        if type(member) is MemberDescriptorType or (name == "__dict__" and not isinstance(member, property))
    )


# ------------------------------------------------------------------------------------------------ the registry

REPLACEMENT = "[secret]"
MIN_LENGTH = 6
MIN_KEY_LENGTH = 8


class _Spellings(NamedTuple):
    """All spellings of a set of values at one revision of the registries; replaced, never mutated."""

    revision: int = -1
    pattern: re.Pattern[str] | None = None
    spellings: tuple[str, ...] = ()
    longest: int = 0

    @classmethod
    def of(cls, revision: int, values: Iterable[str]) -> _Spellings:
        spellings = {spelling for value in values for spelling in (*_spellings(value), *_spellings(value.strip()))}
        # Longest first: if one secret is a prefix of another, the longer one must match.
        longest_first = sorted(spellings, key=len, reverse=True)
        pattern = re.compile("|".join(map(re.escape, longest_first))) if spellings else None
        return cls(revision, pattern, tuple(sorted(spellings)), max(map(len, spellings), default=0))

    def possible_start(self, text: str, start: int) -> int:
        """The first position from `start` on at which the rest of the text is the beginning of a spelling."""
        for position in range(max(start, len(text) - self.longest + 1), len(text)):
            rest = text[position:]
            index = bisect_right(self.spellings, rest)

            if index < len(self.spellings) and self.spellings[index].startswith(rest):
                return position

        return len(text)


class SecretRegistry:
    """A set of secret values (str or `SecretStr`) that it replaces in texts; includes the values of its parent."""

    _revision: ClassVar[int] = 0
    """Counts the values added to any registry; as long as it stays the same, compiled patterns are valid."""

    _lock: ClassVar[Lock] = Lock()

    def __init__(self, values: Iterable[object] = (), *, parent: SecretRegistry | None = None) -> None:
        self._parent = parent
        self._values = {_checked(value) for value in values}
        self._spelled = _Spellings()

    def add(self, value: object) -> None:
        """Add a value of at least 6 characters; shorter ones occur in ordinary words."""
        text = _checked(value)

        with SecretRegistry._lock:
            if text not in self._values:
                self._values.add(text)
                SecretRegistry._revision += 1

    @property
    def longest(self) -> int:
        """The length of the longest spelling."""
        return self._current().longest

    @property
    def revision(self) -> object:
        """An object that stays the same as long as the values do."""
        return self._current().pattern

    def __bool__(self) -> bool:
        # Called for every event of every run; usually false.
        spelled = self._spelled
        return (spelled if spelled.revision == SecretRegistry._revision else self._current()).pattern is not None

    def __call__(self, text: str) -> str:
        """The text with every secret replaced."""
        pattern = self._current().pattern
        return text if pattern is None else pattern.sub(REPLACEMENT, text)

    def split(self, text: str) -> tuple[str, str]:
        """The text with secrets replaced, and its unchanged end, which may be the beginning of a secret."""
        spelled = self._current()

        if spelled.pattern is None:
            return text, ""

        end = spelled.possible_start(text, 0)

        for found in spelled.pattern.finditer(text):
            if found.start() < end < found.end():
                end = spelled.possible_start(text, found.end())

        return spelled.pattern.sub(REPLACEMENT, text[:end]), text[end:]

    def with_secrets_of(self, holder: object) -> SecretRegistry:
        """A registry that also includes every `SecretStr` found in this object."""
        found = [text for text in find_secrets(holder) if len(text.strip()) >= MIN_LENGTH]
        return SecretRegistry(found, parent=self) if found else self

    def _all(self) -> set[str]:
        return self._values | (self._parent._all() if self._parent is not None else set())

    def _current(self) -> _Spellings:
        spelled = self._spelled

        if spelled.revision != SecretRegistry._revision:
            with SecretRegistry._lock:
                revision, values = SecretRegistry._revision, self._all()

            # Assigned when complete: another thread sees the old or the new one.
            spelled = self._spelled = _Spellings.of(revision, values)

        return spelled


PROCESS_SECRETS = SecretRegistry()
"""The secrets of the process."""

CURRENT_SECRETS: ContextVar[SecretRegistry] = ContextVar("crew_secrets", default=PROCESS_SECRETS)
"""The secrets that apply in this context: in a run, also those in its dependencies."""


def register_secret(value: object) -> None:
    """Replace this value in all messages, events, log lines and spans from now on."""
    PROCESS_SECRETS.add(value)


def register_keys(keys: Iterable[object]) -> None:
    """Register providers' API keys; values that are too short for a key are ignored."""
    for key in keys:
        text = _secret_text(key)

        if text is not None and len(text.strip()) >= MIN_KEY_LENGTH:
            PROCESS_SECRETS.add(text)


class ExecutorSecrets:
    """The secrets of one executor: those passed to it, of its providers and toolsets, and keys of the environment."""

    def __init__(self, secrets: Iterable[object], holders: Iterable[object]) -> None:
        self._registry = SecretRegistry(secrets, parent=PROCESS_SECRETS)
        # Checked once: before Python 3.12 `isinstance` with a Protocol is too slow for every request.
        self._secret_holders = [holder for holder in holders if isinstance(holder, HasSecrets)]
        self._environment_keys: dict[str, str] = {}
        self.register_new_keys()

    def scrubber(self) -> SecretRegistry:
        """The registry, with the newest keys; secrets may be added to it later, also during a run."""
        self.register_new_keys()
        return self._registry

    def scrubber_for_run(self, deps: object) -> SecretRegistry:
        """The registry for a run with these dependencies; also redacts what the current task logs from now on."""
        secrets = self.scrubber().with_secrets_of(deps)
        CURRENT_SECRETS.set(secrets)
        return secrets

    def register_new_keys(self) -> None:
        """Register keys that were set since the last call; called before each model request and for each result."""
        if (keys := environment_keys()) != self._environment_keys:
            self._environment_keys = keys
            register_keys(keys.values())

        for holder in self._secret_holders:
            register_keys(holder.secrets)


def _checked(value: object) -> str:
    text = _secret_text(value)

    if text is None or len(text.strip()) < MIN_LENGTH:
        raise DefinitionError(
            "Secret", f"a secret must be a str or SecretStr of at least {MIN_LENGTH} characters; its value is not shown"
        )

    return text


def _secret_text(value: object) -> str | None:
    return value if isinstance(value, str) else secret_value(value)


def _spellings(value: str) -> Iterator[str]:
    """The value as it is, in JSON (also nested), in Python literals, in URLs, in hexadecimal, and in base64."""
    encoded = value.encode("utf-8", "surrogatepass")
    yield value
    yield json.dumps(value).replace("/", "\\/")[1:-1]
    yield repr(value)[1:-1]
    yield repr(encoded)[2:-1]
    yield encoded.hex()
    yield encoded.hex().upper()
    yield from _base64_spellings(encoded)

    for url in (quote(encoded, safe=""), quote(encoded), quote_plus(encoded)):
        yield url
        yield _PERCENT_CODE.sub(lambda code: code[0].lower(), url)

    for once in _json_spellings(value):
        yield once
        yield from _json_spellings(once)


_PERCENT_CODE = re.compile("%[0-9A-F]{2}")


def _base64_spellings(encoded: bytes) -> Iterator[str]:
    """The value in base64, also within a longer text, such as `user:password` in a `Basic` header.

    A base64 character holds 6 bits. Within a text the value may begin at each of three offsets, and the characters at
    its edges also depend on the neighbouring bytes: these are left out.
    """
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        yield encode(encoded).decode()
        yield encode(encoded).decode().rstrip("=")

        for offset in range(3):
            text = encode(bytes(offset) + encoded).decode().rstrip("=")
            first = (0, 2, 3)[offset]
            last = len(text) if (offset + len(encoded)) % 3 == 0 else len(text) - 1
            yield text[first:last]


def _json_spellings(text: str) -> Iterator[str]:
    yield json.dumps(text)[1:-1]
    yield json.dumps(text, ensure_ascii=False)[1:-1]
