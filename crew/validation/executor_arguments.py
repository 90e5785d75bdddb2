"""Checks the arguments of `CrewExecutor` and of its runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from inspect import iscoroutinefunction
from math import isfinite

from pydantic import JsonValue, SecretStr
from pydantic_core import from_json, to_json

from crew.agents.agent import Agent
from crew.agents.crew import Crew
from crew.errors import DefinitionError, InvalidInput, Violation, abbreviate
from crew.interfaces import ModelSettings, TokenCounter
from crew.messages import replace_surrogates
from crew.runs.interfaces import ObserverFactory
from crew.runs.parameters import RequestParameters, RunOverrides
from crew.settings import PositiveInt, value_problems
from crew.validation.validator import run_id_violations


def check_arguments(
    crew: object,
    store_problem: str,
    observers: object,
    secrets: object,
    *,
    deps: object,
    counter: object,
    clocks: Mapping[str, object],
    sanitize_output: object,
    max_concurrent_runs: object,
    settings: Mapping[str, tuple[object, type]],
) -> None:
    """Raise `DefinitionError` with every argument of a wrong type; `settings` are optional, each with its class."""
    problems = [
        *_crew_problems(crew),
        *(problem for name, (value, accepted) in settings.items() for problem in _type_problems(name, value, accepted)),
        *([f"store: {store_problem}"] if store_problem else []),
        *_observer_problems(observers),
        *_secret_problems(secrets),
        *_deps_problems(deps),
        *_counter_problems(counter),
        *(
            f"{name} must be a function such as time.{'time' if name == 'clock' else name}, not {abbreviate(clock)}"
            for name, clock in clocks.items()
            if not callable(clock)
        ),
        *value_problems(bool, {"sanitize_output": sanitize_output}),
        *value_problems(PositiveInt | None, {"max_concurrent_runs": max_concurrent_runs}),
    ]

    if problems:
        raise DefinitionError("CrewExecutor", problems)


def _crew_problems(crew: object) -> Iterator[str]:
    if not isinstance(crew, Crew | Agent):
        if isinstance(crew, list | tuple):
            yield f'crew must be a Crew or an Agent, not a {type(crew).__name__}; use Crew("name", agents=[…])'
        else:
            text = f"crew must be a Crew or an Agent, not {abbreviate(crew)}"
            yield f"{text}; CrewExecutor.from_config accepts the name of a crew"


def _type_problems(name: str, value: object, accepted: type) -> Iterator[str]:
    if value is not None and not isinstance(value, accepted):
        yield f"{name} must be {accepted.__name__}(...), not {abbreviate(value)}"


def _deps_problems(deps: object) -> Iterator[str]:
    if deps is not None and not callable(deps):
        text = f"deps must be a function that builds the deps of a run from a RunInfo, not {abbreviate(deps)}"
        yield f"{text}; pass the deps of one run to execute(deps=…)"


def _counter_problems(counter: object) -> Iterator[str]:
    if counter is not None and (isinstance(counter, type) or not isinstance(counter, TokenCounter)):
        yield f"counter must be an object with a method count(text), not {abbreviate(counter)}"


def _observer_problems(observers: object) -> Iterator[str]:
    if not isinstance(observers, Sequence) or isinstance(observers, str):
        yield f"observers must be a list such as [print], not {abbreviate(observers)}"
        return

    for observer in observers:
        if isinstance(observer, ObserverFactory) and not isinstance(observer, type):
            continue

        if isinstance(observer, type) or not callable(observer):
            yield f"an observer must be a function or a callable object, not {abbreviate(observer)}"
        elif iscoroutinefunction(observer) or iscoroutinefunction(type(observer).__call__):
            text = "an observer must be a synchronous function, because events are not awaited"
            yield f"{text}; {abbreviate(observer)} is async"


def _secret_problems(secrets: object) -> Iterator[str]:
    """Without the values, which must not appear in an error."""
    if isinstance(secrets, str | bytes | SecretStr | Mapping) or not isinstance(secrets, Iterable):
        yield f"secrets must be a list of strings, not a {type(secrets).__name__}"
    elif isinstance(secrets, Sequence):
        for index, secret in enumerate(secrets):
            if not isinstance(secret, str | SecretStr):
                yield f"secrets[{index}] must be a string or a SecretStr, not a {type(secret).__name__}"


def check_parameters(parameters: object) -> RequestParameters:
    """The parameters of one run, if they are `RequestParameters`."""
    if not isinstance(parameters, RequestParameters):
        text = f"parameters must be RequestParameters(...), not {abbreviate(parameters)}."
        raise InvalidInput([Violation(rule="parameters", text=text, value=parameters)])

    return parameters


def check_deps(crew: Crew, deps: object) -> None:
    """Refuse deps that are not of the type that an agent declares; without their value, which may be secret."""
    for agent in crew.agents_by_name.values():
        if agent.deps_type is None:
            continue

        try:
            accepted = isinstance(deps, agent.deps_type)
        except TypeError:
            continue  # a protocol or a TypedDict: only type checkers can check it

        if not accepted:
            wanted, got = agent.deps_type.__name__, "no deps" if deps is None else f"a {type(deps).__name__}"
            text = f"agent {agent.name!r} needs deps of the type {wanted}, but got {got}"
            hint = f"pass deps= with a {wanted}, or CrewExecutor(deps=…) with a function that returns one"
            raise InvalidInput([Violation(rule="deps", text=f"{text}; {hint}")])


def read_overrides(model: object, settings: object) -> RunOverrides:
    """The model and settings of one run. Raises `InvalidInput` for anything that can't be stored with the run."""
    violations: list[Violation] = []

    if model is not None and (not isinstance(model, str) or not model.strip()):
        text = f"model must be a name such as 'openai:gpt-5-mini', not {abbreviate(model)}"
        violations.append(Violation(rule="model", text=f"{text}: it is stored with the run, so that a resume uses it."))

    if settings is not None and not isinstance(settings, ModelSettings):
        text = f"settings must be ModelSettings(...), not {abbreviate(settings)}."
        violations.append(Violation(rule="settings", text=text))
    elif settings is not None and settings.secrets:
        text = "settings.extra_headers holds a secret, which would be stored with the run: set it on the agent."
        violations.append(Violation(rule="settings", text=text))

    if violations:
        raise InvalidInput(violations)

    return RunOverrides(
        model=model if isinstance(model, str) else "",
        settings=settings if isinstance(settings, ModelSettings) else None,
    )


