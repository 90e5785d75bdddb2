"""Whether a person's answers are for what the run waits for, before anything is changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from inspect import iscoroutinefunction
from typing import Any

from crew.agents.agent import Agent
from crew.agents.crew import Crew
from crew.errors import DefinitionError, InvalidInput, UnknownPause, Violation
from crew.runs.interfaces import ObserverFactory
from crew.runs.parameters import Limits, RequestParameters
from crew.runs.state import Pause, RunState, pending_pauses
from crew.tools.tool import to_text
from crew.validation.validator import InputValidator


def check_answers(state: RunState, answers: Mapping[str, Any], validator: InputValidator) -> None:
    """Every answer names a pending pause and is of its kind."""
    pending = {pause.id: pause for pause in pending_pauses(state)}

    if unknown := [id for id in answers if id not in pending]:
        raise UnknownPause(state.run_id, unknown, [*pending])

    found: list[Violation] = []

    for id, answer in answers.items():
        if pending[id].reason == "input" or (pending[id].reason == "approval" and isinstance(answer, str)):
            found.extend(validator.answer_violations(id, answer))
        elif wanted := _expected_answer(pending[id], answer):
            text = f"The answer to {id!r} must be {wanted}, not {answer!r}."
            found.append(Violation(rule="answer", text=text, value=answer))

    if found:
        raise InvalidInput(found)


def _expected_answer(pause: Pause, answer: object) -> str:
    if pause.reason == "approval":
        return "" if isinstance(answer, bool) else "True, False, or a text that says why not"

    if isinstance(answer, dict) and set(answer) == {"done"}:
        return "" if _is_json_value(answer["done"]) else "{'done': result} with a result that can be written as JSON"

    fits = isinstance(answer, str) and answer in ("run again", "skip")
    return "" if fits else "'run again', 'skip' or {'done': result}"


def _is_json_value(value: object) -> bool:
    try:
        to_text(value)
    except Exception:  # the tool boundary: what a person hands in for a tool's result may be any object
        return False

    return True


STORE = ("commit", "load")


def check_arguments(
    crew: object, limits: object, store: object, validator: object, parameters: object, observers: object
) -> None:
    """Every argument of a wrong kind at once."""
    problems = [*_argument_problems(crew, limits, store, validator, parameters), *_observer_problems(observers)]

    if problems:
        raise DefinitionError("CrewExecutor", problems)


def _argument_problems(
    crew: object, limits: object, store: object, validator: object, parameters: object
) -> Iterator[str]:
    if not isinstance(crew, Crew | Agent):
        yield f"crew must be a Crew or an Agent, not {crew!r}; CrewExecutor.from_config takes the name of a crew"

    kinds = {"limits": (limits, Limits), "validator": (validator, InputValidator)}

    for name, (given, kind) in (kinds | {"parameters": (parameters, RequestParameters)}).items():
        if given is not None and not isinstance(given, kind):
            yield f"{name} must be {kind.__name__}(...), not {given!r}"

    if store is not None and not all(callable(getattr(store, method, None)) for method in STORE):
        yield f"store must be a store such as crew.store.SQLiteStore('runs.db'), not {store!r}"


def _observer_problems(given: object) -> Iterator[str]:
    if not isinstance(given, Sequence) or isinstance(given, str):
        yield f"observers must be a list such as [print], not {given!r}"
        return

    for observer in given:
        if isinstance(observer, ObserverFactory) and not isinstance(observer, type):
            continue

        if isinstance(observer, type) or not callable(observer):
            yield f"an observer must be a function or an object that is called with each event, not {observer!r}"
        elif iscoroutinefunction(observer) or iscoroutinefunction(type(observer).__call__):
            yield f"an observer must be a plain function, because nobody awaits it; {observer!r} is async"


def parameters_or_default(given: object, default: RequestParameters) -> RequestParameters:
    """What one run asks for, else what the executor was made with."""
    if given is None:
        return default

    if not isinstance(given, RequestParameters):
        text = f"parameters must be RequestParameters(...), not {given!r}."
        raise InvalidInput([Violation(rule="parameters", text=text, value=given)])

    return given


def answers_as_dict(given: object) -> dict[str, Any]:
    """A person's answers as they were given: a mapping, or nothing."""
    if given is not None and not isinstance(given, Mapping):
        text = f"The answers must be a mapping such as {{result.pauses[0].id: True}}, not {given!r}."
        raise InvalidInput([Violation(rule="answer", text=text, value=given)])

    return dict(given or {})
