"""`crew run` and `crew resume`: run a crew, print its events, and ask the user where it pauses."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import shlex
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from crew.agents.crew import Crew
from crew.cli.signals import run_until_signalled
from crew.cli.simulate_command import parse_policy
from crew.cli.target import CONFIG_SUFFIXES, TARGET_HELP, Subparsers, load_crew
from crew.cli.terminal import Answer, ask_user, parse_answer, print_events
from crew.engine.stream import EventStream
from crew.errors import DefinitionError, RunError, UnknownPause
from crew.executor import CrewExecutor
from crew.runs.parameters import Limits
from crew.runs.result import RunResult
from crew.runs.state import pending_pauses
from crew.simulator.recording import read_recording
from crew.store.sqlite import SQLiteStore
from crew.telemetry.text_tree import Tree

EXIT_CODES_HELP = (
    "Exit codes: 0 completed, 1 failed, 2 wrong usage, 3 paused without a terminal to answer, 4 limit reached, "
    "130 Ctrl-C, 143 SIGTERM."
)
EXIT_CODES = {"completed": 0, "paused": 3, "limit": 4, "cancelled": 130}


def add_run_parser(subparsers: Subparsers) -> None:
    """Declare the arguments of `crew run`."""
    parser = subparsers.add_parser(
        "run",
        help="run a crew on an input",
        description="Run a crew. Events are printed to stderr, the answer to stdout. "
        "When the crew pauses, the command asks for your answer.",
        epilog=f"{EXIT_CODES_HELP} Example: crew run examples/hello.py 'Where is order 17?'",
    )
    parser.add_argument("target", help=TARGET_HELP)
    parser.add_argument("input", nargs="?", help="the task for the crew; read from standard input if omitted")
    parser.add_argument("--agent", help="the agent that starts (default: the crew's entry)")
    _add_run_options(parser)
    parser.set_defaults(run=run_command)


def add_resume_parser(subparsers: Subparsers) -> None:
    """Declare the arguments of `crew resume`."""
    parser = subparsers.add_parser(
        "resume",
        help="resume a run that was paused, interrupted or killed",
        description="Resume a run that `crew run --store FILE` saved. Committed steps are not repeated.",
        epilog=f"{EXIT_CODES_HELP} Example: crew resume crew.py RUN --store runs.db --answer 'RUN:call_1=yes'",
    )
    parser.add_argument("target", help=TARGET_HELP)
    parser.add_argument("run_id", help="the id of the run")
    parser.add_argument(
        "--answer",
        action="append",
        default=[],
        metavar="PAUSE=ANSWER",
        help="the answer to a pause: yes, no, a reason for no, or the requested text; can be repeated",
    )
    _add_run_options(parser)
    parser.set_defaults(run=resume_command)


def _add_run_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options that `crew run` and `crew resume` share."""
    parser.add_argument("--config", metavar="FILE", help="executor settings, in the format of config.yaml")
    parser.add_argument("--store", metavar="FILE", help="save the run in this SQLite file, so that it can be resumed")
    parser.add_argument(
        "--max-messages", type=int, metavar="N", help="max_messages_per_request: the bound of the history (default 50)"
    )
    parser.add_argument(
        "--history", metavar="POLICY", help="history policy, such as head_tail or rolling:limit=40 (default rolling)"
    )
    parser.add_argument("--rounds", type=int, metavar="N", help="maximum number of model calls (default 200)")
    parser.add_argument("--quiet", action="store_true", help="print only the answer")
    parser.add_argument("--stream", action="store_true", help="print the reply while the model generates it")
    parser.add_argument(
        "--trace", action="store_true", help="print the span tree at the end: time, tokens, cost, prunings"
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON instead of the answer")
    parser.add_argument("--record", metavar="FILE", help="write the transcript to this file, for `crew simulate`")


def run_command(args: argparse.Namespace) -> int:
    """Start a run and return the exit code."""
    text = args.input if args.input is not None else _read_input()
    # Chosen here, so that the resume command can be printed however the run ends.
    args.run_id = uuid.uuid4().hex
    return _run_and_report(
        args, lambda executor: executor.execute_stream(text.strip("\n"), agent=args.agent, run_id=args.run_id)
    )


def resume_command(args: argparse.Namespace) -> int:
    """Resume a run and return the exit code."""
    if args.store is None:
        raise DefinitionError("crew resume", "pass --store FILE, the file in which the run was saved")

    if not Path(args.store).is_file():
        raise DefinitionError(
            "crew resume", f"no such file: {args.store!r}; pass --store FILE, the file in which the run was saved"
        )

    answers = _parse_answers(args)
    return _run_and_report(args, lambda executor: executor.resume_stream(args.run_id, answers))


def _read_input() -> str:
    if sys.stdin is None:
        raise DefinitionError("crew run", "no input: pass it as an argument or on standard input")

    if sys.stdin.isatty():
        print("crew: type the input, then press Ctrl-D on an empty line", file=sys.stderr)

    return sys.stdin.read()


def _parse_answers(args: argparse.Namespace) -> dict[str, Answer]:
    store = SQLiteStore(args.store)

    try:
        pending = {pause.id: pause for pause in pending_pauses(asyncio.run(store.load(args.run_id)).state)}
    finally:
        store.close()

    answers: dict[str, Answer] = {}

    for option in args.answer:
        pause_id, _, text = option.partition("=")

        if pause_id not in pending:
            raise UnknownPause(args.run_id, [pause_id], [*pending])

        answers[pause_id] = parse_answer(pending[pause_id], text)

    return answers


def _run_and_report(args: argparse.Namespace, start: Callable[[CrewExecutor], EventStream]) -> int:
    """Start or resume a run, print its events and its result."""
    crew = load_crew(args.target)
    tree = Tree() if args.trace else None
    store = None if args.store is None else _open_store(args.store)

    try:
        result = run_until_signalled(_run_interactively(_build_executor(crew, args, store, tree), start, args))
    except (KeyboardInterrupt, RunError):
        if args.store is not None:
            _print_resume_command(args)

        raise
    finally:
        if tree is not None:
            print(tree, file=sys.stderr)

        if store is not None:
            store.close()

    return _print_result(result, args)


def _open_store(path: str) -> SQLiteStore:
    if not path or Path(path).is_dir():
        raise DefinitionError("--store", f"expected a file such as runs.db, not {path!r}")

    if not Path(path).parent.is_dir():
        raise DefinitionError("--store", f"no such folder: {str(Path(path).parent)!r}; create it first")

    return SQLiteStore(path)


def _build_executor(crew: Crew, args: argparse.Namespace, store: SQLiteStore | None, tree: Tree | None) -> CrewExecutor:
    options: dict[str, Any] = {
        "max_messages_per_request": args.max_messages,
        "history": None if args.history is None else parse_policy(args.history)[1],
        "limits": None if args.rounds is None else Limits(rounds=args.rounds),
        "store": store,
        "observers": None if tree is None else [tree],
    }
    chosen = {name: value for name, value in options.items() if value is not None}
    target = args.target.partition(":")[0]
    config = args.config if args.config is not None or not target.endswith(CONFIG_SUFFIXES) else target
    return CrewExecutor(crew, **chosen) if config is None else CrewExecutor.from_config(config, crew, **chosen)


async def _run_interactively(
    executor: CrewExecutor, start: Callable[[CrewExecutor], EventStream], args: argparse.Namespace
) -> RunResult:
    """Run to the end; where the run pauses and standard input is a terminal, ask the user and resume."""
    async with executor:
        result = await print_events(start(executor), args)

        while result.stop_reason == "paused" and sys.stdin is not None and sys.stdin.isatty():
            try:
                answers = {pause.id: ask_user(pause) for pause in result.pauses}
            except EOFError:
                break  # Ctrl-D: the user does not answer

            result = await print_events(executor.resume_stream(result.run_id, answers), args)

    if result.stop_reason == "paused":
        _print_pauses(result, args)

    return result


def _print_pauses(result: RunResult, args: argparse.Namespace) -> None:
    for pause in result.pauses:
        print(f"crew: waiting for an answer to {pause.id} ({pause.reason}): {pause.text}", file=sys.stderr)

    if args.store is None:
        print("crew: The run was not saved; pass --store FILE to make it resumable.", file=sys.stderr)
    else:
        samples = {"approval": "yes", "input": "TEXT", "in_doubt": "skip"}
        _print_resume_command(args, *(f"--answer={pause.id}={samples[pause.reason]}" for pause in result.pauses))


def _print_resume_command(args: argparse.Namespace, *answers: str) -> None:
    """Print the command that resumes the run with the same settings."""
    settings = {
        "--store": args.store,
        "--config": args.config,
        "--max-messages": args.max_messages,
        "--history": args.history,
        "--rounds": args.rounds,
    }
    options = [str(part) for option in settings.items() if option[1] is not None for part in option]
    command = shlex.join(["crew", "resume", args.target, args.run_id, *options, *answers])
    print(f"crew: resume with: {command}", file=sys.stderr)


def _print_result(result: RunResult, args: argparse.Namespace) -> int:
    """Print the answer, write the transcript, and return the exit code."""
    written = "answer"

    try:
        print(
            json.dumps(_result_json(result), ensure_ascii=False, indent=2) if args.json else result.output, flush=True
        )
        written = "transcript"

        if args.record is not None:
            read_recording(result).save(args.record)
    except BrokenPipeError:
        raise  # the reader of our output closed the pipe; main() handles it
    except OSError as error:
        print(f"crew: can't write the {written}: {error}", file=sys.stderr)
        return 1

    return EXIT_CODES.get(result.stop_reason, 1)


def _result_json(result: RunResult) -> dict[str, object]:
    output = result.output
    return {
        "output": output if isinstance(output, str) else output.model_dump(mode="json"),
        "stop_reason": result.stop_reason,
        "run_id": result.run_id,
        "trace_id": result.trace_id,
        "agent": result.agent,
        "usage": dataclasses.asdict(result.usage),
        "messages": result.metrics.messages,
        "limit": result.metrics.limit,
        "prunings": result.metrics.prunings,
        "messages_pruned": result.metrics.messages_pruned,
        "pauses": [{"id": pause.id, "reason": pause.reason, "text": pause.text} for pause in result.pauses],
    }
