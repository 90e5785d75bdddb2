"""An error, what it was raised from and what it groups, without what must not be seen in them."""

from __future__ import annotations

from types import MemberDescriptorType
from typing import Any

from crew.execution.scrub import Scrubber, scrubbed, shown

MOST_CAUSES = 20


def scrub_error(scrub: Scrubber | None, error: Exception) -> Exception:
    """The same error, changed in place, for others hold on to it; or a plain one that says as much, where it can't be.

    So with its causes; of a chain that is very long, the end is cut off.
    """
    if not scrub:
        return error

    cleaned = _cleaned(scrub, error, {})
    assert isinstance(cleaned, Exception)
    return cleaned


def _cleaned(scrub: Scrubber, one: BaseException, met: dict[int, BaseException | None]) -> BaseException:
    if (done := met.get(id(one))) is not None:
        return done

    if id(one) in met or len(met) >= MOST_CAUSES:
        return _plain(scrub, one)  # it leads back to itself, or there are too many

    met[id(one)] = None

    try:
        new = _itself(scrub, one, met)

        for name in ("__cause__", "__context__"):
            if (held := getattr(one, name)) is not None:
                setattr(new, name, _cleaned(scrub, held, met))

        new.__suppress_context__ = one.__suppress_context__
    except Exception:  # the tool boundary: an error of anybody's making may refuse to be looked at or changed
        new = _plain(scrub, one)

    met[id(one)] = new
    return new


def _itself(scrub: Scrubber, one: BaseException, met: dict[int, BaseException | None]) -> BaseException:
    if isinstance(one, BaseExceptionGroup):
        members = [_cleaned(scrub, member, met) for member in one.exceptions]

        if any(new is not old for new, old in zip(members, one.exceptions, strict=True)):
            return BaseExceptionGroup(scrub(one.message), members).with_traceback(one.__traceback__)

    for name in ("args", *vars(one), *_members(type(one))):
        try:
            held = getattr(one, name)

            if (new := scrubbed(scrub, held)) is not held:
                setattr(one, name, new)
        except Exception:  # the tool boundary: an error of anybody's making may refuse to be changed
            continue

    said = [*shown(one), *getattr(one, "__notes__", ())]
    return one if scrubbed(scrub, said) is said else _plain(scrub, one)


def _members(kind: type) -> list[str]:
    """Where errors of this kind keep what is in no `__dict__`: an `OSError` its file's name."""
    return [name for of in kind.__mro__ for name, held in vars(of).items() if isinstance(held, MemberDescriptorType)]


def _plain(scrub: Scrubber, one: BaseException) -> BaseException:
    """An error of the same name that says the same, and holds nothing."""
    kind = type(one)
    names: dict[str, Any] = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    plain: BaseException = type(kind.__name__, (Exception,), names)(scrub(next(iter(shown(one)), "")))
    return plain.with_traceback(one.__traceback__)
