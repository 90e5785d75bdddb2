"""`crew show`: prints a crew's graph in Mermaid."""

from __future__ import annotations

import argparse

from crew.agents.mermaid import mermaid
from crew.cli.target import load_crew


def show_command(args: argparse.Namespace) -> int:
    """Print the graph."""
    print("\n".join(mermaid(load_crew(args.target, args.allow_modules))))
    return 0
