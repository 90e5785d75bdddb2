"""A crew's graph in Mermaid."""

from __future__ import annotations

from collections.abc import Iterator

from crew.agents.agent import AgentTool, agent_handoffs, node_name
from crew.agents.choice import Choice
from crew.agents.crew import Crew
from crew.agents.edges import Node


def mermaid(crew: Crew) -> Iterator[str]:
    """The lines of the graph: agents as boxes, groups as hexagons, transitions as arrows."""
    yield "flowchart LR"
    yield f"  start(( )) --> {crew.entry_name}"

    for agent in crew.agents_by_name.values():
        called = [tool.agent for tool in agent.tools if isinstance(tool, AgentTool)]
        yield f"  {agent.name}[{agent.name}]"
        yield from (f"  {agent.name} -- handoff --> {handoff.target}" for handoff in agent_handoffs(agent))
        yield from (f'  {agent.name} -- "{_escape(r.signal)}" --> {r.target or "done((end))"}' for r in agent.routes)
        yield from (f"  {agent.name} -. tool .-> {other.name}" for other in called)

        yield from _then_edges(agent)

    for group in crew.groups:
        yield f"  {group.name}{{{{{group.name}}}}}"
        arrow = "-->" if group.items is None else "-- each item -->"
        yield from (f"  {group.name} {arrow} {name}" for name in group.branch_names)
        yield from _then_edges(group)


def _then_edges(node: Node) -> Iterator[str]:
    """The arrow of `then`; of a choice, dotted ones to each target and to the end, with the name of the function."""
    match node.then:
        case None:
            pass
        case Choice(name=name, target_names=targets):
            label = _escape(name)
            yield from (f'  {node.name} -. "{label}" .-> {target}' for target in (*targets, "done((end))"))
        case target:
            yield f"  {node.name} -- then --> {node_name(target)}"


def _escape(text: str) -> str:
    """The text with the characters that Mermaid reads, and all that are not printed, as character codes."""
    return "".join(char if char.isalnum() or char in " .,:;_-" else f"#{ord(char)};" for char in text)
