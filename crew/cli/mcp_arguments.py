"""Declares the arguments of `crew mcp`; like `arguments.py`, it imports nothing of Crew."""

from __future__ import annotations

import argparse

from crew.cli.serve_arguments import port


def add_mcp_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the MCP server: its transport, its address and its token."""
    parser.add_argument("--http", action="store_true", help="serve streamable HTTP at /mcp instead of stdin and stdout")
    parser.add_argument(
        "--host", default="127.0.0.1", help="the address to listen at (default 127.0.0.1: this machine)"
    )
    parser.add_argument("--port", type=port, default=8001, help="the port (default 8001; 0: any free port)")
    parser.add_argument(
        "--token",
        metavar="SECRET",
        help="the bearer token that clients send (default: a new one, which is printed). Other users of this machine "
        "can see it: prefer the environment variable CREW_MCP_TOKEN",
    )
    parser.add_argument(
        "--insecure-no-token", action="store_true", help="accept requests without a token; only on loopback addresses"
    )
    parser.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="a host name under which clients reach the server, beside localhost; can be repeated",
    )
    parser.add_argument(
        "--allow-origin",
        action="append",
        default=[],
        metavar="URL",
        help="a web site, such as https://chat.example, whose pages may call the server; can be repeated",
    )
    # Runs are not on a Temporal server; commands for a run are printed with these options where they have a value.
    parser.set_defaults(temporal=None, namespace=None, task_queue=None)
