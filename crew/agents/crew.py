"""`Crew`: the graph of agents and groups, checked as a whole when it is built."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import get_args

from pydantic import BaseModel

from crew.agents.agent import Agent, AgentTool, HandoffMode, Parallel, Quorum, agent_handoffs, as_sequence, node_name
from crew.errors import DefinitionError, abbreviate, suggest
from crew.interfaces import Provider
from crew.settings import setting_problems, value_problems
from crew.tools.tool import TOOL_NAME, Tool

NODE_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")

HANDOFF_MODES = get_args(HandoffMode)

Node = Agent | Parallel

GraphProblem = tuple[str, str]
"""The name of the agent or group that has the problem, or "" for the crew itself; and the text, which names it too."""


def graph_problems(
    agents: Sequence[Agent], groups: Sequence[Parallel], entry: Node | str | None
) -> Iterator[GraphProblem]:
    """All problems of a crew's graph."""
    if wrong_lists := [*_wrong_lists(agents, groups, entry)]:
        yield from (("", problem) for problem in wrong_lists)
        return

    if not agents:
        yield "", "agents is empty; a crew needs at least one agent"
        return

    if wrong_types := [*_wrong_types(agents, groups)]:
        yield from (("", problem) for problem in wrong_types)
        return

    yield from _name_problems(agents, groups)
    members: list[Node] = [*agents, *groups]
    nodes = {node.name: node for node in members}
    tool_agents = {id(agent): agent for agent in _agents_used_as_tools(agents) if not any(agent is a for a in agents)}
    yield from _tool_agent_name_problems([*tool_agents.values()], nodes)
    unknown_targets = [*_reference_problems([*members, *tool_agents.values()], nodes, entry)]
    yield from unknown_targets

    for agent in (*agents, *tool_agents.values()):
        yield from _agent_problems(agent)

    for group in groups:
        yield from _group_problems(group, nodes)

    if not unknown_targets:
        start = node_name(entry) if entry is not None else agents[0].name
        yield from _unreachable_nodes(nodes, start)
        yield from _endless_then_loops(nodes)


def _wrong_lists(agents: object, groups: object, entry: object) -> Iterator[str]:
    for name, items in (("agents", agents), ("groups", groups)):
        if not isinstance(items, Sequence) or isinstance(items, str):
            yield f"{name} must be a list, not {abbreviate(items)}"

    if entry is not None and not isinstance(entry, Agent | Parallel | str):
        yield f"entry must be an agent, a group or a name, not {abbreviate(entry)}"


def _wrong_types(agents: Sequence[object], groups: Sequence[object]) -> Iterator[str]:
    for index, agent in enumerate(agents):
        if not isinstance(agent, Agent):
            yield f"agents[{index}] must be an Agent, not {abbreviate(agent)}"

    for index, group in enumerate(groups):
        if not isinstance(group, Parallel):
            yield f"groups[{index}] must be a Parallel, not {abbreviate(group)}"
        else:
            yield from value_problems(str, {f"groups[{index}].name": group.name})


def _agents_used_as_tools(agents: Sequence[Agent]) -> Iterator[Agent]:
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


def _name_problems(agents: Sequence[Agent], groups: Sequence[Parallel]) -> Iterator[GraphProblem]:
    names = [agent.name for agent in agents] + [group.name for group in groups]

    for name, times in Counter(names).items():
        if not NODE_NAME.fullmatch(name):
            yield name, f"the name {name!r} must be 1–128 of A–Z a–z 0–9 _ -"

        if times > 1:
            yield name, f"the name {name!r} is used {times} times; names of agents and groups must be unique"


def outgoing_edges(node: Node) -> Iterator[tuple[str, Node | str]]:
    """The targets that may follow a node, each with the kind of its edge."""
    if isinstance(node, Agent):
        yield from (("a handoff", handoff.to) for handoff in agent_handoffs(node))
        yield from ((f"the route {route.signal!r}", route.to) for route in node.routes if route.to is not None)
    else:
        yield from (("a branch", branch) for branch in node.branches)

    if node.then is not None:
        yield "then", node.then


def _reference_problems(
    members: Sequence[Node], nodes: dict[str, Node], entry: Node | str | None
) -> Iterator[GraphProblem]:
    if entry is not None:
        yield from (("", problem) for problem in _reference_problem("the entry", entry, nodes))

    for node in members:
        for edge, target in outgoing_edges(node):
            problems = _reference_problem(f"{edge} of {node.name!r}", target, nodes)
            yield from ((node.name, problem) for problem in problems)


def _reference_problem(what: str, target: Node | str, nodes: dict[str, Node]) -> Iterator[str]:
    name = node_name(target)

    if name not in nodes:
        yield f"{what} leads to {name!r}, which is not in the crew. {suggest(name, nodes)}"
    elif not isinstance(target, str) and nodes[name] is not target:
        yield f"{what} leads to a different object named {name!r}; use the one in the crew, or its name"


