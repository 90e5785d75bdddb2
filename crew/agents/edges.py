"""The edges of a crew's graph, and the agents and groups that they reach."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeGuard

from pydantic import BaseModel

from crew.agents.agent import Agent, AgentTool, AnyAgent, Parallel, agent_handoffs, node_name
from crew.agents.choice import Choice, Named

Node = AnyAgent | Parallel


def then_targets(node: Node) -> tuple[Named | str, ...]:
    """The agents and groups that may follow by `then`."""
    match node.then:
        case None:
            return ()
        case Choice(targets=targets):
            return tuple(targets)
        case target:
            return (target,)


def outgoing_edges(node: Node) -> Iterator[tuple[str, Named | str]]:
    """The targets that may follow a node, each with the kind of its edge."""
    if isinstance(node, Agent):
        yield from (("a handoff", handoff.to) for handoff in agent_handoffs(node))
        yield from ((f"the route {route.signal!r}", route.to) for route in node.routes if route.to is not None)
    else:
        yield from (("a branch", branch) for branch in node.branches)

    yield from (("then", target) for target in then_targets(node))


def called_agents(node: Node) -> tuple[AnyAgent, ...]:
    """The agents that a node calls as tools."""
    return tuple(tool.agent for tool in node.tools if isinstance(tool, AgentTool)) if isinstance(node, Agent) else ()


def collect_nodes(
    agents: Sequence[AnyAgent], groups: Sequence[Parallel], entry: Node | str | None
) -> tuple[tuple[AnyAgent, ...], tuple[Parallel, ...]]:
    """The listed agents and groups, and then those that they reach, in the order in which they are reached.

    An object whose name is taken is left out: the checks of the graph report it. Agents that are called as tools are
    not members of the crew by that alone; what they lead to is.
    """
    found: list[Node] = [*agents, *groups]
    names = {node.name for node in found}

    if isinstance(entry, Agent | Parallel) and entry.name not in names:
        found.append(entry)
        names.add(entry.name)

    pending, tools_seen = [*found], set[int]()

    while pending:
        node = pending.pop(0)

        for target in (target for _, target in outgoing_edges(node)):
            if isinstance(target, Agent | Parallel) and target.name not in names:
                names.add(target.name)
                found.append(target)
                pending.append(target)

        for called in called_agents(node):
            if id(called) not in tools_seen:
                tools_seen.add(id(called))
                pending.append(called)

    return (
        tuple(node for node in found if isinstance(node, Agent)),
        tuple(node for node in found if isinstance(node, Parallel)),
    )


def item_problems(members: Sequence[Node], entry: Node | str | None) -> Iterator[tuple[str, str]]:
    """Fan-outs over a field that an edge to them does not provide: the name of the group, and the problem."""
    groups: dict[str, Parallel] = {
        node.name: node for node in members if isinstance(node, Parallel) and isinstance(node.items, str)
    }

    for name, mapped in groups.items():
        if entry is not None and node_name(entry) == name:
            yield name, f"group {name!r}: items={mapped.items!r} names a field, but the run starts here; use a function"

    for node in members:
        for edge, target, fields in _edges_with_fields(node):
            group = groups.get(target)

            if group is not None and group.items not in fields:
                has = f"has the fields {', '.join(fields)}" if fields else "has none"
                problem = f"items={group.items!r} must be a field of {edge} of {node.name!r}, which {has}"
                yield target, f"group {target!r}: {problem}"


def _edges_with_fields(node: Node) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """What leads from a node to a target: a payload or an output, with its fields."""
    if isinstance(node, Agent):
        for handoff in agent_handoffs(node):
            payload: object = handoff.payload
            fields = tuple(payload.model_fields) if is_model_class(payload) else ()
            yield "the payload of the handoff", handoff.target, fields

        schema = {} if node.output_type is None or node.output_type.wrapper else node.output_type.spec.schema
        fields = tuple(schema.get("properties", ()))
        targets = [route.to for route in node.routes if route.to is not None]
        yield from (("the output", _name(target), fields) for target in (*targets, *then_targets(node)))
    else:
        yield from (("the join", _name(target), ()) for target in then_targets(node))


def is_model_class(value: object) -> TypeGuard[type[BaseModel]]:
    """Whether the value is a class of pydantic models."""
    return isinstance(value, type) and issubclass(value, BaseModel)


def _name(target: Named | str) -> str:
    return target if isinstance(target, str) else target.name
