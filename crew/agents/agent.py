"""Agents, groups, and the ways by which work goes from one to another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel

from crew.errors import DefinitionError
from crew.interfaces import ModelSettings, Policy, Provider, ToolSpec
from crew.messages import Message
from crew.tools.tool import Tool, tool

HandoffMode = Literal["full", "text_only", "last", "none"]
HandoffFilter = HandoffMode | Callable[[tuple[Message, ...]], Sequence[Message]]
"""Which messages the target of a handoff sees: a mode, or a function that selects them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quorum:
    """A parallel group goes on as soon as `n` branches succeeded, and fails when that can't be reached any more."""

    n: int = field(kw_only=False)


OnError = Literal["collect", "fail_fast", "first_success"] | Quorum


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Agent:
    """Who works: instructions, a model, tools, and where the work may go from here."""

    name: str = field(kw_only=False)
    instructions: str = ""
    model: str | Provider = ""
    tools: Sequence[Tool | AgentTool | Callable[..., Any]] = ()
    handoffs: Sequence[Agent | Parallel | Handoff | str] = ()
    routes: Sequence[Route] = ()
    then: Agent | Parallel | str | None = None
    wait_for_signal: bool = False
    output: type[BaseModel] | None = None
    backup: str | Provider | None = None
    settings: ModelSettings = field(default_factory=ModelSettings)
    history: str | Policy | None = None
    max_input_tokens: int | None = None
    sanitize_output: bool | None = None
    description: str = ""

    def __post_init__(self) -> None:
        problems = [
            f"{name} must be a list, not {type(given).__name__}"
            for name in ("tools", "handoffs", "routes")
            if isinstance(given := getattr(self, name), str | Mapping) or not isinstance(given, Iterable)
        ]

        said: object = self.instructions

        if not isinstance(said, str):
            problems.append(f"instructions must be a text, not {said!r}")

        if problems:
            raise DefinitionError(f"Agent {self.name!r}", problems)

        made = tuple(given if isinstance(given, Tool | AgentTool) else tool(given) for given in self.tools)
        object.__setattr__(self, "tools", made)

    def as_tool(self, name: str | None = None, description: str | None = None) -> AgentTool:
        """This agent as a tool of another one: it is asked, works, and its answer is the call's result."""
        return AgentTool(agent=self, name=name or f"ask_{self.name}", description=description or self.purpose)

    @property
    def purpose(self) -> str:
        """What other agents are told of this one."""
        return self.description or self.instructions.strip().split("\n")[0][:200] or f"The agent {self.name}."


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AgentTool:
    """An agent that is called and returns; execution runs it as a run of its own."""

    agent: Agent
    name: str
    description: str

    @property
    def spec(self) -> ToolSpec:
        request = {"type": "string", "description": "What the agent shall do, with everything that it needs to know."}
        schema = {"type": "object", "properties": {"request": request}, "required": ["request"]}
        return ToolSpec(
            name=self.name, description=self.description, parameters=schema | {"additionalProperties": False}
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A signal in an agent's plain reply, and where it leads; `to=None` ends the run."""

    signal: str = field(kw_only=False)
    to: Agent | Parallel | str | None

    @property
    def target(self) -> str | None:
        return None if self.to is None else node_name(self.to)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Parallel:
    """Agents that work at the same time on the same history; their results join in declared order."""

    name: str = field(kw_only=False)
    branches: Sequence[Agent | str]
    then: Agent | Parallel | str | None = None
    on_error: OnError = "collect"
    timeout: float | None = None
    max_concurrency: int | None = None

    @property
    def branch_names(self) -> tuple[str, ...]:
        return tuple(node_name(branch) for branch in self.branches)


@dataclass(frozen=True, slots=True, kw_only=True)
class Handoff:
    """An agent or group that the model may hand the work to, and what of the history crosses."""

    to: Agent | Parallel | str
    history: HandoffFilter = "full"
    payload: type[BaseModel] | None = None

    @property
    def target(self) -> str:
        return node_name(self.to)

    @property
    def tool_name(self) -> str:
        return f"transfer_to_{self.target}"


def handoff(
    to: Agent | Parallel | str, *, history: HandoffFilter = "full", payload: type[BaseModel] | None = None
) -> Handoff:
    """A handoff with a filter for what crosses, or with a payload that the model must fill in."""
    return Handoff(to=to, history=history, payload=payload)


def node_name(node: Agent | Parallel | str) -> str:
    """The name of an agent or group that may be given by name."""
    return node if isinstance(node, str) else node.name


def agent_handoffs(agent: Agent) -> tuple[Handoff, ...]:
    """The agent's handoffs, the plain ones included."""
    return tuple(h if isinstance(h, Handoff) else Handoff(to=h) for h in agent.handoffs)