def _agent_problems(agent: Agent) -> Iterator[GraphProblem]:
    problems = (*_model_problems(agent), *_tool_problems(agent), *_handoff_problems(agent), *_route_problems(agent))
    yield from ((agent.name, f"agent {agent.name!r}: {problem}") for problem in problems)


def _model_problems(agent: Agent) -> Iterator[str]:
    example = "'openai:gpt-5-mini'"

    if agent.model in ("", None):
        yield f"model is required; pass a name such as {example} or a ScriptedProvider"

    for field_name, model in (("model", agent.model), ("backup", agent.backup)):
        if model is not None and not isinstance(model, str) and not _is_provider(model):
            yield f"{field_name} must be a name such as {example} or a provider, not {abbreviate(model)}"

    if agent.output is not None and not _is_pydantic_model(agent.output):
        yield f"output must be a subclass of pydantic.BaseModel, not {abbreviate(agent.output)}"


def _tool_problems(agent: Agent) -> Iterator[str]:
    names = [tool.name for tool in agent.tools if isinstance(tool, Tool | AgentTool)]
    transfers = [handoff.tool_name for handoff in agent_handoffs(agent)]

    for name, times in Counter(names + transfers).items():
        if times > 1:
            reason = "a tool and a handoff have it" if name in names and name in transfers else "names must be unique"
            yield f"{times} tools are named {name!r}; {reason}"

        if not TOOL_NAME.fullmatch(name):
            yield f"the tool name {name!r} must be 1–64 of A–Z a–z 0–9 _ -"


def _handoff_problems(agent: Agent) -> Iterator[str]:
    for handoff in agent_handoffs(agent):
        if not callable(handoff.history) and handoff.history not in HANDOFF_MODES:
            modes = ", ".join(map(repr, HANDOFF_MODES))
            yield f"history= of a handoff must be {modes} or a function, not {abbreviate(handoff.history)}"

        if handoff.payload is not None and not _is_pydantic_model(handoff.payload):
            yield f"payload= of a handoff must be a subclass of pydantic.BaseModel, not {abbreviate(handoff.payload)}"


def _route_problems(agent: Agent) -> Iterator[str]:
    for signal, times in Counter(route.signal for route in agent.routes).items():
        if not signal.strip():
            yield f"the signal of a route must not be blank, but is {signal!r}"
        elif times > 1:
            yield f"{times} routes have the signal {signal!r}; signals must be unique"


def _is_provider(model: object) -> bool:
    return not isinstance(model, type) and isinstance(model, Provider)


def _is_pydantic_model(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, BaseModel)


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
            elif n > len(group.branches):
                yield f"on_error=Quorum({n}) must be at most {len(group.branches)}, the number of branches"
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
    yield from (node_name(target) for _, target in outgoing_edges(node))

    if isinstance(node, Agent):
        for tool in node.tools:
            if isinstance(tool, AgentTool):
                yield tool.agent.name
                yield from _next_nodes(tool.agent)


def _endless_then_loops(nodes: dict[str, Node]) -> Iterator[GraphProblem]:
    """Cycles of `then` that no reply can leave."""
    reported: set[str] = set()

    for name in nodes:
        chain: list[str] = []
        current: str | None = name

        while current is not None and current not in chain:
            chain.append(current)
            then = nodes[current].then
            current = None if then is None else node_name(then)

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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Crew:
    """Agents and groups, and the `entry` where a run starts (default: the first agent).

    Raises `DefinitionError` with all problems of the graph.
    """

    name: str = field(kw_only=False)
    agents: Sequence[Agent]
    groups: Sequence[Parallel] = ()
    entry: Agent | Parallel | str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "agents", as_sequence(self.agents))
        object.__setattr__(self, "groups", as_sequence(self.groups))
        problems = value_problems(str, {"name": self.name})
        found = graph_problems(self.agents, self.groups, self.entry)
        problems.extend(dict.fromkeys(problem for _, problem in found))

        if problems:
            raise DefinitionError(f"Crew {abbreviate(self.name)}", problems)

    @property
    def entry_name(self) -> str:
        return node_name(self.entry) if self.entry is not None else self.agents[0].name

    @property
    def agents_by_name(self) -> dict[str, Agent]:
        """All agents by name, including those used as tools."""
        agents = {agent.name: agent for agent in self.agents}
        pending = list(self.agents)

        while pending:
            for tool in pending.pop().tools:
                if isinstance(tool, AgentTool) and tool.agent.name not in agents:
                    agents[tool.agent.name] = tool.agent
                    pending.append(tool.agent)

        return agents
