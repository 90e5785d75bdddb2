"""Builds crews and executor options from a configuration file."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError

from crew.agents.agent import Agent, Handoff, Parallel, Quorum, Route
from crew.agents.crew import Crew, graph_problems
from crew.config.file_schema import (
    AgentSection,
    ConfigFile,
    ExecutionSection,
    GroupSection,
    HandoffSection,
    PolicySection,
)
from crew.errors import ConfigError, DefinitionError, abbreviate, describe, suggest
from crew.history.policies.lookup import create_policy, resolve_policy
from crew.interfaces import ModelSettings, Policy
from crew.settings import problem_text, read_settings, settings_located_by
from crew.store.location import relative_to
from crew.tools.tool import Tool, tool


def build_crew(config: ConfigFile, name: str, path: str, allowed_modules: Sequence[str] | None = None) -> Crew:
    """Build the crew of this name. Raises `ConfigError` with all of its problems.

    Tools and models in the file are imported, which runs code. With `allowed_modules`, only these modules and their
    submodules are imported, and the folder of the file is not searched for modules.
    """
    if name not in config.crews:
        raise ConfigError(path, f"crews has no crew {name!r}. {suggest(name, config.crews)}")

    section = config.crews[name]
    problems: list[str] = []
    if isinstance(allowed_modules, str):
        problem = f"must be a list such as ['shop.tools'], not {abbreviate(allowed_modules)}"
        raise DefinitionError("allowed_modules", problem)

    modules = _Modules(
        folder=Path(path).resolve().parent, allowed=None if allowed_modules is None else tuple(allowed_modules)
    )

    with modules.importing():
        agents = [
            _build_agent(
                key, agent, _AgentContext(config=config, modules=modules, crew=name, agent=key, texts=problems)
            )
            for key, agent in section.agents.items()
        ]

    groups = [_build_group(key, group) for key, group in section.groups.items()]

    for node, problem in dict.fromkeys(graph_problems(agents, groups, section.entry)):
        key = "agents" if node in section.agents else "groups" if node in section.groups else "entry"
        problems.append(f"{config.location('crews', name, key, node)}crews.{name}: {problem}")

    if problems:
        raise ConfigError(path, [config.hide_variables(problem) for problem in problems])

    return Crew(name, agents=agents, groups=groups, entry=section.entry)


def executor_options(config: ConfigFile, path: str) -> dict[str, Any]:
    """The executor's arguments. Telemetry is not among them: it is set up once per process."""
    limits = config.limits

    if config.execution.max_iterations is not None:
        limits = replace(limits, rounds=config.execution.max_iterations)

    return {
        "max_messages_per_request": config.max_messages_per_request,
        "prune_to": config.prune_to,
        "history": _history_policy(config, path),
        "max_input_tokens": config.max_input_tokens,
        "sanitize_output": config.sanitize_output,
        "max_concurrent_runs": config.max_concurrent_runs,
        "store": None if config.store is None else relative_to(Path(path).parent, config.store),
        "retry": config.retry,
        "limits": limits,
        "parameters": config.parameters,
        "validator": config.validator,
    }


