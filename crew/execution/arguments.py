"""Whether an executor was given what it takes, before anything is made of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from inspect import iscoroutinefunction
from typing import Any

from crew.agents import Agent, Crew
from crew.errors import DefinitionError, InvalidInput, Violation
from crew.runs import Limits, RequestParameters
from crew.validation import InputValidator

STORE = ("commit", "load")


def check_arguments(
    crew: object, limits: object, store: object, validator: object, parameters: object, observers: object
) -> None:
    """Every argument of a wrong kind at once."""
    problems = [*_problems(crew, limits, store, validator, parameters), *_of_observers(observers)]

    if problems:
        raise DefinitionError("CrewExecutor", problems)


def _problems(crew: object, limits: object, store: object, validator: object, parameters: object) -> Iterator[str]:
    if not isinstance(crew, Crew | Agent):
        yield f"crew must be a Crew or an Agent, not {crew!r}; CrewExecutor.from_config takes the name of a crew"

    kinds = {"limits": (limits, Limits), "validator": (validator, InputValidator)}

    for name, (given, kind) in (kinds | {"parameters": (parameters, RequestParameters)}).items():
        if given is not None and not isinstance(given, kind):
            yield f"{name} must be {kind.__name__}(...), not {given!r}"

    if store is not None and not all(callable(getattr(store, method, None)) for method in STORE):
        yield f"store must be a store such as crew.store.SQLiteStore('runs.db'), not {store!r}"


def _of_observers(given: object) -> Iterator[str]:
    if not isinstance(given, Sequence) or isinstance(given, str):
        yield f"observers must be a list such as [print], not {given!r}"
        return

    for observer in given:
        if isinstance(observer, type) or not callable(observer):
            yield f"an observer must be a function or an object that is called with each event, not {observer!r}"
        elif iscoroutinefunction(observer) or iscoroutinefunction(type(observer).__call__):
            yield f"an observer must be a plain function, because nobody awaits it; {observer!r} is async"


def parameters_in(given: object, default: RequestParameters) -> RequestParameters:
    """What one run asks for, else what the executor was made with."""
    if given is None:
        return default

    if not isinstance(given, RequestParameters):
        text = f"parameters must be RequestParameters(...), not {given!r}."
        raise InvalidInput([Violation(rule="parameters", text=text, value=given)])

    return given


def answers_in(given: object) -> dict[str, Any]:
    """A person's answers as they were given: a mapping, or nothing."""
    if given is not None and not isinstance(given, Mapping):
        text = f"The answers must be a mapping such as {{result.pauses[0].id: True}}, not {given!r}."
        raise InvalidInput([Violation(rule="answer", text=text, value=given)])

    return dict(given or {})
