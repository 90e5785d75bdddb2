"""`crew show`: prints a crew's graph in Mermaid."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from crew.agents.agent import AgentTool, agent_handoffs, node_name
from crew.agents.crew import Crew
from crew.cli.target import load_crew


def show_command(args: argparse.Namespace) -> int:
    """Print the graph."""
    print("\n".join(mermaid(load_crew(args.target, args.allow_modules))))
    return 0


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

        if agent.then is not None:
            yield f"  {agent.name} -- then --> {node_name(agent.then)}"

    for group in crew.groups:
        yield f"  {group.name}{{{{{group.name}}}}}"
        yield from (f"  {group.name} --> {name}" for name in group.branch_names)

        if group.then is not None:
            yield f"  {group.name} -- then --> {node_name(group.then)}"


def _escape(text: str) -> str:
    """The text with the characters that Mermaid reads, and all that are not printed, as character codes."""
    return "".join(char if char.isalnum() or char in " .,:;_-" else f"#{ord(char)};" for char in text)
