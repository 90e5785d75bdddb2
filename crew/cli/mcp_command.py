"""`crew mcp`: serves crews as an MCP server, over stdin and stdout or over HTTP."""

from __future__ import annotations

import argparse
import os
import secrets
import socket
import sys
from importlib.util import find_spec

from crew.cli.escaped_output import terminal_streams
from crew.cli.executor_setup import build_executor, load_runnables, open_run_store, printed_warnings
from crew.cli.listening import is_loopback, listen
from crew.cli.run_command import command_line
from crew.cli.signals import run_until_signalled
from crew.cli.target import CONFIG_SUFFIXES
from crew.errors import DefinitionError
from crew.executor import CrewExecutor
from crew.mcp_server.crew_tools import CrewTools
from crew.mcp_server.serving import http_app, serve_http, serve_stdio

TOKEN_VARIABLE = "CREW_MCP_TOKEN"


def mcp_command(args: argparse.Namespace) -> int:
    """Serve the crews until the client closes its end, or a signal ends the process."""
    if find_spec("mcp") is None:
        raise DefinitionError("crew mcp", "the package mcp is not installed; run: pip install 'crew-executor[mcp]'")

    if args.insecure_no_token and not is_loopback(args.host):
        raise DefinitionError("--insecure-no-token", f"{args.host} is not a loopback address: use a token")

    runnables = load_runnables(args)
    store = open_run_store(args, runnables[0])

    try:
        with printed_warnings(args):
            executors = [build_executor(one, args, store, None) for one in runnables]

        tools = CrewTools(
            {executor.plan.crew.name: executor for executor in executors},
            keeps_runs=args.location is not None,
            resume_hint=lambda name, run_id: command_line(args, "resume", _target(args.target, name), run_id),
        )

        if args.http:
            with listen("crew mcp", args.host, args.port) as listening:
                run_until_signalled(_serve_http(executors, tools, args, listening))
        else:
            # The client reads stdout; the SDK sends what the crew prints to stderr.
            with terminal_streams():
                run_until_signalled(_serve_stdio(executors, tools))
    finally:
        if store is not None:
            store.close()

    return 0


def _target(target: str, crew: str) -> str:
    """The target of one crew; a configuration file without a name is that of all its crews."""
    return f"{target}:{crew}" if target.endswith(CONFIG_SUFFIXES) else target


async def _serve_stdio(executors: list[CrewExecutor], tools: CrewTools) -> None:
    try:
        await serve_stdio(tools)
    finally:
        await _close(executors)


async def _serve_http(
    executors: list[CrewExecutor], tools: CrewTools, args: argparse.Namespace, listening: socket.socket
) -> None:
    given = args.token or os.environ.get(TOKEN_VARIABLE)
    token = None if args.insecure_no_token else given or secrets.token_urlsafe(24)
    hosts = (*args.allow_host, f"[{args.host}]" if ":" in args.host else args.host)
    app = http_app(tools, token=token, hosts=hosts, origins=args.allow_origin)

    def report() -> None:
        address = f"http://{hosts[-1]}:{listening.getsockname()[1]}/mcp"
        print(f"crew: serving {', '.join(e.plan.crew.name for e in executors)} at {address}", file=sys.stderr)

        if token is not None and not given:
            print(f"crew: token: {token}", file=sys.stderr, flush=True)

    try:
        await serve_http(app, tools, listening, report)
    finally:
        await _close(executors)


async def _close(executors: list[CrewExecutor]) -> None:
    for executor in executors:
        await executor.aclose()
