"""From settings to the objects that they describe."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import Any

from pydantic import BaseModel

from crew.agents.agent import Agent, Handoff, Parallel, Quorum, Route
from crew.agents.crew import Crew
from crew.config.file_schema import AgentSection, ConfigFile, ExecutionSection, HandoffSection, PolicySection
from crew.errors import ConfigError, DefinitionError, suggest
from crew.history.policies.lookup import create_policy, resolve_policy
from crew.interfaces import ModelSettings, Policy
from crew.tools.tool import Tool, tool


def build_crew(settings: ConfigFile, name: str, path: str) -> Crew:
    """The crew of this name that the file defines; every problem of it at once."""
    if name not in settings.crews:
        raise ConfigError(path, f"there is no crew {name!r} under crews. {suggest(name, settings.crews)}")

    given = settings.crews[name]
    problems: list[str] = []
    agents = [_build_agent(key, agent, settings, problems) for key, agent in given.agents.items()]
    groups = [
        Parallel(
            key,
            branches=group.branches,
            then=group.then,
            on_error=Quorum(group.on_error) if isinstance(group.on_error, int) else group.on_error,
            timeout=group.timeout,
            max_concurrency=group.max_concurrency,
        )
        for key, group in given.groups.items()
    ]

    try:
        crew = Crew(name, agents=agents, groups=groups, entry=given.entry)
    except DefinitionError as error:
        raise ConfigError(path, [*problems, *(f"crews.{name}: {problem}" for problem in error.problems)]) from error

    if problems:
        raise ConfigError(path, problems)

    return crew


def _build_agent(name: str, given: AgentSection, settings: ConfigFile, problems: list[str]) -> Agent:
    return Agent(
        name,
        instructions=given.instructions,
        model=given.model,
        backup=given.backup,
        description=given.description,
        tools=[found for path in given.tools if (found := _load_tool(name, path, problems)) is not None],
        handoffs=[_build_handoff(name, section, problems) for section in given.handoffs],
        routes=[Route(route.signal, to=route.to) for route in given.routes],
        then=given.then,
        wait_for_signal=given.wait_for_signal,
        history=_agent_policy(name, given.history, problems),
        max_input_tokens=given.max_input_tokens or settings.max_input_tokens,
        sanitize_output=given.sanitize_output,
        output=_load_model_class(name, "output", given.output, problems),
        settings=_model_settings(name, given.settings, problems),
    )


def _agent_policy(agent: str, given: PolicySection | None, problems: list[str]) -> Policy | None:
    try:
        return None if given is None else _resolve_policy(given)
    except DefinitionError as error:
        problems.extend(f"agent {agent!r}: history: {problem}" for problem in error.problems)
        return None


def _load_tool(agent: str, path: str, problems: list[str]) -> Tool | None:
    try:
        found = _import_object(path)
        return found if isinstance(found, Tool) else tool(found)
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        problems.append(f"agent {agent!r}: the tool {path!r} can't be loaded (module:name is wanted): {error}")
        return None


def _build_handoff(agent: str, given: HandoffSection, problems: list[str]) -> Handoff:
    payload = _load_model_class(agent, f"payload of the handoff to {given.to!r}", given.payload, problems)
    return Handoff(to=given.to, history=given.history, payload=payload)


def _load_model_class(agent: str, what: str, path: str | None, problems: list[str]) -> type[BaseModel] | None:
    """The pydantic model that is written as module:name."""
    try:
        found = None if path is None else _import_object(path)
    except (ImportError, AttributeError, ValueError) as error:
        problems.append(f"agent {agent!r}: {what}: {path!r} can't be loaded (module:name is wanted): {error}")
        return None

    if found is None or (isinstance(found, type) and issubclass(found, BaseModel)):
        return found

    problems.append(f"agent {agent!r}: {what}: {path!r} is {found!r}, not a pydantic model")
    return None


def _import_object(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def _model_settings(agent: str, given: dict[str, Any], problems: list[str]) -> ModelSettings:
    try:
        return ModelSettings(**given)
    except TypeError:
        known = list(ModelSettings.__dataclass_fields__)
        wrong = [key for key in given if key not in known]
        problems.extend(f"agent {agent!r}: settings.{key} is unknown. {suggest(key, known)}" for key in wrong)
        return ModelSettings()


def _history_policy(settings: ConfigFile, path: str) -> str | Policy:
    """The crew's policy: `history`, else what the names of other frameworks say, else the default."""
    try:
        if settings.history is not None:
            return _resolve_policy(settings.history)

        return _head_tail_from_aliases(settings.execution) or "rolling"
    except DefinitionError as error:
        raise ConfigError(path, [f"history: {problem}" for problem in error.problems]) from error


def _resolve_policy(section: PolicySection) -> Policy:
    return resolve_policy(section.model_dump())


def _head_tail_from_aliases(given: ExecutionSection) -> Policy | None:
    if given.conversation is not None:
        options = dict(given.conversation)

        if given.max_conversation_messages is not None:
            options["max_messages"] = given.max_conversation_messages

        return create_policy("head_tail", **options)

    if given.max_conversation_messages is not None:
        return create_policy("head_tail", max_messages=given.max_conversation_messages)

    return None


def executor_options(settings: ConfigFile, path: str) -> dict[str, Any]:
    """The executor's arguments as a file describes them; telemetry aside, which is turned on, not handed over."""
    limits = settings.limits

    if settings.execution.max_iterations is not None:
        limits = replace(limits, rounds=settings.execution.max_iterations)

    return {
        "max_messages_per_request": settings.max_messages_per_request,
        "prune_to": settings.prune_to,
        "history": _history_policy(settings, path),
        "sanitize_output": settings.sanitize_output,
        "limits": limits,
        "parameters": settings.parameters,
        "validator": settings.validator,
    }
