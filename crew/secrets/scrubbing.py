"""What must not enter a message is taken out where it is born: in the events that a run records, and in its errors."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from functools import lru_cache
from operator import is_
from types import MemberDescriptorType
from typing import Any, Protocol, TypeVar

from crew.interfaces import Delta, OnDelta
from crew.messages import Message, ProviderData, Transcript

Value = TypeVar("Value")

UNSCRUBBED_FIELDS = frozenset({"run_id", "agent", "kind", "role", "sequence", "at"})
"""Fields by which a run finds its way; they are the framework's own."""

MAX_DEPTH = 60
TOO_DEEP_TEXT = "[nested too deeply]"

_ATOMIC_TYPES = frozenset({type(None), bool, int, float})
_SEQUENCE_TYPES: tuple[type[Any], ...] = (list, tuple, set, frozenset, Transcript)


class Scrubber(Protocol):
    """Replaces what must not be seen; false while there is nothing of that kind, which may change at any time.

    Of a text that goes on, `split` returns what can be shown, and the end, which may be the beginning of such a thing.
    `stamp` is another object as soon as something else is replaced.
    """

    @property
    def revision(self) -> object: ...

    def __bool__(self) -> bool: ...

    def __call__(self, text: str, /) -> str: ...

    def split(self, text: str, /) -> tuple[str, str]: ...


def scrub_value(scrub: Scrubber | None, value: Value) -> Value:
    """The value with every text in it scrubbed; the same object where there was nothing to scrub."""
    return _ValueScrubber(scrub).scrub(value) if scrub else value


class _ValueScrubber:
    """One way through a value: what is met again is not walked again, and what leads back to itself ends there."""

    __slots__ = ("_depth", "_met", "_scrub", "_stamp")

    def __init__(self, scrub: Scrubber) -> None:
        self._scrub, self._stamp, self._depth = scrub, scrub.revision, 0
        self._met: dict[int, tuple[Any, Any]] = {}

    def scrub(self, value: Any) -> Any:
        """The value with every text in it scrubbed."""
        if type(value) in _ATOMIC_TYPES:
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

        if self._depth > MAX_DEPTH:
            return TOO_DEEP_TEXT  # what can't be looked through is not let through

        # The value is held as well: while it is, no other one has its id.
        self._met[id(value)] = (value, TOO_DEEP_TEXT)
        self._depth += 1

        try:
            new = self._scrub_container(value)
        finally:
            self._depth -= 1

        self._met[id(value)] = (value, new)
        return new

    def _scrub_container(self, value: Any) -> Any:
        if is_dataclass(value) and not isinstance(value, type):
            return self._scrub_dataclass(value)

        if isinstance(value, dict):
            pairs = list(value.items())
            walked = [(self.scrub(key), self.scrub(held)) for key, held in pairs]
            same = all(new[0] is old[0] and new[1] is old[1] for new, old in zip(walked, pairs, strict=True))
            return value if same else dict(walked)

        for kind in _SEQUENCE_TYPES:
            if isinstance(value, kind):
                items = list(value)
                new = list(map(self._scrub_message if kind is Transcript else self.scrub, items))
                return value if all(map(is_, new, items)) else kind(new)

        return self._scrub_foreign(value)

    def _scrub_message(self, message: Message) -> Any:
        """A transcript may be long, and its messages never change: each is looked through once."""
        slot = message.cache()

        if slot.get("scrubbed") is self._stamp:
            return message

        if (new := self.scrub(message)) is message:
            slot["scrubbed"] = self._stamp

        return new

    def _scrub_dataclass(self, value: Any) -> Any:
        kind: Any = type(value)
        changed = {}

        try:
            for name in _scrubbed_fields(kind):
                held = getattr(value, name)

                if (new := self.scrub(held)) is not held:
                    changed[name] = new

            if changed and isinstance(value, ProviderData):
                return None  # signed or opaque: it stays whole or it goes

            return replace(value, **changed) if changed else value
        except Exception:  # the tool boundary: what a tool tells of may refuse to be looked at, or to be made anew
            return self._scrub(next(iter(_representations(value)), TOO_DEEP_TEXT))

    def _scrub_foreign(self, value: Any) -> Any:
        """A foreign thing as it is, unless it shows what must not be seen: then what it shows, without that."""
        for words in _representations(value):
            if (changed := self._scrub(words)) != words:
                return changed

        return value


def _representations(value: Any) -> list[str]:
    """What a thing says of itself, as far as it can."""
    found = []

    for say in (str, repr):
        try:
            found.append(say(value))
        except Exception:  # the tool boundary: a foreign thing may do anything when it is asked for its words
            continue

    return found


@lru_cache(maxsize=1_000)
def _scrubbed_fields(kind: Any) -> tuple[str, ...]:
    own = kind.__module__.partition(".")[0] == "crew"
    return tuple(field.name for field in fields(kind) if not (own and field.name in UNSCRUBBED_FIELDS))


class ScrubbedDeltas:
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


MAX_CAUSES = 20


def scrub_error(scrub: Scrubber | None, error: Exception) -> Exception:
    """The same error, changed in place, for others hold on to it; or a plain one that says as much, where it can't be.

    So with its causes; of a chain that is very long, the end is cut off.
    """
    if not scrub:
        return error

    cleaned = _scrub_chain(scrub, error, {})
    assert isinstance(cleaned, Exception)
    return cleaned


def _scrub_chain(scrub: Scrubber, one: BaseException, met: dict[int, BaseException | None]) -> BaseException:
    if (done := met.get(id(one))) is not None:
        return done

    if id(one) in met or len(met) >= MAX_CAUSES:
        return _plain(scrub, one)  # it leads back to itself, or there are too many

    met[id(one)] = None

    try:
        new = _scrub_attributes(scrub, one, met)

        for name in ("__cause__", "__context__"):
            if (held := getattr(one, name)) is not None:
                setattr(new, name, _scrub_chain(scrub, held, met))

        new.__suppress_context__ = one.__suppress_context__
    except Exception:  # the tool boundary: an error of anybody's making may refuse to be looked at or changed
        new = _plain(scrub, one)

    met[id(one)] = new
    return new


def _scrub_attributes(scrub: Scrubber, one: BaseException, met: dict[int, BaseException | None]) -> BaseException:
    if isinstance(one, BaseExceptionGroup):
        members = [_scrub_chain(scrub, member, met) for member in one.exceptions]

        if any(new is not old for new, old in zip(members, one.exceptions, strict=True)):
            return BaseExceptionGroup(scrub(one.message), members).with_traceback(one.__traceback__)

    for name in ("args", *vars(one), *_slot_names(type(one))):
        try:
            held = getattr(one, name)

            if (new := scrub_value(scrub, held)) is not held:
                setattr(one, name, new)
        except Exception:  # the tool boundary: an error of anybody's making may refuse to be changed
            continue

    said = [*_representations(one), *getattr(one, "__notes__", ())]
    return one if scrub_value(scrub, said) is said else _plain(scrub, one)


def _slot_names(kind: type) -> list[str]:
    """Where errors of this kind keep what is in no `__dict__`: an `OSError` its file's name."""
    return [name for of in kind.__mro__ for name, held in vars(of).items() if isinstance(held, MemberDescriptorType)]


def _plain(scrub: Scrubber, one: BaseException) -> BaseException:
    """An error of the same name that says the same, and holds nothing."""
    kind = type(one)
    names: dict[str, Any] = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    plain: BaseException = type(kind.__name__, (Exception,), names)(scrub(next(iter(_representations(one)), "")))
    return plain.with_traceback(one.__traceback__)
