"""What must not enter a message is taken out where it is born: in the events that a run records, and in its errors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any, Protocol, TypeVar

from crew.doors import Delta, OnDelta
from crew.messages import ProviderData

Value = TypeVar("Value")

IDENTITY = frozenset({"run_id", "agent", "kind", "role", "sequence", "at"})
"""Fields by which a run finds its way; they are the framework's own."""

MOST_CAUSES = 20
DEEPEST = 60
TOO_DEEP = "[nested too deeply]"


class Scrubber(Protocol):
    """Replaces what must not be seen; `waiting` says how much of a text's end may be the beginning of such a thing."""

    def __call__(self, text: str, /) -> str: ...

    def waiting(self, text: str, /) -> int: ...


def scrubbed(scrub: Scrubber | None, value: Value) -> Value:
    """The value with every text in it scrubbed; the same object where there was nothing to scrub."""
    return value if scrub is None else _walk(scrub, value, 0)


def _walk(scrub: Callable[[str], str], value: Any, depth: int) -> Any:
    if depth > DEEPEST and isinstance(value, list | tuple | dict):
        return TOO_DEEP  # what can't be looked through is not let through

    match value:
        case str():
            return scrub(value)
        case bytes():
            text = value.decode("utf-8", "surrogateescape")
            changed = scrub(text)
            return value if changed == text else changed.encode("utf-8", "surrogateescape")
        case list() | tuple():
            walked = [_walk(scrub, held, depth + 1) for held in value]
            same = all(new is old for new, old in zip(walked, value, strict=True))
            return value if same else tuple(walked) if isinstance(value, tuple) else walked
        case dict():
            pairs = {_walk(scrub, key, depth + 1): _walk(scrub, held, depth + 1) for key, held in value.items()}
            same = all(pairs.get(key) is held for key, held in value.items())
            return value if same else pairs
        case _ if is_dataclass(value) and not isinstance(value, type):
            return _dataclass(scrub, value, depth)
        case _:
            return value


def _dataclass(scrub: Callable[[str], str], value: Any, depth: int) -> Any:
    changed = {}

    for field in fields(value):
        if field.init and field.name not in IDENTITY:
            held = getattr(value, field.name)

            if (new := _walk(scrub, held, depth + 1)) is not held and new != held:
                changed[field.name] = new

    if changed and isinstance(value, ProviderData):
        return None  # signed or opaque: it stays whole or it goes

    return replace(value, **changed) if changed else value


def scrub_error(scrub: Scrubber | None, error: BaseException | None) -> None:
    """The same for an error and what it was raised from, in place: others hold on to it."""
    seen: set[int] = set()
    waiting = [error]

    while scrub is not None and waiting and len(seen) < MOST_CAUSES:
        one = waiting.pop()

        if one is None or id(one) in seen:
            continue

        seen.add(id(one))
        waiting += [one.__cause__, one.__context__]

        try:
            one.args = _walk(scrub, one.args, 0)

            for name, held in list(vars(one).items()):
                if isinstance(held, str | bytes | list | tuple | dict) and (new := _walk(scrub, held, 0)) is not held:
                    setattr(one, name, new)
        except Exception:  # the tool boundary: an error of anybody's making may refuse to be changed
            continue


class Deltas:
    """Pieces of a reply on their way: the end of one is held back while it may be the beginning of a secret."""

    def __init__(self, scrub: Scrubber, on_delta: OnDelta) -> None:
        self._scrub, self._on_delta = scrub, on_delta
        self._held: dict[str, str] = {}

    def __call__(self, delta: Delta) -> None:
        if delta.kind == "restart":
            self._held.clear()
            self._on_delta(delta)
            return

        text = self._scrub(self._held.pop(delta.kind, "") + delta.text)
        kept = self._scrub.waiting(text)

        if kept:
            self._held[delta.kind] = text[len(text) - kept :]

        if len(text) > kept:
            self._on_delta(replace(delta, text=text[: len(text) - kept]))

    def close(self) -> None:
        """No more comes: what was held back was none."""
        for kind, text in self._held.items():
            self._on_delta(Delta(text=text, kind=kind))  # type: ignore[arg-type]

        self._held.clear()
