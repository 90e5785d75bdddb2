"""Agents, parallel groups, and the handoffs and routes between them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from pydantic import BaseModel

from crew.errors import DefinitionError, abbreviate
from crew.interfaces import ModelSettings, Policy, Provider, RetryPolicy, ToolSpec
from crew.messages import Message
from crew.settings import PositiveInt, Seconds, setting_problems
from crew.tools.tool import Tool, tool

HandoffMode = Literal["full", "text_only", "last", "none"]
HandoffFilter = HandoffMode | Callable[[tuple[Message, ...]], Sequence[Message]]
"""Which messages the target of a handoff sees: a mode, or a function that selects them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quorum:
    """A parallel group continues as soon as `n` branches succeed, and fails when fewer than `n` can still succeed."""

    n: PositiveInt = field(kw_only=False)


OnError = Literal["collect", "fail_fast", "first_success"] | Quorum


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Agent:
    """Instructions, a model, tools, and the agents and groups that may continue the run.

    `then` continues after a plain reply, `routes` after a reply with a signal, `handoffs` when the model calls one.
    `wait_for_signal` pauses for the user after a reply without a signal. `backup` answers if `model` is unavailable.
    `retry` limits the time and the attempts of its model requests; default: the executor's.
    """

    name: str = field(kw_only=False)
    instructions: str = ""
    model: str | Provider = ""
    tools: Sequence[Tool | AgentTool | Callable[..., object]] = ()
    handoffs: Sequence[Agent | Parallel | Handoff | str] = ()
    routes: Sequence[Route] = ()
    then: Agent | Parallel | str | None = None
    wait_for_signal: bool = False
    output: type[BaseModel] | None = None
    backup: str | Provider | None = None
    settings: ModelSettings = field(default_factory=ModelSettings)
    retry: RetryPolicy | None = None
    history: str | Policy | None = None
    max_input_tokens: PositiveInt | None = None
    sanitize_output: bool | None = None
    description: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "tools", as_sequence(self.tools))
        object.__setattr__(self, "handoffs", as_sequence(self.handoffs))
        object.__setattr__(self, "routes", as_sequence(self.routes))

        if problems := [*setting_problems(self), *_agent_problems(self)]:
            raise DefinitionError(f"Agent {abbreviate(self.name)}", problems)

        tools = tuple(item if isinstance(item, Tool | AgentTool) else tool(item) for item in self.tools)
        unbound = [item.name for item in tools if isinstance(item, Tool) and item.signature.is_unbound]

        if unbound:
            problem = f"the method {unbound[0]!r} is not bound to an object; pass it as service.{unbound[0]}, not as"
            raise DefinitionError(f"Agent {self.name!r}", f"{problem} Service.{unbound[0]}")

        object.__setattr__(self, "tools", tools)

    def as_tool(self, name: str | None = None, description: str | None = None) -> AgentTool:
        """This agent as a tool of another agent: it runs on the request of the call, and its answer is the result."""
        return AgentTool(agent=self, name=name or f"ask_{self.name}", description=description or self.purpose)

    @property
    def purpose(self) -> str:
        """How this agent is described to the models of other agents."""
        return self.description or self.instructions.strip().split("\n")[0][:200] or f"The agent {self.name}."


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AgentTool:
    """An agent that another agent calls as a tool; each call is a child run."""

    agent: Agent
    name: str
    description: str

    @property
    def spec(self) -> ToolSpec:
        request = {"type": "string", "description": "The task of the agent, with all the information that it needs."}
        schema = {"type": "object", "properties": {"request": request}, "required": ["request"]}
        return ToolSpec(
            name=self.name, description=self.description, parameters=schema | {"additionalProperties": False}
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Continues with `to` when a reply without tool calls ends with the signal; `to=None` ends the run.

    A signal in a code fence, a block quote or quotation marks does not count. `match="anywhere"` accepts it anywhere.
    """

    signal: str = field(kw_only=False)
    to: Agent | Parallel | str | None
    match: Literal["end", "anywhere"] = "end"

    def __post_init__(self) -> None:
        if problems := [*setting_problems(self), *_target_problems("to", self.to, "an agent, a group, a name or None")]:
            raise DefinitionError("Route", problems)

    @property
    def target(self) -> str | None:
        return None if self.to is None else node_name(self.to)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Parallel:
    """Agents that run concurrently on the same history; their results are joined in declared order."""

    name: str = field(kw_only=False)
    branches: Sequence[Agent | str]
    then: Agent | Parallel | str | None = None
    on_error: OnError = "collect"
    timeout: Seconds | None = None
    max_concurrency: PositiveInt | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "branches", as_sequence(self.branches))
        branches = _item_problems("branches", self.branches, (Agent, Parallel, str), "an agent or a name")

        if problems := [*branches, *_target_problems("then", self.then, "an agent, a group or a name")]:
            raise DefinitionError(f"Parallel {abbreviate(self.name)}", problems)

    @property
    def branch_names(self) -> tuple[str, ...]:
        return tuple(node_name(branch) for branch in self.branches)


@dataclass(frozen=True, slots=True, kw_only=True)
class Handoff:
    """An agent or group that the model may transfer the conversation to, and which messages the target sees."""

    to: Agent | Parallel | str
    history: HandoffFilter = "full"
    payload: type[BaseModel] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.to, Agent | Parallel | str):
            raise DefinitionError("Handoff", f"to must be an agent, a group or a name, not {abbreviate(self.to)}")

    @property
    def target(self) -> str:
        return node_name(self.to)

    @property
    def tool_name(self) -> str:
        return f"transfer_to_{self.target}"


def handoff(
    to: Agent | Parallel | str, *, history: HandoffFilter = "full", payload: type[BaseModel] | None = None
) -> Handoff:
    """A handoff that filters the history for its target, or has a payload that the model must fill in."""
    return Handoff(to=to, history=history, payload=payload)


def as_sequence(items: object) -> object:
    """The items of an iterator, a set or a view as a tuple, because they are read several times; others unchanged."""
    return tuple(items) if isinstance(items, Iterable) and not isinstance(items, Sequence | Mapping) else items


def _agent_problems(agent: Agent) -> Iterator[str]:
    settings: object = agent.settings

    if not isinstance(settings, ModelSettings):
        yield f"settings must be ModelSettings(...), not {abbreviate(settings)}"

    retry: object = agent.retry

    if retry is not None and not isinstance(retry, RetryPolicy):
        yield f"retry must be RetryPolicy(...), not {abbreviate(retry)}"

    nodes = "an agent, a group, a handoff or a name"
    yield from _tool_problems(agent.tools)
    yield from _item_problems("handoffs", agent.handoffs, (Agent, Parallel, Handoff, str), nodes)
    yield from _item_problems("routes", agent.routes, (Route,), "Route(...)")
    yield from _target_problems("then", agent.then, "an agent, a group or a name")


def _tool_problems(tools: object) -> Iterator[str]:
    if not isinstance(tools, Sequence) or isinstance(tools, str):
        yield from _item_problems("tools", tools, (), "")
        return

    for index, item in enumerate(tools):
        if isinstance(item, Agent):
            yield f"tools[{index}] must be a function or a tool, not an agent; pass agent.as_tool()"
        elif not isinstance(item, Tool | AgentTool) and not callable(item):
            yield f"tools[{index}] must be a function or a tool, not {abbreviate(item)}"


def _item_problems(name: str, items: object, accepted: tuple[type, ...], words: str) -> Iterator[str]:
    if not isinstance(items, Sequence) or isinstance(items, str):
        yield f"{name} must be a list, not {type(items).__name__}"
        return

    for index, item in enumerate(items):
        if not isinstance(item, accepted):
            yield f"{name}[{index}] must be {words}, not {abbreviate(item)}"


def _target_problems(name: str, target: object, words: str) -> Iterator[str]:
    if target is not None and not isinstance(target, Agent | Parallel | str):
        yield f"{name} must be {words}, not {abbreviate(target)}"


def node_name(node: Agent | Parallel | str) -> str:
    """The name of an agent or group, which may be referred to by its name."""
    return node if isinstance(node, str) else node.name


def agent_handoffs(agent: Agent) -> tuple[Handoff, ...]:
    """The agent's handoffs, including those given as an agent, a group or a name."""
    return tuple(item if isinstance(item, Handoff) else Handoff(to=item) for item in agent.handoffs)
