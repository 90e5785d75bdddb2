"""The command `crew`: run a crew from the terminal."""

from __future__ import annotations

import argparse
import importlib.metadata
import io
import sys
from collections.abc import Sequence

from crew.cli.run_command import add_resume_parser, add_run_parser
from crew.cli.show_command import add_show_parser
from crew.cli.signals import Terminated
from crew.cli.simulate_command import add_simulate_parser
from crew.errors import ConfigError, CrewError, DefinitionError, InvalidInput, UnknownPause, UnknownRun

USAGE_ERRORS = (DefinitionError, ConfigError, InvalidInput, UnknownRun, UnknownPause)


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, dispatch, and turn errors into one clear line and an exit code."""
    parser = argparse.ArgumentParser(
        prog="crew",
        description="Run crews of LLM agents, with a history that is bounded after every append.",
        epilog="Try it offline: crew run config.yaml:greeter Hello",
    )
    parser.add_argument("--version", action="version", version=importlib.metadata.version("crew-executor"))
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    add_run_parser(commands)
    add_resume_parser(commands)
    add_show_parser(commands)
    add_simulate_parser(commands)
    given = _parse_arguments(parser, arguments)

    if given.command is None:
        parser.print_help()
        return 2

    _escape_unencodable_output()

    try:
        code: int = given.run(given)
        return code
    except CrewError as error:
        print(f"crew: {error}", file=sys.stderr)
        return 2 if isinstance(error, USAGE_ERRORS) else 1
    except KeyboardInterrupt as stop:
        print("crew: stopped", file=sys.stderr)
        return 143 if isinstance(stop, Terminated) else 130
    except BrokenPipeError:
        return 0  # who read our output has left


def _parse_arguments(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """What was given; the input of a run may stand after its options too, where argparse does not look for it."""
    given, rest = parser.parse_known_args(arguments)

    if rest and (len(rest) > 1 or rest[0].startswith("-") or getattr(given, "input", "") is not None):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")

    if rest:
        given.input = rest[0]

    return given


def _escape_unencodable_output() -> None:
    """An answer may hold letters that the terminal's encoding has not; they are spelled out instead."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.encoding.lower() != "utf-8":
        sys.stdout.reconfigure(errors="backslashreplace")
