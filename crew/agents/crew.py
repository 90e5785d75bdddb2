"""`Crew`: the graph of agents and groups, checked as a whole when it is built."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, get_args

from typing_extensions import TypeVar

from crew.agents.agent import (
    Agent,
    AgentTool,
    AnyAgent,
    HandoffMode,
    Parallel,
    Quorum,
    agent_handoffs,
    as_sequence,
    node_name,
)
from crew.agents.choice import Choice, Named
from crew.agents.edges import Node, called_agents, collect_nodes, is_model_class, item_problems, outgoing_edges
from crew.agents.guardrail import Guardrail, guardrail_problems
from crew.errors import DefinitionError, abbreviate, suggest
from crew.interfaces import Provider
from crew.settings import setting_problems, value_problems
from crew.tools.tool import TOOL_NAME, Tool
from crew.tools.toolset import Toolset

CrewDeps_contra = TypeVar("CrewDeps_contra", contravariant=True, default=Any)
CrewOutput_co = TypeVar("CrewOutput_co", covariant=True, default=Any)

NODE_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")

HANDOFF_MODES = get_args(HandoffMode)

GraphProblem = tuple[str, str]
"""The name of the agent or group that has the problem, or "" for the crew itself; and the text, which names it too."""


def graph_problems(
    agents: Sequence[AnyAgent], groups: Sequence[Parallel], entry: Node | str | None
) -> Iterator[GraphProblem]:
    """All problems of a crew's graph."""
    if wrong := [*_wrong_types(agents, groups, entry)]:
        yield from (("", problem) for problem in wrong)
        return

    if not agents:
        yield "", "agents is empty; a crew needs at least one agent"
        return

    yield from _name_problems(agents, groups)
    members: list[Node] = [*agents, *groups]
    nodes = {node.name: node for node in members}
    tool_agents = {id(agent): agent for agent in _agents_used_as_tools(agents) if not any(agent is a for a in agents)}
    yield from _tool_agent_name_problems([*tool_agents.values()], nodes)
    yield from item_problems([*members, *tool_agents.values()], entry if entry is not None else agents[0].name)
    unknown_targets = [*_reference_problems([*members, *tool_agents.values()], nodes, entry)]
    yield from unknown_targets

    for agent in (*agents, *tool_agents.values()):
        yield from _agent_problems(agent)

    for group in groups:
        yield from _group_problems(group, nodes)

    yield from _toolset_problems([*agents, *tool_agents.values()])

    if not unknown_targets:
        start = node_name(entry) if entry is not None else agents[0].name
        yield from _unreachable_nodes(nodes, start)
        yield from _endless_then_loops(nodes)


def _wrong_types(agents: object, groups: object, entry: object) -> Iterator[str]:
    for name, items in (("agents", agents), ("groups", groups)):
        if not isinstance(items, Sequence) or isinstance(items, str):
            yield f"{name} must be a list, not {abbreviate(items)}"

    if entry is not None and not isinstance(entry, Agent | Parallel | str):
        yield f"entry must be an agent, a group or a name, not {abbreviate(entry)}"

    if not isinstance(agents, Sequence) or not isinstance(groups, Sequence):
        return

    for index, agent in enumerate(agents if not isinstance(agents, str) else ()):
        if not isinstance(agent, Agent):
            yield f"agents[{index}] must be an Agent, not {abbreviate(agent)}"

    for index, group in enumerate(groups if not isinstance(groups, str) else ()):
        if not isinstance(group, Parallel):
            yield f"groups[{index}] must be a Parallel, not {abbreviate(group)}"
        else:
            yield from value_problems(str, {f"groups[{index}].name": group.name})


def _agents_used_as_tools(agents: Sequence[AnyAgent]) -> Iterator[AnyAgent]:
    """The agents that these agents call as tools, and the agents that those call."""
    for agent in agents:
        called = [tool.agent for tool in agent.tools if isinstance(tool, AgentTool)]
        yield from called
        yield from _agents_used_as_tools(called)


def _tool_agent_name_problems(agents: Sequence[Agent], nodes: dict[str, Node]) -> Iterator[GraphProblem]:
    """Agents are looked up by name, so an agent used as a tool needs a unique one too."""
    for name, times in Counter(agent.name for agent in agents).items():
        if not NODE_NAME.fullmatch(name):
            yield name, f"the name {name!r} must be 1–128 of A–Z a–z 0–9 _ -"

        if times > 1 or name in nodes:
            yield name, f"the name {name!r} of an agent used as a tool is already taken; names must be unique"


def _name_problems(agents: Sequence[AnyAgent], groups: Sequence[Parallel]) -> Iterator[GraphProblem]:
    names = [agent.name for agent in agents] + [group.name for group in groups]

    for name, times in Counter(names).items():
        if not NODE_NAME.fullmatch(name):
            yield name, f"the name {name!r} must be 1–128 of A–Z a–z 0–9 _ -"

        if times > 1:
            yield name, f"the name {name!r} is used {times} times; names of agents and groups must be unique"


