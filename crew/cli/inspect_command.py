"""`crew inspect`: shows stored runs in the browser, read-only, until Ctrl-C or SIGTERM."""

from __future__ import annotations

import argparse
import asyncio
import secrets
import socket
import sys
import webbrowser
from collections.abc import Sequence
from functools import partial

from crew.agents.crew import Crew
from crew.cli.listening import listen
from crew.cli.signals import run_until_signalled
from crew.cli.target import load_crews
from crew.executor import CrewExecutor
from crew.runs.interfaces import RunReader
from crew.server.access import Token, TokenTable
from crew.server.application import build_app
from crew.server.hub import RunHub
from crew.server.inspector_routes import inspector_routes
from crew.server.runs_api import run_routes
from crew.server.serve_process import create_server
from crew.server.server_context import ServerContext
from crew.server.server_settings import ServerSettings
from crew.store.location import open_existing_store
from crew.telemetry.logs import printed_log

HOST = "127.0.0.1"


def inspect_command(args: argparse.Namespace) -> int:
    """Serve the inspector for the runs of a store until a signal ends the process."""
    crews = () if args.crew is None else load_crews(args.crew)
    store = open_existing_store(args.store, "crew inspect", read_only=True)

    try:
        with printed_log("WARNING"), listen("crew inspect", HOST, args.port) as listening:
            run_until_signalled(_serve(store, crews, args, listening))
    finally:
        store.close()

    return 0


async def _serve(store: RunReader, crews: Sequence[Crew], args: argparse.Namespace, listening: socket.socket) -> None:
    await store.runs(limit=1)  # before the service listens: the store may be unreachable
    token = Token.of(secrets.token_urlsafe(24), scopes=("read", "all"))
    # Without an executor the service only reads: it can neither answer a pause nor cancel a run.
    context = ServerContext(
        executors={},
        definitions={crew.name: CrewExecutor(crew).plan for crew in crews},
        reader=store,
        hub=RunHub(),
        settings=ServerSettings(tokens=(token,)),
        tokens=TokenTable((token,)),
    )
    application = build_app(context, (inspector_routes, run_routes))
    report = partial(_report, context, token, args, listening)
    await create_server(application, context.hub, report).serve([listening])


async def _report(context: ServerContext, token: Token, args: argparse.Namespace, listening: socket.socket) -> None:
    once = secrets.token_urlsafe(24)
    context.tokens.add_link(once, token)
    address = f"http://{HOST}:{listening.getsockname()[1]}/?token={once}"
    name = "the database" if args.store.startswith("postgres") else args.store  # its URL may hold a password
    print(f"crew: showing {name}, read-only, at {address}", file=sys.stderr, flush=True)

    if args.open:
        # A browser that is slow to start must not hold up the service.
        asyncio.get_running_loop().run_in_executor(None, webbrowser.open, address)
