"""Every `SecretStr` that an object holds, in whatever it holds: found without running code of the object's own."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from itertools import islice
from types import FunctionType, MemberDescriptorType, ModuleType
from typing import Any

DEEPEST = 6
MOST_OF_ONE = 500
MOST = 5_000
"""Dependencies may hold the world: of one thing so many parts are looked at, and of all together so many."""

_PLAIN = (str, bytes, bool, int, float, type(None))
_CLOSED = (type, ModuleType, FunctionType)
"""What these hold is the program, not the dependencies."""


def hidden_in(holder: Any) -> list[str]:
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

            if (text := hidden(held)) is not None:
                found.append(text)
            elif left > 0:
                parts = _parts(held)
                left -= len(parts) + 1
                beneath += parts

        layer = beneath

    return found


def hidden(value: Any) -> str | None:
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
