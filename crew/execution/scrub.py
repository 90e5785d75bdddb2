"""What must not enter a message is taken out where it is born: in the events that a run records, and in its errors."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from functools import lru_cache
from operator import is_
from typing import Any, Protocol, TypeVar

from crew.doors import Delta, OnDelta
from crew.messages import Message, ProviderData, Transcript

Value = TypeVar("Value")

IDENTITY = frozenset({"run_id", "agent", "kind", "role", "sequence", "at"})
"""Fields by which a run finds its way; they are the framework's own."""

DEEPEST = 60
TOO_DEEP = "[nested too deeply]"

_PLAIN = frozenset({type(None), bool, int, float})
_SERIES: tuple[type[Any], ...] = (list, tuple, set, frozenset, Transcript)


class Scrubber(Protocol):
    """Replaces what must not be seen; false while there is nothing of that kind, which may change at any time.

    Of a text that goes on, `split` returns what can be shown, and the end, which may be the beginning of such a thing.
    `stamp` is another object as soon as something else is replaced.
    """

    @property
    def stamp(self) -> object: ...

    def __bool__(self) -> bool: ...

    def __call__(self, text: str, /) -> str: ...

    def split(self, text: str, /) -> tuple[str, str]: ...


def scrubbed(scrub: Scrubber | None, value: Value) -> Value:
    """The value with every text in it scrubbed; the same object where there was nothing to scrub."""
    return _Walk(scrub).through(value) if scrub else value


class _Walk:
    """One way through a value: what is met again is not walked again, and what leads back to itself ends there."""

    __slots__ = ("_depth", "_met", "_scrub", "_stamp")

    def __init__(self, scrub: Scrubber) -> None:
        self._scrub, self._stamp, self._depth = scrub, scrub.stamp, 0
        self._met: dict[int, tuple[Any, Any]] = {}

    def through(self, value: Any) -> Any:
        """The value with every text in it scrubbed."""
        if type(value) in _PLAIN:
            return value

        if isinstance(value, str):
            changed = self._scrub(value)
            return value if changed == value else changed

        if isinstance(value, bytes | bytearray):
            text = value.decode("utf-8", "surrogateescape")
            changed = self._scrub(text)
            return value if changed == text else type(value)(changed.encode("utf-8", "surrogateescape"))

        if (met := self._met.get(id(value))) is not None:
            return met[1]

        if self._depth > DEEPEST:
            return TOO_DEEP  # what can't be looked through is not let through

        # The value is held as well: while it is, no other one has its id.
        self._met[id(value)] = (value, TOO_DEEP)
        self._depth += 1

        try:
            new = self._inside(value)
        finally:
            self._depth -= 1

        self._met[id(value)] = (value, new)
        return new

    def _inside(self, value: Any) -> Any:
        if is_dataclass(value) and not isinstance(value, type):
            return self._dataclass(value)

        if isinstance(value, dict):
            pairs = list(value.items())
            walked = [(self.through(key), self.through(held)) for key, held in pairs]
            same = all(new[0] is old[0] and new[1] is old[1] for new, old in zip(walked, pairs, strict=True))
            return value if same else dict(walked)

        for kind in _SERIES:
            if isinstance(value, kind):
                items = list(value)
                new = list(map(self._once if kind is Transcript else self.through, items))
                return value if all(map(is_, new, items)) else kind(new)

        return self._words(value)

    def _once(self, message: Message) -> Any:
        """A transcript may be long, and its messages never change: each is looked through once."""
        slot = message.rendered()

        if slot.get("scrubbed") is self._stamp:
            return message

        if (new := self.through(message)) is message:
            slot["scrubbed"] = self._stamp

        return new

    def _dataclass(self, value: Any) -> Any:
        kind: Any = type(value)
        changed = {}

        try:
            for name in _fields(kind):
                held = getattr(value, name)

                if (new := self.through(held)) is not held:
                    changed[name] = new

            if changed and isinstance(value, ProviderData):
                return None  # signed or opaque: it stays whole or it goes

            return replace(value, **changed) if changed else value
        except Exception:  # the tool boundary: what a tool tells of may refuse to be looked at, or to be made anew
            return self._scrub(next(iter(shown(value)), TOO_DEEP))

    def _words(self, value: Any) -> Any:
        """A foreign thing as it is, unless it shows what must not be seen: then what it shows, without that."""
        for words in shown(value):
            if (changed := self._scrub(words)) != words:
                return changed

        return value


def shown(value: Any) -> list[str]:
    """What a thing says of itself, as far as it can."""
    found = []

    for say in (str, repr):
        try:
            found.append(say(value))
        except Exception:  # the tool boundary: a foreign thing may do anything when it is asked for its words
            continue

    return found


@lru_cache(maxsize=1_000)
def _fields(kind: Any) -> tuple[str, ...]:
    own = kind.__module__.partition(".")[0] == "crew"
    return tuple(field.name for field in fields(kind) if not (own and field.name in IDENTITY))


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

        text, kept = self._scrub.split(self._held.pop(delta.kind, "") + delta.text)

        if kept:
            self._held[delta.kind] = kept

        if text or not kept:
            self._on_delta(delta if text == delta.text else replace(delta, text=text))

    def close(self) -> None:
        """No more comes: what was held back was not the beginning of more than it is."""
        for kind, text in self._held.items():
            self._on_delta(Delta(text=self._scrub(text), kind=kind))  # type: ignore[arg-type]

        self._held.clear()
