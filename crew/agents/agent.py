"""Agents, parallel groups, and the handoffs and routes between them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeGuard, cast

from pydantic import BaseModel
from typing_extensions import TypeForm, TypeVar

from crew.agents.choice import Choice, ItemSource, function_problems
from crew.agents.function_arity import accepts_arguments
from crew.agents.guardrail import Guardrail, guardrail_problems
from crew.agents.output_type import OutputType, read_output_type
from crew.errors import DefinitionError, abbreviate
from crew.interfaces import ModelSettings, Policy, Provider, RetryPolicy, ToolSpec
from crew.messages import Message
from crew.settings import PositiveInt, Seconds, setting_problems
from crew.tools.context import Context
from crew.tools.tool import Tool, tool
from crew.tools.toolset import Toolset

Deps_contra = TypeVar("Deps_contra", contravariant=True, default=Any)
Output_co = TypeVar("Output_co", covariant=True, default=str)

HandoffMode = Literal["full", "text_only", "last", "none"]
HandoffFilter = HandoffMode | Callable[[tuple[Message, ...]], Sequence[Message]]
"""Which messages the target of a handoff sees: a mode, or a function that selects them."""


OnHandoff = Callable[[Context[Any], Any], object]
"""Called with the context and the payload when a model hands off; sync or async."""

Instructions = Callable[[Context[Deps_contra]], str | Awaitable[str]]
"""Writes the instructions of an agent whenever it becomes active."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quorum:
    """A parallel group continues as soon as `n` branches succeed, and fails when fewer than `n` can still succeed."""

    n: PositiveInt = field(kw_only=False)


OnError = Literal["collect", "fail_fast", "first_success"] | Quorum


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Agent(Generic[Deps_contra, Output_co]):
    """Instructions, a model, tools, and the agents and groups that may continue the run.

    `instructions` are a text, or a sync or async function of the `Context` that returns it: it is called whenever the
    agent becomes active, and `description` is required then. `tools` are functions, tools, agents and toolsets.
    `guardrails` check its input, the calls of its tools and its output.
    `Agent[Deps, Output]` is inferred from `deps_type`, the functions and `output`. `output` is the type of the answer:
    a class, `list[...]`, a union, a Literal or a simple type such as `int`; without it the answer is text.
    `then` continues after a plain reply, `routes` after a reply with a signal, `handoffs` when the model calls one.
    `wait_for_signal` pauses for the user after a reply without a signal. `backup` answers if `model` is unavailable.
    `retry` limits the time and the attempts of its model requests; default: the executor's.
    """

    name: str = field(kw_only=False)
    instructions: str | Instructions[Deps_contra] = ""
    model: str | Provider = ""
    tools: Sequence[Tool | AgentTool | Toolset | Callable[..., object]] = ()
    guardrails: Sequence[Guardrail] = ()
    handoffs: Sequence[AnyAgent | Parallel | Handoff | str] = ()
    routes: Sequence[Route] = ()
    then: AnyAgent | Parallel | Choice | str | None = None
    wait_for_signal: bool = False
    # Without `| None`, so that mypy infers unions too.
    output: TypeForm[Output_co] = field(default=cast("TypeForm[Output_co]", str))
    deps_type: type[Deps_contra] | None = None
    backup: str | Provider | None = None
    settings: ModelSettings = field(default_factory=ModelSettings)
    retry: RetryPolicy | None = None
    history: str | Policy | None = None
    max_input_tokens: PositiveInt | None = None
    sanitize_output: bool | None = None
    description: str = ""
    output_type: OutputType | None = field(init=False, repr=False, default=None)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tools", as_sequence(self.tools))
        object.__setattr__(self, "guardrails", as_sequence(self.guardrails))
        object.__setattr__(self, "handoffs", as_sequence(self.handoffs))
        object.__setattr__(self, "routes", as_sequence(self.routes))

        problems = [*setting_problems(self), *_agent_problems(self)]

        try:
            object.__setattr__(self, "output_type", read_output_type(self.output))
        except DefinitionError as error:
            problems.extend(error.problems)

        if problems:
            raise DefinitionError(f"Agent {abbreviate(self.name)}", problems)

        tools = tuple(item if isinstance(item, Tool | AgentTool | Toolset) else tool(item) for item in self.tools)
        unbound = [item.name for item in tools if isinstance(item, Tool) and item.signature.is_unbound]

        if unbound:
            problem = f"the method {unbound[0]!r} is not bound to an object; pass it as service.{unbound[0]}, not as"
            raise DefinitionError(f"Agent {self.name!r}", f"{problem} Service.{unbound[0]}")

        object.__setattr__(self, "tools", tools)

    def as_tool(self, name: str | None = None, description: str | None = None) -> AgentTool:
        """This agent as a tool of another agent: it runs on the request of the call, and its answer is the result."""
        return AgentTool(agent=self, name=name or f"ask_{self.name}", description=description or self.purpose)

    if not TYPE_CHECKING:

        def __class_getitem__(cls, parameters):
            """The class itself: Python 3.11 would set an attribute of the frozen object `Agent[Deps, Output](...)`."""
            return cls

    @property
    def purpose(self) -> str:
        """How this agent is described to the models of other agents."""
        return self.description or self.static_instructions.strip().split("\n")[0][:200] or f"The agent {self.name}."

    @property
    def static_instructions(self) -> str:
        """The text of the instructions; empty if a function writes it."""
        return self.instructions if isinstance(self.instructions, str) else ""

    @property
    def toolsets(self) -> tuple[Toolset, ...]:
        """The toolsets among its tools."""
        return tuple(used for used in self.tools if is_toolset(used))

    @property
    def needs_preparation(self) -> bool:
        """Whether something has to be resolved whenever the agent becomes active."""
        return callable(self.instructions) or bool(self.toolsets)