def check_on_existing(on_existing: object, run_id: str | None) -> None:
    """Raise `InvalidInput` unless `on_existing` is known, and has a run id to look for."""
    text = ""

    if on_existing not in ("error", "return"):
        text = f"on_existing must be 'error' or 'return', not {abbreviate(on_existing)}."
    elif on_existing == "return" and run_id is None:
        text = "on_existing='return' needs a run_id: a run without one is always new."

    if text:
        raise InvalidInput([Violation(rule="on_existing", text=text, value=on_existing)])


def check_conversation(id: object, history: object, on_busy: object, on_paused: object) -> None:
    """Raise `InvalidInput` unless the arguments name one conversation, which replaces `history`."""
    violations = [*run_id_violations(id, "conversation id")]

    if history is not None:
        text = "conversation= and history= are both given: a stored conversation has its own history. Omit one of them."
        violations.append(Violation(rule="conversation", text=text))

    for name, value, accepted in (
        ("on_busy", on_busy, ("error", "wait")),
        ("on_paused", on_paused, ("error", "cancel")),
    ):
        if value not in accepted:
            text = f"{name} must be {accepted[0]!r} or {accepted[1]!r}, not {abbreviate(value)}."
            violations.append(Violation(rule=name, text=text, value=value))

    if violations:
        raise InvalidInput(violations)


MAX_METADATA_DEPTH = 20


def check_metadata(metadata: object) -> dict[str, JsonValue]:
    """The metadata of one run as JSON values, which the caller's objects do not share; empty for None."""
    if metadata is None:
        return {}

    if isinstance(metadata, Mapping):
        metadata = dict(metadata)
        violations = [Violation(rule="metadata", text=text) for text in json_problems("metadata", metadata)]
    else:
        text = f"metadata must be a dict such as {{'customer': 42}}, not {abbreviate(metadata)}."
        violations = [Violation(rule="metadata", text=text, value=metadata)]

    if violations:
        raise InvalidInput(violations)

    copied: dict[str, JsonValue] = from_json(to_json(metadata))
    return copied


def json_problems(place: str, value: object, depth: int = 0) -> Iterator[str]:
    """Why a value is not JSON, without the value: it may be a secret."""
    if depth > MAX_METADATA_DEPTH:
        yield f"{place[:80]}… is nested too deeply: at most {MAX_METADATA_DEPTH} levels are accepted."
    elif isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                yield f"{place} has the key {abbreviate(key)}: the keys must be strings."

            yield from json_problems(f"{place}[{abbreviate(key)}]", item, depth + 1)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from json_problems(f"{place}[{index}]", item, depth + 1)
    elif isinstance(value, float) and not isfinite(value):
        yield f"{place} is {value}: JSON has only finite numbers."
    elif isinstance(value, str) and replace_surrogates(value) != value:
        yield f"{place} has a character without a partner (a lone surrogate), which can't be stored."
    elif not (value is None or isinstance(value, bool | int | float | str)):
        accepted = "accepted are None, bool, int, float, str, list and dict"
        yield f"{place} has the type {type(value).__name__}, not a JSON value: {accepted}."
