"""Builds the executors of a command from its target, its options and the configuration file."""

from __future__ import annotations

import argparse
import dataclasses
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from crew.agents.crew import Crew
from crew.cli.simulate_command import parse_policy
from crew.cli.target import CONFIG_SUFFIXES, load_targets
from crew.cli.temporal_client import check_unused, temporal_executor
from crew.config.build import executor_options
from crew.config.yaml_source import load
from crew.errors import DefinitionError
from crew.executor import CrewExecutor
from crew.runs.interfaces import RunStore
from crew.runs.parameters import Limits
from crew.store.location import OpenedStore, open_store
from crew.store.memory import MemoryStore
from crew.telemetry.text_tree import Tree

Runnable: TypeAlias = Crew | CrewExecutor
"""A crew, which the options of the command configure, or an executor of the user's file with its own settings."""

SETTINGS = ("store", "config", "max_messages", "history", "rounds", "temporal", "namespace", "task_queue", "trace")
"""The options that configure an executor."""


def load_runnable(args: argparse.Namespace) -> Runnable:
    """Load the crew or the executor that the target names, and add the location of its store to the arguments."""
    [runnable] = load_runnables(args, selects_all=False)
    return runnable


def load_runnables(args: argparse.Namespace, *, selects_all: bool = True) -> tuple[Runnable, ...]:
    """The same; with `selects_all`, all crews of a configuration file without a name."""
    loaded = load_targets(args.target, args.allow_modules, selects_all=selects_all)
    find_store(args)

    if loaded.unused_executor and not args.quiet:
        name = f"{args.target}:{loaded.unused_executor}"
        text = f"has a CrewExecutor, whose settings crew {args.command} does not use: to use them, pass {name}"
        print(f"! {args.target} {text}", file=sys.stderr)

    for executor in loaded.targets:
        if isinstance(executor, CrewExecutor):
            _check_no_settings(args)
            is_stored = not isinstance(executor.store, MemoryStore)
            args.location, args.store_name = args.target if is_stored else None, args.target

    return loaded.targets


def _check_no_settings(args: argparse.Namespace) -> None:
    """Raise `DefinitionError` for options that would change the settings of the user's executor."""
    for name in SETTINGS:
        if getattr(args, name, None) not in (None, False):
            text = f"{args.target} is a CrewExecutor, which has its own settings; change them there, or name its crew"
            raise DefinitionError(f"--{name.replace('_', '-')}", text)


def open_run_store(args: argparse.Namespace, runnable: Runnable) -> OpenedStore | None:
    """Open the store of the runs; None if they are in memory, or if the executor has its own store."""
    if args.location is None or isinstance(runnable, CrewExecutor):
        return None

    return open_store(args.location, args.store_name)


def find_store(args: argparse.Namespace) -> None:
    """Add the location of the store to the arguments: `--store`, else `store` in the configuration file, else None."""
    args.location, args.store_name = args.store, "--store"

    if args.store is None and (config := _config_file(args)) is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # they are printed when the executor is built
            options = executor_options(load(config), config)

        args.location, args.store_name = options["store"], f"{config}: store"


def _config_file(args: argparse.Namespace) -> str | None:
    target: str = args.target.partition(":")[0]
    config: str | None = args.config
    return target if config is None and target.endswith(CONFIG_SUFFIXES) else config


@contextmanager
def printed_warnings(args: argparse.Namespace) -> Iterator[None]:
    """Print warnings about settings like those of a run; a line of this program would not help the user."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield

    if not args.quiet:
        for text in dict.fromkeys(str(warning.message) for warning in caught):
            print(f"! {text}", file=sys.stderr)


def build_executor(crew: Runnable, args: argparse.Namespace, store: RunStore | None, tree: Tree | None) -> CrewExecutor:
    """The executor of a crew with the settings of the arguments, or the user's own executor."""
    if isinstance(crew, CrewExecutor):
        return crew

    config, chosen = executor_settings(args, store, tree)
    return CrewExecutor(crew, **chosen) if config is None else CrewExecutor.from_config(config, crew, **chosen)


def executor_settings(
    args: argparse.Namespace, store: RunStore | None, tree: Tree | None
) -> tuple[str | None, dict[str, Any]]:
    """The configuration file, if any, and the options of the executor that the arguments override."""
    config = _config_file(args)
    limits = Limits() if config is None else executor_options(load(config), config)["limits"]
    options: dict[str, Any] = {
        "max_messages_per_request": args.max_messages,
        "history": None if args.history is None else parse_policy(args.history)[1],
        "limits": None if args.rounds is None else dataclasses.replace(limits, rounds=args.rounds),
        "store": store,
        "observers": None if tree is None else [tree],
    }
    return config, {name: value for name, value in options.items() if value is not None}


async def open_executor(
    crew: Runnable, store: RunStore | None, tree: Tree | None, args: argparse.Namespace
) -> CrewExecutor:
    """The executor of this process, or with `--temporal` one whose runs workers drive."""
    with printed_warnings(args):
        if args.temporal is None or isinstance(crew, CrewExecutor):
            check_unused(args)
            return build_executor(crew, args, store, tree)

        return await temporal_executor(crew, args, *executor_settings(args, store, tree))
