"""`crew show`: the crew's graph as a picture."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from crew.agents.agent import agent_handoffs, node_name
from crew.agents.crew import Crew
from crew.cli.target import TARGET_HELP, load_crew


def add_show_parser(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "show",
        help="draw a crew as a Mermaid graph",
        description="Check a crew and print its graph in Mermaid, which GitHub and many editors draw.",
        epilog="Example: crew show examples/demo.py > crew.mmd",
    )
    parser.add_argument("target", help=TARGET_HELP)
    parser.set_defaults(run=show_command)


def show_command(given: argparse.Namespace) -> int:
    """Print the graph."""
    print("\n".join(mermaid(load_crew(given.target))))
    return 0


def mermaid(crew: Crew) -> Iterator[str]:
    """The lines of the graph: agents as boxes, groups as hexagons, ways as arrows."""
    yield "flowchart LR"
    yield f"  start(( )) --> {crew.entry_name}"

    for agent in crew.agents_by_name.values():
        yield f"  {agent.name}[{agent.name}]"
        yield from (f"  {agent.name} -- handoff --> {handoff.target}" for handoff in agent_handoffs(agent))
        yield from (f'  {agent.name} -- "{_escape(r.signal)}" --> {r.target or "done((end))"}' for r in agent.routes)
        yield from (f"  {agent.name} -. tool .-> {used.agent.name}" for used in agent.tools if hasattr(used, "agent"))

        if agent.then is not None:
            yield f"  {agent.name} -- then --> {node_name(agent.then)}"

    for group in crew.groups:
        yield f"  {group.name}{{{{{group.name}}}}}"
        yield from (f"  {group.name} --> {name}" for name in group.branch_names)

        if group.then is not None:
            yield f"  {group.name} -- then --> {node_name(group.then)}"


def _escape(text: str) -> str:
    return text.replace('"', "'").replace("[", "#91;").replace("]", "#93;")
