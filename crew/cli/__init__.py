"""The command `crew`: parses the arguments, runs a subcommand, and maps errors to exit codes."""

from __future__ import annotations

import argparse
import importlib
import io
import re
import sys
from collections.abc import Sequence
from difflib import get_close_matches

from crew.cli.arguments import create_parser
from crew.cli.escaped_output import escaped_output
from crew.cli.signals import Terminated
from crew.errors import ConfigError, CrewError, DefinitionError, InvalidInput, UnknownPause, UnknownRun

USAGE_ERRORS = (DefinitionError, ConfigError, InvalidInput, UnknownRun, UnknownPause)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand and return its exit code; an error is printed as one line."""
    parser = create_parser()
    args = _parse_arguments(parser, arguments)

    if args.command is None:
        parser.print_help()
        return 2

    _escape_unencodable_output()

    with escaped_output():
        return _run_command(args)


def _run_command(args: argparse.Namespace) -> int:
    try:
        module, _, name = args.function.partition(":")
        code: int = getattr(importlib.import_module(module), name)(args)
        return code
    except CrewError as error:
        print(f"crew: {error}", file=sys.stderr)
        return 2 if isinstance(error, USAGE_ERRORS) else 1
    except KeyboardInterrupt as interrupt:
        print("crew: stopped", file=sys.stderr)
        return 143 if isinstance(interrupt, Terminated) else 130
    except BrokenPipeError:
        return 0  # the reader of our output closed the pipe


def _parse_arguments(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the arguments; unlike plain argparse, accept the input of `crew run` after its options."""
    args, rest = parser.parse_known_args(arguments)
    input_missing = args.command == "run" and args.input is None

    if input_missing and len(rest) == 1 and not rest[0].startswith("-"):
        args.input = rest[0]
    elif rest:
        used: argparse.ArgumentParser = parser if args.command is None else args.subparser
        used.error(f"unrecognized arguments: {' '.join(rest)}{_option_hint(rest, used)}")

    return args


def _option_hint(rest: Sequence[str], parser: argparse.ArgumentParser) -> str:
    """Names the option that a misspelt one may have meant."""
    known = re.findall(r"--[a-z][a-z-]*", parser.format_usage())
    misspelt = [argument.partition("=")[0] for argument in rest if argument.startswith("--")]
    close = [name for option in misspelt for name in get_close_matches(option, known, n=1)]
    return f". Did you mean {', '.join(dict.fromkeys(close))}?" if close else ""


def _escape_unencodable_output() -> None:
    """Print characters that the terminal's encoding lacks as backslash escapes instead of raising."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.encoding.lower() != "utf-8":
        sys.stdout.reconfigure(errors="backslashreplace")