def _build_group(name: str, section: GroupSection) -> Parallel:
    return Parallel(
        name,
        branches=section.branches,
        then=section.then,
        on_error=Quorum(section.on_error) if isinstance(section.on_error, int) else section.on_error,
        timeout=section.timeout,
        max_concurrency=section.max_concurrency,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _AgentContext:
    """The modules that may be imported, and the problems of the agent that is built, each with its location."""

    config: ConfigFile
    modules: _Modules
    crew: str
    agent: str
    texts: list[str]

    def add_problem(self, text: str, *place: str | int) -> None:
        """Add a problem at a place below the agent."""
        self.texts.append(f"{self.location(*place)}agent {self.agent!r}: {text}")

    def location(self, *place: str | int) -> str:
        """The location of a place below the agent."""
        return self.config.location("crews", self.crew, "agents", self.agent, *place)


def _build_agent(name: str, section: AgentSection, context: _AgentContext) -> Agent:
    return Agent(
        name,
        instructions=section.instructions,
        model=section.model,
        backup=section.backup,
        description=section.description,
        tools=[
            loaded
            for index, path in enumerate(section.tools)
            if (loaded := _load_tool(index, path, context)) is not None
        ],
        handoffs=[_build_handoff(index, handoff, context) for index, handoff in enumerate(section.handoffs)],
        routes=[Route(route.signal, to=route.to, match=route.match) for route in section.routes],
        then=section.then,
        wait_for_signal=section.wait_for_signal,
        history=_agent_policy(section.history, context),
        max_input_tokens=section.max_input_tokens,
        sanitize_output=section.sanitize_output,
        output=_load_model_class("output", section.output, context, "output"),
        settings=_model_settings(section.settings, context),
        retry=section.retry,
    )


def _build_handoff(index: int, section: HandoffSection, context: _AgentContext) -> Handoff:
    title = f"payload of the handoff to {section.to!r}"
    payload = _load_model_class(title, section.payload, context, "handoffs", index, "payload")
    return Handoff(to=section.to, history=section.history, payload=payload)


def _agent_policy(section: PolicySection | None, context: _AgentContext) -> Policy | None:
    try:
        with settings_located_by(lambda place: context.location("history", *place)):
            return None if section is None else _resolve_policy(section)
    except DefinitionError as error:
        for problem in error.problems:
            context.add_problem(f"history: {problem}", "history")

        return None


def _load_tool(index: int, path: str, context: _AgentContext) -> Tool | None:
    try:
        loaded = context.modules.load(path)

        if isinstance(loaded, Tool):
            return loaded

        if not callable(loaded):
            raise TypeError(f"it is {abbreviate(loaded)}, not a function")

        return tool(loaded)
    except DefinitionError as error:
        context.add_problem(f"the tool {path!r}: {'; '.join(error.problems)}", "tools", index)
        return None
    except (Exception, SystemExit) as error:  # the user's module can raise anything
        text = f"can't load the tool {path!r}: {_import_problem(error)}. Tools are written as module:name"
        context.add_problem(text, "tools", index)
        return None


def _import_problem(error: BaseException) -> str:
    """Why a name could not be loaded; an error inside the module is shown with its class."""
    return str(error) if isinstance(error, ImportError | AttributeError | ValueError | TypeError) else describe(error)


def _load_model_class(key: str, path: str | None, context: _AgentContext, *place: str | int) -> type[BaseModel] | None:
    """The pydantic model that is written as `module:name`."""
    if path is None:
        return None

    try:
        loaded = context.modules.load(path)
    except (Exception, SystemExit) as error:  # the user's module can raise anything
        context.add_problem(
            f"{key}: can't load {path!r}: {_import_problem(error)}. Models are written as module:name", *place
        )
        return None

    if isinstance(loaded, type) and issubclass(loaded, BaseModel):
        return loaded

    context.add_problem(f"{key} must be a subclass of pydantic.BaseModel; {path!r} is {abbreviate(loaded)}", *place)
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Modules:
    """Imports what a file names as `module:name`."""

    folder: Path
    allowed: tuple[str, ...] | None

    @contextmanager
    def importing(self) -> Iterator[None]:
        """Import modules next to the file, whatever the current directory is, unless only some modules are allowed.

        The folder is first on `sys.path` meanwhile, and stays last: a function may import its neighbours when it is
        called, and no module of the program is hidden.
        """
        if self.allowed is not None:
            yield
            return

        sys.path.insert(0, str(self.folder))

        try:
            yield
        finally:
            sys.path.remove(str(self.folder))

            if str(self.folder) not in sys.path:
                sys.path.append(str(self.folder))

    def load(self, path: str) -> object:
        """The object; raises `ImportError`, `AttributeError` or `ValueError`."""
        name, _, attribute = path.partition(":")

        if self.allowed is not None and not any(f"{name}.".startswith(f"{prefix}.") for prefix in self.allowed):
            listed = ", ".join(self.allowed) or "none"
            raise ImportError(f"the module {name!r} is not allowed (allowed modules: {listed})")

        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if self.allowed is None:
                raise

            hint = "with allowed modules, those next to the file are not found: install them, or set PYTHONPATH"
            raise ImportError(f"{error} ({hint})") from error

        if self.allowed is None:
            self._check_not_hidden(name)

        return getattr(module, attribute)

    def _check_not_hidden(self, name: str) -> None:
        package = name.partition(".")[0]
        files = (self.folder / f"{package}.py", self.folder / package / "__init__.py")
        neighbours = [file for file in files if file.is_file()]
        spec = sys.modules[package].__spec__

        origin = None if spec is None else spec.origin

        if neighbours and origin is not None and Path(origin).resolve() not in neighbours:
            raise ImportError(f"{neighbours[0]} is hidden by {origin}, which was imported before; rename one of them")


def _model_settings(values: dict[str, object], context: _AgentContext) -> ModelSettings:
    try:
        return read_settings(ModelSettings, values, stop=Annotated[tuple[str, ...], Field(strict=False)])
    except ValidationError as error:
        for found in error.errors(include_url=False):
            context.add_problem(f"settings.{problem_text(found)}", "settings", *found["loc"][:1])

        return ModelSettings()


def _history_policy(config: ConfigFile, path: str) -> str | Policy:
    """The policy under `history`, else the one that `execution` describes, else the default."""
    try:
        with settings_located_by(lambda place: config.location("history", *place)):
            if config.history is not None:
                return _resolve_policy(config.history)

            return _head_tail_policy(config.execution) or "rolling"
    except DefinitionError as error:
        raise ConfigError(path, [config.hide_variables(f"history: {problem}") for problem in error.problems]) from None


def _resolve_policy(section: PolicySection) -> Policy:
    return resolve_policy(section.model_dump())


def _head_tail_policy(section: ExecutionSection) -> Policy | None:
    if section.conversation is None and section.max_conversation_messages is None:
        return None

    options = dict(section.conversation or {})

    if section.max_conversation_messages is not None:
        options["max_messages"] = section.max_conversation_messages

    return create_policy("head_tail", **options)
