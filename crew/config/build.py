"""Builds crews and executor options from a configuration file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, Field, ValidationError

from crew.agents.agent import Agent, Handoff, Parallel, Quorum, Route
from crew.agents.choice import Choice, ItemSource, function_problems
from crew.agents.crew import Crew, graph_problems
from crew.agents.guardrail import Guardrail, guardrail_problems
from crew.agents.output_type import read_output_type
from crew.config.file_schema import (
    AgentSection,
    ConfigFile,
    ExecutionSection,
    GroupSection,
    HandoffSection,
    PolicySection,
    ThenSection,
)
from crew.config.importable_modules import ImportableModules, is_reference
from crew.config.mcp_section import ConfiguredServers
from crew.errors import ConfigError, DefinitionError, abbreviate, describe, suggest
from crew.history.policies.lookup import create_policy, resolve_policy
from crew.interfaces import ModelSettings, Policy
from crew.settings import problem_text, read_settings, settings_located_by
from crew.store.location import relative_to
from crew.tools.tool import Tool, tool
from crew.tools.toolset import Toolset


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

    modules = ImportableModules(
        folder=Path(path).resolve().parent, allowed=None if allowed_modules is None else tuple(allowed_modules)
    )

    servers = ConfiguredServers(config=config, folder=modules.folder, allowed=modules.allowed is None)

    with modules.importing():
        agents = [
            _build_agent(
                key,
                agent,
                _AgentContext(config=config, modules=modules, servers=servers, crew=name, agent=key, texts=problems),
            )
            for key, agent in section.agents.items()
        ]

        crew_context = _AgentContext(
            config=config, modules=modules, servers=servers, crew=name, agent="", texts=problems
        )
        guardrails = _load_guardrails(section.guardrails, crew_context)
        groups = [
            _build_group(key, group, replace(crew_context, agent=key, kind="group"))
            for key, group in section.groups.items()
        ]

    for node, problem in dict.fromkeys(graph_problems(agents, groups, section.entry)):
        key = "agents" if node in section.agents else "groups" if node in section.groups else "entry"
        problems.append(f"{config.location('crews', name, key, node)}crews.{name}: {problem}")

    if problems:
        raise ConfigError(path, [config.hide_variables(problem) for problem in problems])

    try:
        return Crew(name, agents=agents, groups=groups, entry=section.entry, guardrails=guardrails)
    except DefinitionError as error:
        raise ConfigError(path, [f"crews.{name}: {problem}" for problem in error.problems]) from None


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
        "rate_limits": config.rate_limits,
        "limits": limits,
        "parameters": config.parameters,
        "validator": config.validator,
    }


def _build_group(name: str, section: GroupSection, context: _AgentContext) -> Parallel:
    return Parallel(
        name,
        branches=section.branches,
        then=_build_then(section.then, context),
        on_error=Quorum(section.on_error) if isinstance(section.on_error, int) else section.on_error,
        timeout=section.timeout,
        max_concurrency=section.max_concurrency,
        items=_load_items(section.items, context),
        max_items=section.max_items,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _AgentContext:
    """The modules that may be imported, and the problems of the agent or group that is built, with their locations.

    `agent` is its name, and empty for the crew itself.
    """

    config: ConfigFile
    modules: ImportableModules
    servers: ConfiguredServers
    crew: str
    agent: str
    texts: list[str]
    kind: Literal["agent", "group"] = "agent"

    def add_problem(self, text: str, *place: str | int) -> None:
        """Add a problem at a place below the agent."""
        title = f"{self.kind} {self.agent!r}: " if self.agent else ""
        self.texts.append(f"{self.location(*place)}{title}{text}")

    def location(self, *place: str | int) -> str:
        """The location of a place below the agent."""
        own = (f"{self.kind}s", self.agent) if self.agent else ()
        return self.config.location("crews", self.crew, *own, *place)


def _build_agent(name: str, section: AgentSection, context: _AgentContext) -> Agent:
    return Agent(
        name,
        instructions=_load_instructions(section, context),
        model=section.model,
        backup=section.backup,
        description=section.description,
        tools=[
            loaded
            for index, path in enumerate(section.tools)
            if (loaded := _load_tool(index, path, context)) is not None
        ],
        guardrails=_load_guardrails(section.guardrails, context),
        handoffs=[_build_handoff(index, handoff, context) for index, handoff in enumerate(section.handoffs)],
        routes=[Route(route.signal, to=route.to, match=route.match) for route in section.routes],
        then=_build_then(section.then, context),
        wait_for_signal=section.wait_for_signal,
        history=_agent_policy(section.history, context),
        max_input_tokens=section.max_input_tokens,
        sanitize_output=section.sanitize_output,
        output=_load_output(section.output, context),
        settings=_model_settings(section.settings, context),
        retry=section.retry,
    )


def _load_instructions(section: AgentSection, context: _AgentContext) -> Any:
    """The text, or the function that writes it."""
    if isinstance(section.instructions, str):
        if is_reference(section.instructions):
            text = (
                f"the instructions are {section.instructions!r}, which is a text. For the function of this name, write"
            )
            form = f"{text} instructions: {{function: {section.instructions}}}. For the text, write it as a block"
            context.add_problem(f"{form}: instructions: | and the text on the next line", "instructions")

        return section.instructions

    if not section.description.strip():
        context.add_problem("description is required if a function writes the instructions", "instructions")
        return ""

    return _load_function("instructions", section.instructions.function, context, "instructions") or ""


def _load_guardrails(paths: Sequence[str], context: _AgentContext) -> list[Guardrail]:
    """The guardrails that are written as `module:name`."""
    loaded = [_load_type("guardrails", path, context, "guardrails", what="Guardrails") for path in paths]
    wrong = [(path, one) for path, one in zip(paths, loaded, strict=True) if not isinstance(one, Guardrail | None)]

    for path, one in wrong:
        text = f"guardrails: {path!r} is {abbreviate(one)}, not a function with the decorator @guardrail"
        context.add_problem(text, "guardrails")

    found = [one for one in loaded if isinstance(one, Guardrail)]
    problems = [] if wrong else [*guardrail_problems(found)]

    for problem in problems:
        context.add_problem(problem, "guardrails")

    return [] if wrong or problems else found


def _build_handoff(index: int, section: HandoffSection, context: _AgentContext) -> Handoff:
    title = f"payload of the handoff to {section.to!r}"
    payload = _load_model_class(title, section.payload, context, "handoffs", index, "payload")
    title = f"on_handoff of the handoff to {section.to!r}"
    on_handoff = _load_function(title, section.on_handoff, context, "handoffs", index, "on_handoff")
    return Handoff(to=section.to, history=section.history, payload=payload, on_handoff=on_handoff)


def _build_then(section: ThenSection | None, context: _AgentContext) -> Choice | str | None:
    if section is None or section.choose is None:
        if section is not None and section.to is not None and is_reference(section.to):
            form = f"then: {{choose: {section.to}, targets: […]}}"
            context.add_problem(f"then is {section.to!r}, not a name; write a function as {form}", "then")
            return None

        return None if section is None else section.to

    function = _load_type("then.choose", section.choose, context, "then", "choose")

    try:
        return None if function is None else Choice(function=function, targets=section.targets)
    except DefinitionError as error:
        context.add_problem(f"then: {'; '.join(error.problems)}", "then")
        return None


def _load_items(items: str | None, context: _AgentContext) -> ItemSource | None:
    """The items of a fan-out: the name of a field, or a function that is written as `module:name`."""
    if items is None or ":" not in items:
        return items

    function = _load_type("items", items, context, "items")

    if function is not None and (problems := [*function_problems("items", function)]):
        context.add_problem("; ".join(problems), "items")
        return None

    return cast("ItemSource | None", function)


def _agent_policy(section: PolicySection | None, context: _AgentContext) -> Policy | None:
    try:
        with settings_located_by(lambda place: context.location("history", *place)):
            return None if section is None else _resolve_policy(section)
    except DefinitionError as error:
        for problem in error.problems:
            context.add_problem(f"history: {problem}", "history")

        return None


def _load_tool(index: int, path: str, context: _AgentContext) -> Tool | Toolset | None:
    """The tool or toolset that is written as `module:name`, or the MCP server of this name."""
    try:
        loaded = context.modules.load(path) if ":" in path else context.servers.get(path)

        if isinstance(loaded, Tool | Toolset) and not isinstance(loaded, type):
            return loaded

        if not callable(loaded):
            raise TypeError(f"it is {abbreviate(loaded)}, not a function")

        return tool(loaded)
    except DefinitionError as error:
        context.add_problem(f"the tool {path!r}: {'; '.join(error.problems)}", "tools", index)
        return None
    except (Exception, SystemExit) as error:  # the user's module can raise anything
        problem = _import_problem(error)
        end = "" if problem.endswith(("?", ".")) else "."
        text = f"can't load the tool {path!r}: {problem}{end} Tools are written as module:name, MCP "
        context.add_problem(f"{text}servers by their names", "tools", index)
        return None


def _import_problem(error: BaseException) -> str:
    """Why a name could not be loaded; an error inside the module is shown with its class."""
    return str(error) if isinstance(error, ImportError | AttributeError | ValueError | TypeError) else describe(error)


def _load_type(key: str, path: str | None, context: _AgentContext, *place: str | int, what: str = "Models") -> Any:
    """The type that is written as `module:name`; None if there is none."""
    try:
        return None if path is None else context.modules.load(path)
    except (Exception, SystemExit) as error:  # the user's module can raise anything
        text = f"{key}: can't load {path!r}: {_import_problem(error)}. {what} are written as module:name"
        context.add_problem(text, *place)
        return None


def _load_output(path: str | None, context: _AgentContext) -> Any:
    """The output type that is written as `module:name`, or as `builtins:int`."""
    loaded = _load_type("output", path, context, "output")

    try:
        read_output_type(loaded)
    except DefinitionError as error:
        context.add_problem(f"{path!r}: {'; '.join(error.problems)}", "output")
        return None

    return loaded


def _load_function(key: str, path: str | None, context: _AgentContext, *place: str | int) -> Any:
    """The function that is written as `module:name`."""
    loaded = _load_type(key, path, context, *place, what="Functions")

    if loaded is None or (callable(loaded) and not isinstance(loaded, type)):
        return loaded

    context.add_problem(f"{key} must be a function; {path!r} is {abbreviate(loaded)}", *place)
    return None


def _load_model_class(key: str, path: str | None, context: _AgentContext, *place: str | int) -> type[BaseModel] | None:
    """The pydantic model that is written as `module:name`."""
    loaded = _load_type(key, path, context, *place)

    if loaded is None:
        return None

    if isinstance(loaded, type) and issubclass(loaded, BaseModel):
        return loaded

    context.add_problem(f"{key} must be a subclass of pydantic.BaseModel; {path!r} is {abbreviate(loaded)}", *place)
    return None


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