AnyAgent = Agent[Any, Any]
"""An agent with any deps and any output."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AgentTool:
    """An agent that another agent calls as a tool; each call is a child run."""

    agent: AnyAgent
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
    to: AnyAgent | Parallel | str | None
    match: Literal["end", "anywhere"] = "end"

    def __post_init__(self) -> None:
        if problems := [*setting_problems(self), *_target_problems("to", self.to, "an agent, a group, a name or None")]:
            raise DefinitionError("Route", problems)

    @property
    def target(self) -> str | None:
        return None if self.to is None else node_name(self.to)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Parallel:
    """Agents that run concurrently on the same history; their results are joined in declared order.

    With `items`, one agent runs once for each item; see `Parallel.map`.
    """

    name: str = field(kw_only=False)
    branches: Sequence[AnyAgent | str]
    then: AnyAgent | Parallel | Choice | str | None = None
    on_error: OnError = "collect"
    timeout: Seconds | None = None
    max_concurrency: PositiveInt | None = None
    items: ItemSource | None = None
    max_items: PositiveInt = 100

    def __post_init__(self) -> None:
        object.__setattr__(self, "branches", as_sequence(self.branches))
        problems = [*_item_problems("branches", self.branches, (Agent, Parallel, str), "an agent or a name")]

        if not isinstance(self.items, str | None):
            problems.extend(function_problems("items", self.items))

        if self.items is not None and not problems and len(self.branches) != 1:
            problems.append(
                f"with items there is one branch, the agent that runs for each item, not {len(self.branches)}"
            )

        if problems := [*problems, *_target_problems("then", self.then, "an agent, a group, choose(...) or a name")]:
            raise DefinitionError(f"Parallel {abbreviate(self.name)}", problems)

    @classmethod
    def map(
        cls,
        name: str,
        agent: AnyAgent | str,
        *,
        items: ItemSource,
        then: AnyAgent | Parallel | Choice | str | None = None,
        on_error: OnError = "collect",
        timeout: float | None = None,
        max_concurrency: int | None = None,
        max_items: int = 100,
    ) -> Parallel:
        """A group that runs one agent once for each item, and joins the results in the order of the items.

        `items` is the name of a field of the handoff's payload, or of the structured output, that leads here; or a pure
        function of the `NodeResult` that returns the items. Each branch gets the text of its item: a string as it is,
        anything else as JSON. Without items the group joins at once. More than `max_items` items fail the run.
        """
        return cls(
            name,
            branches=[agent],
            then=then,
            on_error=on_error,
            timeout=timeout,
            max_concurrency=max_concurrency,
            items=items,
            max_items=max_items,
        )

    @property
    def branch_names(self) -> tuple[str, ...]:
        return tuple(node_name(branch) for branch in self.branches)


@dataclass(frozen=True, slots=True, kw_only=True)
class Handoff:
    """An agent or group that the model may transfer the conversation to, and which messages the target sees.

    The model must fill in the `payload`, which tools of the target read as `context.payload`. `on_handoff` is a sync or
    async function of context and payload that is called before control passes; if it raises, control stays.
    """

    to: AnyAgent | Parallel | str
    history: HandoffFilter = "full"
    payload: type[BaseModel] | None = None
    on_handoff: OnHandoff | None = None

    def __post_init__(self) -> None:
        on_handoff: object = self.on_handoff

        if not isinstance(self.to, Agent | Parallel | str):
            raise DefinitionError("Handoff", f"to must be an agent, a group or a name, not {abbreviate(self.to)}")

        if on_handoff is not None and (isinstance(on_handoff, type) or not callable(on_handoff)):
            text = f"on_handoff must be a function of context and payload, not {abbreviate(on_handoff)}"
            raise DefinitionError(f"Handoff to {self.target!r}", text)

        if on_handoff is not None and not accepts_arguments(on_handoff, 2):
            text = f"on_handoff must accept two arguments, context and payload; {abbreviate(on_handoff)} does not"
            raise DefinitionError(f"Handoff to {self.target!r}", text)

    @property
    def target(self) -> str:
        return node_name(self.to)

    @property
    def tool_name(self) -> str:
        return f"transfer_to_{self.target}"


def handoff(
    to: AnyAgent | Parallel | str,
    *,
    history: HandoffFilter = "full",
    payload: type[BaseModel] | None = None,
    on_handoff: OnHandoff | None = None,
) -> Handoff:
    """A handoff that filters the history, has a payload that the model must fill in, or calls a function."""
    return Handoff(to=to, history=history, payload=payload, on_handoff=on_handoff)


def is_toolset(used: object) -> TypeGuard[Toolset]:
    """Whether this is a toolset, and not a tool or an agent."""
    return isinstance(used, Toolset) and not isinstance(used, Tool | AgentTool)


def as_sequence(items: object) -> object:
    """The items of an iterator, a set or a view as a tuple, because they are read several times; others unchanged."""
    return tuple(items) if isinstance(items, Iterable) and not isinstance(items, Sequence | Mapping) else items


def _agent_problems(agent: AnyAgent) -> Iterator[str]:
    settings: object = agent.settings

    if not isinstance(settings, ModelSettings):
        yield f"settings must be ModelSettings(...), not {abbreviate(settings)}"

    retry: object = agent.retry

    if retry is not None and not isinstance(retry, RetryPolicy):
        yield f"retry must be RetryPolicy(...), not {abbreviate(retry)}"

    yield from _instruction_problems(agent.instructions, agent.description)
    deps_type: object = agent.deps_type

    if deps_type is not None and not isinstance(deps_type, type):
        yield f"deps_type must be a class, not {abbreviate(deps_type)}"

    nodes = "an agent, a group, a handoff or a name"
    yield from _tool_problems(agent.tools)
    yield from guardrail_problems(agent.guardrails)
    yield from _item_problems("handoffs", agent.handoffs, (Agent, Parallel, Handoff, str), nodes)
    yield from _item_problems("routes", agent.routes, (Route,), "Route(...)")
    yield from _target_problems("then", agent.then, "an agent, a group, choose(...) or a name")


def _instruction_problems(instructions: object, description: object) -> Iterator[str]:
    if isinstance(instructions, type) or not (isinstance(instructions, str) or callable(instructions)):
        yield f"instructions must be a text or a function of the context, not {abbreviate(instructions)}"
    elif callable(instructions) and not accepts_arguments(instructions, 1):
        yield f"instructions must accept one argument, the Context; {abbreviate(instructions)} does not"
    elif callable(instructions) and not str(description).strip():
        yield "description is required if a function writes the instructions: the models of other agents read it"


def _tool_problems(tools: object) -> Iterator[str]:
    if not isinstance(tools, Sequence) or isinstance(tools, str):
        yield from _item_problems("tools", tools, (), "")
        return

    for index, item in enumerate(tools):
        if isinstance(item, Agent):
            yield f"tools[{index}] must be a function or a tool, not an agent; pass agent.as_tool()"
        elif isinstance(item, type) or not (isinstance(item, Tool | AgentTool | Toolset) or callable(item)):
            yield f"tools[{index}] must be a function, a tool or a toolset, not {abbreviate(item)}"


def _item_problems(name: str, items: object, accepted: tuple[type, ...], words: str) -> Iterator[str]:
    if not isinstance(items, Sequence) or isinstance(items, str):
        yield f"{name} must be a list, not {type(items).__name__}"
        return

    for index, item in enumerate(items):
        if not isinstance(item, accepted):
            yield f"{name}[{index}] must be {words}, not {abbreviate(item)}"


def _target_problems(name: str, target: object, words: str) -> Iterator[str]:
    accepted = (Agent, Parallel, str, Choice) if name == "then" else (Agent, Parallel, str)

    if target is not None and not isinstance(target, accepted):
        yield f"{name} must be {words}, not {abbreviate(target)}"


def node_name(node: AnyAgent | Parallel | str) -> str:
    """The name of an agent or group, which may be referred to by its name."""
    return node if isinstance(node, str) else node.name


def agent_handoffs(agent: AnyAgent) -> tuple[Handoff, ...]:
    """The agent's handoffs, including those given as an agent, a group or a name."""
    return tuple(item if isinstance(item, Handoff) else Handoff(to=item) for item in agent.handoffs)