def _reference_problems(
    members: Sequence[Node], nodes: dict[str, Node], entry: Node | str | None
) -> Iterator[GraphProblem]:
    if entry is not None:
        yield from (("", problem) for problem in _reference_problem("the entry", entry, nodes))

    for node in members:
        for edge, target in outgoing_edges(node):
            problems = _reference_problem(f"{edge} of {node.name!r}", target, nodes)
            yield from ((node.name, problem) for problem in problems)


def _reference_problem(what: str, target: Named | str, nodes: dict[str, Node]) -> Iterator[str]:
    name = target if isinstance(target, str) else target.name

    if name not in nodes:
        yield f"{what} leads to {name!r}, which is not in the crew. {suggest(name, nodes)}"
    elif not isinstance(target, str) and nodes[name] is not target:
        yield f"{what} leads to a different object named {name!r}; use the one in the crew, or its name"


def _agent_problems(agent: AnyAgent) -> Iterator[GraphProblem]:
    problems = (*_model_problems(agent), *_tool_problems(agent), *_handoff_problems(agent), *_route_problems(agent))
    yield from ((agent.name, f"agent {agent.name!r}: {problem}") for problem in problems)


def _model_problems(agent: AnyAgent) -> Iterator[str]:
    example = "'openai:gpt-5-mini'"

    if agent.model in ("", None):
        yield f"model is required; pass a name such as {example} or a ScriptedProvider"

    for field_name, model in (("model", agent.model), ("backup", agent.backup)):
        if model is not None and not isinstance(model, str) and not _is_provider(model):
            yield f"{field_name} must be a name such as {example} or a provider, not {abbreviate(model)}"


def _tool_problems(agent: AnyAgent) -> Iterator[str]:
    names = [tool.name for tool in agent.tools if isinstance(tool, Tool | AgentTool)]
    transfers = [handoff.tool_name for handoff in agent_handoffs(agent)]

    for name, times in Counter(names + transfers).items():
        if times > 1:
            reason = "a tool and a handoff have it" if name in names and name in transfers else "names must be unique"
            yield f"{times} tools are named {name!r}; {reason}"

        if not TOOL_NAME.fullmatch(name):
            yield f"the tool name {name!r} must be 1–64 of A–Z a–z 0–9 _ -"


def _toolset_problems(agents: Sequence[AnyAgent]) -> Iterator[GraphProblem]:
    """A run freezes the tools of a toolset under its name, so that the name must be unique in the crew."""
    known: dict[str, Toolset] = {}

    for agent in agents:
        names = [used.name for used in agent.toolsets]

        for used in agent.toolsets:
            if not isinstance(used.name, str) or not TOOL_NAME.fullmatch(used.name):
                problem = f"the name of a toolset must be 1–64 of A–Z a–z 0–9 _ -, not {abbreviate(used.name)}"
                yield agent.name, f"agent {agent.name!r}: {problem}"
            elif known.setdefault(used.name, used) is not used or names.count(used.name) > 1:
                yield agent.name, f"two toolsets are named {used.name!r}; their names must be unique in the crew"


def _handoff_problems(agent: AnyAgent) -> Iterator[str]:
    for handoff in agent_handoffs(agent):
        if not callable(handoff.history) and handoff.history not in HANDOFF_MODES:
            modes = ", ".join(map(repr, HANDOFF_MODES))
            yield f"history= of a handoff must be {modes} or a function, not {abbreviate(handoff.history)}"

        if handoff.payload is not None and not is_model_class(handoff.payload):
            yield f"payload= of a handoff must be a subclass of pydantic.BaseModel, not {abbreviate(handoff.payload)}"


def _route_problems(agent: AnyAgent) -> Iterator[str]:
    for signal, times in Counter(route.signal for route in agent.routes).items():
        if not signal.strip():
            yield f"the signal of a route must not be blank, but is {signal!r}"
        elif times > 1:
            yield f"{times} routes have the signal {signal!r}; signals must be unique"


def _is_provider(model: object) -> bool:
    return not isinstance(model, type) and isinstance(model, Provider)


def _group_problems(group: Parallel, nodes: dict[str, Node]) -> Iterator[GraphProblem]:
    problems = (*_branch_problems(group, nodes), *_on_error_problems(group), *setting_problems(group))
    yield from ((group.name, f"group {group.name!r}: {problem}") for problem in problems)


def _branch_problems(group: Parallel, nodes: dict[str, Node]) -> Iterator[str]:
    if not group.branches:
        yield "branches is empty; a group needs at least one agent"

    for name in group.branch_names:
        if isinstance(nodes.get(name), Parallel):
            yield f"the branch {name!r} is a group; a branch must be an agent"


