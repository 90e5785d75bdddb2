"""`crew resume`: carry on a run that a file kept."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import Any

from crew.cli.run import EXITS, add_options, carry, read_answer
from crew.cli.target import HELP
from crew.errors import DefinitionError, UnknownPause
from crew.runs import pauses
from crew.store import SQLiteStore


def add_parser(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "resume",
        help="carry on a run that was paused, interrupted or killed",
        description="Carry on a run that `crew run --store FILE` kept. Nothing whose result was committed is repeated.",
        epilog=f"{EXITS} Example: crew resume crew.py RUN --store runs.db --answer 'RUN:call_1=yes'",
    )
    parser.add_argument("target", help=HELP)
    parser.add_argument("run_id", help="the run's id")
    parser.add_argument(
        "--answer", action="append", default=[], metavar="PAUSE=WORDS", help="yes, no, why not, or what is asked for"
    )
    add_options(parser)
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    """Resume it."""
    if given.store is None:
        raise DefinitionError("crew resume", "--store FILE says where the run was kept")

    if not Path(given.store).is_file():
        raise DefinitionError(
            "crew resume", f"there is no file {given.store!r}; --store FILE says where the run was kept"
        )

    answers = _answers(given)
    return carry(given, lambda executor: executor.resume_stream(given.run_id, answers))


def _answers(given: argparse.Namespace) -> dict[str, Any]:
    store = SQLiteStore(given.store)

    try:
        pending = {pause.id: pause for pause in pauses(asyncio.run(store.load(given.run_id)).state)}
    finally:
        store.close()

    found: dict[str, Any] = {}

    for pair in given.answer:
        id, _, words = pair.partition("=")

        if id not in pending:
            raise UnknownPause(given.run_id, [id], [*pending])

        found[id] = read_answer(pending[id], words)

    return found
