"""The crew that agents and groups form: a graph, checked as a whole when it is built."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from pydantic import BaseModel

from crew.agents.agent import Agent, AgentTool, Parallel, Quorum, agent_handoffs, node_name
from crew.errors import DefinitionError, suggest
from crew.tools.tool import TOOL_NAME, Tool

NODE_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")

HANDOFF_FILTERS = ("full", "text_only", "last", "none")

Node = Agent | Parallel


def graph_problems(agents: Sequence[Agent], groups: Sequence[Parallel], entry: Node | str | None) -> Iterator[str]:
    """Everything that is wrong with this graph."""
    if not agents:
        yield "it has no agents; give at least one"
        return

    if strangers := [*_wrong_types(agents, groups)]:
        yield from strangers
        return

    yield from _name_problems(agents, groups)
    members: list[Node] = [*agents, *groups]
    nodes = {node.name: node for node in members}
    called = {id(used): used for used in _agents_used_as_tools(agents) if not any(used is agent for agent in agents)}
    yield from _tool_agent_name_problems([*called.values()], nodes)
    dangling = [*_reference_problems([*members, *called.values()], nodes, entry)]
    yield from dangling

    for agent in (*agents, *called.values()):
        yield from _agent_problems(agent)

    for group in groups:
        yield from _group_problems(group, nodes)

    if not dangling:
        start = node_name(entry) if entry is not None else agents[0].name
        yield from _unreachable_nodes(nodes, start)
        yield from _endless_then_loops(nodes)


def _wrong_types(agents: Sequence[object], groups: Sequence[object]) -> Iterator[str]:
    for what, wanted, given in (("agents", Agent, agents), ("groups", Parallel, groups)):
        for index, member in enumerate(given):
            if not isinstance(member, wanted):
                yield f"{what}[{index}] must be of type {wanted.__name__}, not {member!r}"
            elif not isinstance(getattr(member, "name", None), str):
                yield f"{what}[{index}] must have a text as its name, not {getattr(member, 'name', None)!r}"


def _agents_used_as_tools(agents: Sequence[Agent]) -> Iterator[Agent]:
    """The agents that serve as tools, and those that serve these."""
    for agent in agents:
        used = [tool.agent for tool in agent.tools if isinstance(tool, AgentTool)]
        yield from used
        yield from _agents_used_as_tools(used)


def _tool_agent_name_problems(called: Sequence[Agent], nodes: dict[str, Node]) -> Iterator[str]:
    """Agents are found by their name: one that serves as a tool must not share it with another."""
    for name, times in Counter(agent.name for agent in called).items():
        if not NODE_NAME.fullmatch(name):
            yield f"the name {name!r} must be 1–128 of A–Z a–z 0–9 _ -"

        if times > 1 or name in nodes:
            yield f"the name {name!r} of an agent that serves as a tool is another one's too; each needs its own"


def _name_problems(agents: Sequence[Agent], groups: Sequence[Parallel]) -> Iterator[str]:
    names = [agent.name for agent in agents] + [group.name for group in groups]

    for name, times in Counter(names).items():
        if not NODE_NAME.fullmatch(name):
            yield f"the name {name!r} must be 1–128 of A–Z a–z 0–9 _ -"

        if times > 1:
            yield f"the name {name!r} is used {times} times; each agent and group needs its own"


def outgoing_edges(node: Node) -> Iterator[tuple[str, Node | str]]:
    """Where the work may go from here, and by which way."""
    if isinstance(node, Agent):
        yield from (("a handoff", handoff.to) for handoff in agent_handoffs(node))
        yield from ((f"the route {route.signal!r}", route.to) for route in node.routes if route.to is not None)
    else:
        yield from (("a branch", branch) for branch in node.branches)

    if node.then is not None:
        yield "then", node.then


def _reference_problems(members: Sequence[Node], nodes: dict[str, Node], entry: Node | str | None) -> Iterator[str]:
    if entry is not None:
        yield from _reference_problem("the entry", entry, nodes)

    for node in members:
        for way, target in outgoing_edges(node):
            yield from _reference_problem(f"{way} of {node.name!r}", target, nodes)


def _reference_problem(what: str, target: Node | str, nodes: dict[str, Node]) -> Iterator[str]:
    name = node_name(target)

    if name not in nodes:
        yield f"{what} leads to {name!r}, which is not in the crew. {suggest(name, nodes)}"
    elif not isinstance(target, str) and nodes[name] is not target:
        yield f"{what} leads to another object named {name!r} than the crew's; use the same one, or the name"


def _agent_problems(agent: Agent) -> Iterator[str]:
    if agent.model in ("", None):
        yield f"agent {agent.name!r} has no model; give one, such as model='openai:gpt-5-mini' or a ScriptedProvider"

    for which, model in (("model", agent.model), ("backup", agent.backup)):
        answers = callable(getattr(model, "complete", None)) and not isinstance(model, type)

        if model is not None and not isinstance(model, str) and not answers:
            yield (
                f"agent {agent.name!r}: {which} must be a name such as 'openai:gpt-5-mini' or a provider, not {model!r}"
            )

    output: object = agent.output

    if output is not None and not (isinstance(output, type) and issubclass(output, BaseModel)):
        yield f"agent {agent.name!r}: output must be a class made from pydantic's BaseModel, not {output!r}"

    names = [used.name for used in agent.tools if isinstance(used, Tool | AgentTool)]
    transfers = [handoff.tool_name for handoff in agent_handoffs(agent)]

    for name, times in Counter(names + transfers).items():
        if times > 1:
            clash = "a tool clashes with a handoff" if name in names and name in transfers else "the name is used twice"
            yield f"agent {agent.name!r} has {times} tools named {name!r}: {clash}"

        if not TOOL_NAME.fullmatch(name):
            yield f"agent {agent.name!r}: the tool name {name!r} must be 1–64 of A–Z a–z 0–9 _ -"

    for handoff in agent_handoffs(agent):
        if not callable(handoff.history) and handoff.history not in HANDOFF_FILTERS:
            known = ", ".join(map(repr, HANDOFF_FILTERS))
            yield f"agent {agent.name!r}: history= of a handoff must be {known} or a function, not {handoff.history!r}"

        if handoff.payload is not None and not _is_pydantic_model(handoff.payload):
            yield f"agent {agent.name!r}: payload= of a handoff must be a pydantic model, not {handoff.payload!r}"

    for signal, times in Counter(route.signal for route in agent.routes).items():
        if not signal.strip():
            yield f"agent {agent.name!r} has a route with a blank signal {signal!r}"
        elif times > 1:
            yield f"agent {agent.name!r} has {times} routes for {signal!r}; only the first would ever be taken"


def _is_pydantic_model(payload: object) -> bool:
    return isinstance(payload, type) and issubclass(payload, BaseModel)


def _group_problems(group: Parallel, nodes: dict[str, Node]) -> Iterator[str]:
    if not group.branches:
        yield f"group {group.name!r} has no branches; give at least one agent"

    for name in group.branch_names:
        if isinstance(nodes.get(name), Parallel):
            yield f"group {group.name!r} has the group {name!r} as a branch; a branch is an agent only"

    on_error: object = group.on_error

    match on_error:
        case Quorum(n=n):
            if not isinstance(n, int) or not 1 <= n <= len(group.branches):
                yield f"group {group.name!r}: Quorum({n!r}) must be 1–{len(group.branches)}, the number of its branches"
        case "collect" | "fail_fast" | "first_success":
            pass
        case other:
            known = "'collect', 'fail_fast', 'first_success' or Quorum(n)"
            yield f"group {group.name!r}: on_error must be {known}, not {other!r}"

    timeout, at_once = group.timeout, group.max_concurrency

    if timeout is not None and not (isinstance(timeout, int | float) and timeout > 0):
        yield f"group {group.name!r}: timeout must be a number of seconds above 0, not {timeout!r}"

    if at_once is not None and not (isinstance(at_once, int) and at_once >= 1):
        yield f"group {group.name!r}: max_concurrency must be a whole number from 1, not {at_once!r}"


def _unreachable_nodes(nodes: dict[str, Node], start: str) -> Iterator[str]:
    seen = {start}
    waiting = [start]

    while waiting:
        for name in _next_nodes(nodes[waiting.pop()]):
            if name in nodes and name not in seen:
                seen.add(name)
                waiting.append(name)

    for name in nodes:
        if name not in seen:
            yield f"{name!r} can't be reached from {start!r}: no handoff, route, then, branch or tool leads to it"


def _next_nodes(node: Node) -> Iterable[str]:
    yield from (node_name(target) for _, target in outgoing_edges(node))

    if isinstance(node, Agent):
        for used in node.tools:
            if isinstance(used, AgentTool):
                yield used.agent.name
                yield from _next_nodes(used.agent)


def _endless_then_loops(nodes: dict[str, Node]) -> Iterator[str]:
    """Chains of `then` that come back to where they began, where no reply can lead out of them."""
    told: set[str] = set()

    for name in nodes:
        chain: list[str] = []
        at: str | None = name

        while at is not None and at not in chain:
            chain.append(at)
            then = nodes[at].then
            at = None if then is None else node_name(then)

        circle = chain[chain.index(at) :] if at is not None else []

        if circle and told.isdisjoint(circle) and not any(_has_exit(nodes[member], circle) for member in circle):
            told.update(circle)
            yield f"then goes round without an exit: {' → '.join([*circle, circle[0]])}; add a route that ends it"


def _has_exit(node: Node, circle: Sequence[str]) -> bool:
    if not isinstance(node, Agent):
        return False

    targets = [route.target for route in node.routes] + [handoff.target for handoff in agent_handoffs(node)]
    return node.wait_for_signal or any(target is None or target not in circle for target in targets)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Crew:
    """Agents and groups, and who begins (by default the first). Building one checks the whole graph."""

    name: str = field(kw_only=False)
    agents: Sequence[Agent]
    groups: Sequence[Parallel] = ()
    entry: Agent | Parallel | str | None = None

    def __post_init__(self) -> None:
        if problems := [*dict.fromkeys(graph_problems(self.agents, self.groups, self.entry))]:
            raise DefinitionError(f"Crew {self.name!r}", problems)

    @property
    def entry_name(self) -> str:
        return node_name(self.entry) if self.entry is not None else self.agents[0].name

    @property
    def agents_by_name(self) -> dict[str, Agent]:
        """Every agent by name, those that serve as tools included."""
        found = {agent.name: agent for agent in self.agents}
        waiting = list(self.agents)

        while waiting:
            for used in waiting.pop().tools:
                if isinstance(used, AgentTool) and used.agent.name not in found:
                    found[used.agent.name] = used.agent
                    waiting.append(used.agent)

        return found
