"""Replaces secrets in values, streamed text and errors before they enter a run's events."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from functools import lru_cache
from operator import is_
from types import MemberDescriptorType
from typing import Any, Protocol, TypeVar

from crew.interfaces import Delta, OnDelta
from crew.messages import Message, ProviderData, Transcript
from crew.tools.tool import join_ends, truncate_middle

Value = TypeVar("Value")

UNSCRUBBED_FIELDS = frozenset({"run_id", "agent", "kind", "role", "sequence", "at", "elapsed"})
"""Fields of our dataclasses that identify runs and agents."""

MAX_DEPTH = 60
TOO_DEEP_TEXT = "[nested too deeply]"

_ATOMIC_TYPES = frozenset({type(None), bool, int, float})
_SEQUENCE_TYPES: tuple[type[Any], ...] = (list, tuple, set, frozenset)


class Scrubber(Protocol):
    """Replaces secrets in a text; false as long as there are no secrets.

    Secrets may be added at any time; `revision` is then another object. For streamed text, `split` returns the part
    that can be shown, and the end, which may be the beginning of a secret. No spelling of a secret is longer than
    `longest`.
    """

    @property
    def longest(self) -> int: ...

    @property
    def revision(self) -> object: ...

    def __bool__(self) -> bool: ...

    def __call__(self, text: str, /) -> str: ...

    def split(self, text: str, /) -> tuple[str, str]: ...


def scrub_value(scrub: Scrubber | None, value: Value) -> Value:
    """The value with secrets replaced in every text; the same object if there was none."""
    return _ValueScrubber(scrub).scrub(value) if scrub else value


def scrub_and_cut(scrub: Scrubber | None, text: str, limit: int) -> str:
    """The text with secrets replaced, and then cut in its middle; of a long text, only the ends that stay are searched.

    Each end is taken with a margin, so that a secret at its edge is whole, or in the margin, which is dropped.
    """
    if not scrub:
        return truncate_middle(text, limit)

    margin = 2 * scrub.longest
    size = limit + margin

    if len(text) <= 2 * size:
        return truncate_middle(scrub(text), limit)

    head, _ = scrub.split(text[:size])
    end = text[-size:]
    _, begun = scrub.split(end[:margin])
    return join_ends(head, scrub(begun + end[margin:]), limit, len(text))


class _ValueScrubber:
    """Scrubs one value; visits shared objects once, and cuts cycles."""

    __slots__ = ("_depth", "_revision", "_scrub", "_visited")

    def __init__(self, scrub: Scrubber) -> None:
        self._scrub, self._revision, self._depth = scrub, scrub.revision, 0
        self._visited: dict[int, tuple[object, Any]] = {}

    def scrub(self, value: Any) -> Any:
        """The value with secrets replaced in every text."""
        if type(value) in _ATOMIC_TYPES:
            return value

        if isinstance(value, str):
            changed = self._scrub(value)
            return value if changed == value else changed

        if isinstance(value, bytes | bytearray):
            text = value.decode("utf-8", "surrogateescape")
            changed = self._scrub(text)
            return value if changed == text else type(value)(changed.encode("utf-8", "surrogateescape"))

        if (visited := self._visited.get(id(value))) is not None:
            return visited[1]

        if self._depth > MAX_DEPTH:
            return TOO_DEEP_TEXT  # a value that can't be searched must not pass

        # Holds the value too, so that no other one gets the same id.
        self._visited[id(value)] = (value, TOO_DEEP_TEXT)
        self._depth += 1

        try:
            new = self._scrub_container(value)
        finally:
            self._depth -= 1

        self._visited[id(value)] = (value, new)
        return new

    def _scrub_container(self, value: Any) -> Any:
        if is_dataclass(value) and not isinstance(value, type):
            return self._scrub_dataclass(value)

        if isinstance(value, dict):
            pairs = list(value.items())
            walked = [(self.scrub(key), self.scrub(item)) for key, item in pairs]
            same = all(new[0] is old[0] and new[1] is old[1] for new, old in zip(walked, pairs, strict=True))
            return value if same else dict(walked)

        if isinstance(value, Transcript):
            return value.mapped(self._scrub_message, self._revision)

        for kind in _SEQUENCE_TYPES:
            if isinstance(value, kind):
                items = list(value)
                new = list(map(self.scrub, items))
                return value if all(map(is_, new, items)) else kind(new)

        return self._scrub_foreign(value)

    def _scrub_message(self, message: Message) -> Any:
        """Scrub each message of a transcript once per revision: transcripts are long, and messages never change."""
        cache = message.cache()

        if cache.get("scrubbed") is self._revision:
            return message

        if (new := self.scrub(message)) is message:
            cache["scrubbed"] = self._revision

        return new

    def _scrub_dataclass(self, value: Any) -> Any:
        kind: Any = type(value)
        changed = {}

        try:
            for name in _scrubbed_fields(kind):
                old = getattr(value, name)

                if (new := self.scrub(old)) is not old:
                    changed[name] = new

            if changed and isinstance(value, ProviderData):
                return None  # signed or opaque data can't be changed in part

            return replace(value, **changed) if changed else value
        except Exception:  # the tool boundary: a dataclass of the user may raise on access or when it is copied
            return self._scrub(next(iter(_representations(value)), TOO_DEEP_TEXT))

    def _scrub_foreign(self, value: Any) -> Any:
        """Any other object as it is, unless its text shows a secret: then that text, scrubbed."""
        for text in _representations(value):
            if (changed := self._scrub(text)) != text:
                return changed

        return value


def _representations(value: object) -> list[str]:
    """`str` and `repr` of an object, without those that raise."""
    found = []

    for convert in (str, repr):
        try:
            found.append(convert(value))
        except Exception:  # the tool boundary: __str__ and __repr__ of a user object may raise
            continue

    return found


@lru_cache(maxsize=1_000)
def _scrubbed_fields(kind: Any) -> tuple[str, ...]:
    own = kind.__module__.partition(".")[0] == "crew"
    return tuple(field.name for field in fields(kind) if not (own and field.name in UNSCRUBBED_FIELDS))


class ScrubbedDeltas:
    """Scrubs streamed pieces of a reply; holds back the end of a piece that may be the beginning of a secret."""

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
        """The stream ended: emit what was held back."""
        for kind, text in self._held.items():
            self._on_delta(Delta(text=self._scrub(text), kind=kind))  # type: ignore[arg-type]

        self._held.clear()


MAX_CAUSES = 20


def scrub_error(scrub: Scrubber | None, error: BaseException) -> None:
    """Replace secrets in an error, its causes and its members, in place: each keeps its class and identity.

    An error whose text is computed, or whose attributes can't be set, may still show a secret; the texts that Crew
    writes about it are scrubbed apart.
    """
    if not scrub:
        return

    found: dict[int, BaseException] = {id(error): error}
    waiting = [error]

    while waiting and len(found) <= MAX_CAUSES:
        one = waiting.pop()
        _scrub_attributes(scrub, one)
        members = one.exceptions if isinstance(one, BaseExceptionGroup) else ()

        for linked in (one.__cause__, one.__context__, *members):
            if linked is not None and id(linked) not in found:
                found[id(linked)] = linked
                waiting.append(linked)


def _scrub_attributes(scrub: Scrubber, error: BaseException) -> None:
    for name in ("args", *vars(error), *_slot_names(type(error))):
        try:
            old = getattr(error, name)

            if (new := scrub_value(scrub, old)) is not old:
                setattr(error, name, new)
        except Exception:  # the tool boundary: an error class of the user may raise on access or refuse a change
            continue


def _slot_names(kind: type) -> list[str]:
    """Attributes that are not in `__dict__`, such as the file name of an `OSError`."""
    return [
        name for base in kind.__mro__ for name, member in vars(base).items() if isinstance(member, MemberDescriptorType)
    ]
