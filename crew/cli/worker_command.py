"""`crew worker`: drives runs of a crew on a Temporal server."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from crew import temporal
from crew.agents.crew import Crew
from crew.cli.executor_setup import executor_settings, find_store, printed_warnings
from crew.cli.signals import run_until_signalled
from crew.cli.target import load_targets
from crew.cli.temporal_client import connect
from crew.errors import DefinitionError, describe
from crew.executor import CrewExecutor
from crew.store.location import open_store


def worker_command(args: argparse.Namespace) -> int:
    """Work until a signal stops the process; returns the exit code."""
    find_store(args)
    args.quiet = False

    if args.temporal is None:
        raise DefinitionError("--temporal", "required: the address of the server, such as 127.0.0.1:7233")

    if args.location is None:
        raise DefinitionError("--store", "required: workers and clients share the store")

    loaded = load_targets(args.target, args.allow_modules, selects_all=False)
    crew = loaded.targets[0]

    if isinstance(crew, CrewExecutor):
        raise DefinitionError(args.target, "a worker builds its own executor: name a crew or an agent")

    store = open_store(args.location, args.store_name)

    try:
        run_until_signalled(_work(crew, args, *executor_settings(args, store, None)))
    finally:
        store.close()

    return 0


async def _work(crew: Crew, args: argparse.Namespace, config: str | None, options: dict[str, Any]) -> None:
    client = await connect(args)

    with printed_warnings(args):
        worker = (
            temporal.CrewWorker(client, crew, task_queue=args.task_queue, **options)
            if config is None
            else temporal.CrewWorker.from_config(client, config, crew, task_queue=args.task_queue, **options)
        )

    print(
        f"crew: worker of {crew.name} on {args.temporal}, task queue {worker.task_queue}",
        file=sys.stderr,
        flush=True,
    )

    try:
        await worker.run()
    except RuntimeError as error:  # the SDK's error if the server refuses the worker
        raise DefinitionError("crew worker", f"stopped: {describe(error)}") from error