def _on_error_problems(group: Parallel) -> Iterator[str]:
    on_error: object = group.on_error

    match on_error:
        case Quorum(n=n):
            if problems := setting_problems(on_error):
                yield from (f"on_error=Quorum({n!r}): {problem}" for problem in problems)
            elif group.items is None and n > len(group.branches):
                yield f"on_error=Quorum({n}) must be at most {len(group.branches)}, the number of branches"
            elif group.items is not None and n > group.max_items:
                yield f"on_error=Quorum({n}) must be at most {group.max_items}, which is max_items"
        case "collect" | "fail_fast" | "first_success":
            pass
        case _:
            yield f"on_error must be 'collect', 'fail_fast', 'first_success' or Quorum(n), not {abbreviate(on_error)}"


def _unreachable_nodes(nodes: dict[str, Node], start: str) -> Iterator[GraphProblem]:
    reached = {start}
    pending = [start]

    while pending:
        for name in _next_nodes(nodes[pending.pop()]):
            if name in nodes and name not in reached:
                reached.add(name)
                pending.append(name)

    for name in nodes:
        if name not in reached:
            yield name, f"{name!r} can't be reached from {start!r}: no handoff, route, then, branch or tool leads to it"


def _next_nodes(node: Node) -> Iterable[str]:
    yield from (target if isinstance(target, str) else target.name for _, target in outgoing_edges(node))

    for called in called_agents(node):
        yield called.name
        yield from _next_nodes(called)


def _endless_then_loops(nodes: dict[str, Node]) -> Iterator[GraphProblem]:
    """Cycles of `then` that no reply can leave."""
    reported: set[str] = set()

    for name in nodes:
        chain: list[str] = []
        current: str | None = name

        while current is not None and current not in chain:
            chain.append(current)
            then = nodes[current].then
            # A function may always end the run.
            current = None if then is None or isinstance(then, Choice) else node_name(then)

        cycle = chain[chain.index(current) :] if current is not None else []

        if cycle and reported.isdisjoint(cycle) and not any(_has_exit(nodes[member], cycle) for member in cycle):
            reported.update(cycle)
            names = " → ".join([*cycle, cycle[0]])
            yield cycle[0], f"then forms an endless cycle: {names}; add a route that ends it"


def _has_exit(node: Node, cycle: Sequence[str]) -> bool:
    if not isinstance(node, Agent):
        return False

    targets = [route.target for route in node.routes] + [handoff.target for handoff in agent_handoffs(node)]
    return node.wait_for_signal or any(target is None or target not in cycle for target in targets)


def _shared_guardrail_names(crew: Crew) -> Iterator[str]:
    """A run refers to a guardrail by its name, so that an agent's must not have the name of one of the crew."""
    names = {one.name for one in crew.guardrails}

    for agent in crew.agents_by_name.values():
        for one in agent.guardrails:
            if one.name in names and one not in crew.guardrails:
                yield f"the crew and the agent {agent.name!r} have different guardrails named {one.name!r}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Crew(Generic[CrewDeps_contra, CrewOutput_co]):
    """Agents and groups, and the `entry` where a run starts (default: the first agent).

    Agents and groups that these lead to are members too: by handoffs, routes, `then`, branches and tools.
    `guardrails` check the input and the output of each run, and the calls of all agents.
    `Crew[Deps, Output]` is inferred from `agents` and `entry`; `Output` may be a union.

    Raises `DefinitionError` with all problems of the graph.
    """

    name: str = field(kw_only=False)
    agents: Sequence[Agent[CrewDeps_contra, CrewOutput_co]] = ()
    groups: Sequence[Parallel] = ()
    entry: Agent[CrewDeps_contra, CrewOutput_co] | Parallel | str | None = None
    guardrails: Sequence[Guardrail] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "agents", as_sequence(self.agents))
        object.__setattr__(self, "groups", as_sequence(self.groups))
        object.__setattr__(self, "guardrails", as_sequence(self.guardrails))
        problems = value_problems(str, {"name": self.name})

        if not [*_wrong_types(self.agents, self.groups, self.entry)]:
            agents, groups = collect_nodes(self.agents, self.groups, self.entry)
            object.__setattr__(self, "agents", agents)
            object.__setattr__(self, "groups", groups)

        found = graph_problems(self.agents, self.groups, self.entry)
        problems.extend(dict.fromkeys(problem for _, problem in found))
        problems.extend(guardrail_problems(self.guardrails))
        problems.extend([] if problems else _shared_guardrail_names(self))

        if problems:
            raise DefinitionError(f"Crew {abbreviate(self.name)}", problems)

    if not TYPE_CHECKING:

        def __class_getitem__(cls, parameters):
            """The class itself, as for `Agent`."""
            return cls

    @property
    def entry_name(self) -> str:
        return node_name(self.entry) if self.entry is not None else self.agents[0].name

    @property
    def agents_by_name(self) -> dict[str, AnyAgent]:
        """All agents by name, including those used as tools."""
        agents: dict[str, AnyAgent] = {agent.name: agent for agent in self.agents}
        pending: list[AnyAgent] = list(self.agents)

        while pending:
            for tool in pending.pop().tools:
                if isinstance(tool, AgentTool) and tool.agent.name not in agents:
                    agents[tool.agent.name] = tool.agent
                    pending.append(tool.agent)

        return agents
