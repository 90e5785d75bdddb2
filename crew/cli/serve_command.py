"""`crew serve`: serves crews over HTTP until Ctrl-C or SIGTERM."""

from __future__ import annotations

import argparse
import json
import os
import secrets
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from crew.cli.executor_setup import Runnable, load_runnables, open_executor, open_run_store
from crew.cli.listening import is_loopback, listen
from crew.cli.signals import run_until_signalled
from crew.errors import DefinitionError
from crew.runs.event_text import pluralize
from crew.runs.interfaces import RunStore, StoredRunInfo
from crew.server.access import Token
from crew.server.application import build_app, create_context
from crew.server.recovery import interrupted_runs, resume_runs
from crew.server.serve_process import create_server
from crew.server.server_context import ServerContext
from crew.server.server_settings import ServerSettings
from crew.store.memory import MemoryStore
from crew.telemetry.logs import printed_log

TOKEN_VARIABLE = "CREW_SERVE_TOKEN"


def serve_command(args: argparse.Namespace) -> int:
    """Serve the crews until a signal ends the process."""
    if args.insecure_no_token and not is_loopback(args.host):
        raise DefinitionError("--insecure-no-token", f"{args.host} is not a loopback address: use tokens")

    runnables = load_runnables(args)

    if args.resume and args.location is None:
        text = "there are no runs to resume: without --store FILE they are in memory and end with the process"
        raise DefinitionError("--resume", text)

    opened = open_run_store(args, runnables[0])
    store = MemoryStore() if opened is None else opened

    try:
        with _printed_log(args), listen("crew serve", args.host, args.port) as listening:
            run_until_signalled(_serve(runnables, store, args, listening))
    finally:
        if opened is not None:
            opened.close()

    return 0


def _printed_log(args: argparse.Namespace) -> AbstractContextManager[None]:
    return nullcontext() if args.log_level == "off" else printed_log(args.log_level.upper())


async def _serve(
    runnables: Sequence[Runnable], store: RunStore, args: argparse.Namespace, listening: socket.socket
) -> None:
    executors = [await open_executor(one, store, None, args) for one in runnables]
    tokens = tuple(_tokens(args))
    secret = "" if tokens or args.insecure_no_token else secrets.token_urlsafe(24)
    settings = ServerSettings(
        tokens=(Token.of(secret),) if secret else tokens,
        insecure_no_token=args.insecure_no_token,
        allow_hosts=(*args.allow_host, args.host),
        allow_origins=tuple(args.allow_origin),
        max_runs_per_token=args.max_runs_per_token,
    )
    context = create_context(executors, settings)
    found = await interrupted_runs(context)  # before the service listens: the store may be unreachable

    async def report() -> None:
        print_address(context, args, listening, secret)
        await _report_interrupted(context, found, resumes=args.resume)

    context.hub.is_recovering = args.resume
    await create_server(build_app(context), context.hub, report).serve([listening])

    if args.temporal is None:  # runs on workers go on
        _report_stopped(context.hub.stopped_runs, is_stored=args.location is not None)


async def _report_interrupted(context: ServerContext, found: list[StoredRunInfo], *, resumes: bool) -> None:
    """List the runs that no process drives any more, and resume them if asked."""
    ids = [info.run_id for info in found]

    if not resumes:
        if found:
            advice = "resume them with --resume, or one with POST /runs/RUN/answers"
            _print(f"{pluralize(len(ids), 'interrupted run')}: {_listed(ids)}; {advice}")

        return

    errors = await resume_runs(context, found)

    if resumed := [id for id in ids if id not in errors]:
        _print(f"resumed {pluralize(len(resumed), 'interrupted run')}: {_listed(resumed)}")

    for run_id, error in errors.items():
        _print(f"can't resume run {run_id}: {error}")


def _report_stopped(ids: Sequence[str], *, is_stored: bool) -> None:
    """List the runs that the end of the service stopped."""
    if not ids:
        return

    kind = "interrupted run" if is_stored else "unfinished run"
    advice = "start the service with --resume to continue" if is_stored else "pass --store FILE to make runs resumable"
    _print(f"{pluralize(len(ids), kind)}: {_listed(ids)}; {advice}")


def _listed(ids: Sequence[str]) -> str:
    return ", ".join(ids[:10]) + (" …" if len(ids) > 10 else "")


def _print(text: str) -> None:
    print(f"crew: {text}", file=sys.stderr, flush=True)


def _tokens(args: argparse.Namespace) -> Iterator[Token]:
    """The tokens of the command line, of the environment and of the file."""
    yield from (Token.of(secret) for secret in args.token)

    if secret := os.environ.get(TOKEN_VARIABLE):
        yield Token.of(secret)

    if args.token_file is not None:
        yield from read_tokens(Path(args.token_file))


def read_tokens(path: Path) -> Iterator[Token]:
    """The tokens of a file with one JSON object in each line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise DefinitionError("--token-file", f"can't read {str(path)!r}: {reason}") from error

    if not any(line.strip() for line in lines):
        raise DefinitionError("--token-file", f"{str(path)!r} has no tokens")

    for number, line in enumerate(lines, 1):
        if line.strip():
            yield _read_token(line, f"--token-file {path}:{number}")


def _read_token(line: str, place: str) -> Token:
    try:
        entry = json.loads(line)
    except ValueError:
        entry = None  # the line is not shown: it may hold a secret

    if not isinstance(entry, dict) or not set(entry) <= {"token", "sha256", "principal", "scopes"}:
        keys = "token or sha256, principal, scopes"
        raise DefinitionError(place, f"expected a JSON object with the keys {keys}")

    if ("token" in entry) == ("sha256" in entry) or not isinstance(entry.get("principal"), str):
        raise DefinitionError(place, "expected either token or sha256, and the name of the principal")

    scopes = entry.get("scopes", ["run", "read", "approve"])

    if not isinstance(scopes, list) or not all(isinstance(scope, str) for scope in scopes):
        raise DefinitionError(place, 'scopes must be a list such as ["run", "read"]')

    try:
        if "token" in entry:
            return Token.of(str(entry["token"]), entry["principal"], scopes)

        return Token(str(entry["sha256"]), entry["principal"], frozenset(scopes))
    except DefinitionError as error:
        raise DefinitionError(place, error.problems) from error


def print_address(context: ServerContext, args: argparse.Namespace, listening: socket.socket, secret: str) -> None:
    """Print where the service listens, a link for the browser, and the token that this process made up, if any."""
    port = listening.getsockname()[1]
    host = f"[{args.host}]" if ":" in args.host else args.host
    address = f"serving {', '.join(context.executors)} at http://{host}:{port}"

    if args.insecure_no_token:
        _print(address)
    else:
        # The person who starts the service opens the link: it gets the token with the most rights.
        token = max(context.settings.tokens, key=lambda token: len(token.scopes))
        once = secrets.token_urlsafe(24)
        context.tokens.add_link(once, token)
        _print(f"{address}/?token={once}")

        if token.principal != "operator":
            _print(f"the address opens the inspector as {token.principal}, with {', '.join(sorted(token.scopes))}")

    if secret:
        _print(f"token for the API: {secret}")

    if args.location is None:
        _print("runs are in memory and end with this process; --store FILE keeps them")
