"""`crew run`: run a crew, watch it, and answer what it asks."""

from __future__ import annotations

import argparse
import asyncio
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
from crew.cli.target import CONFIG_SUFFIXES, TARGET_HELP, load_crew
from crew.cli.terminal import _ask_person, _print_events, parse_answer
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
    "Exit codes: 0 completed, 1 failed, 2 wrong usage, 3 paused (nobody to answer), 4 a limit, 130 Ctrl-C, 143 SIGTERM."
)
EXIT_CODES = {"completed": 0, "paused": 3, "limit": 4, "cancelled": 130}


def add_run_parser(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "run",
        help="run a crew on an input",
        description="Run a crew. What happens goes to stderr, the answer to stdout; where the crew pauses, it asks.",
        epilog=f"{EXIT_CODES_HELP} Example: crew run examples/hello.py 'Where is order 17?'",
    )
    parser.add_argument("target", help=TARGET_HELP)
    parser.add_argument("input", nargs="?", help="what the crew shall do; without it, standard input")
    parser.add_argument("--agent", help="who begins; default: the crew's entry")
    add_options(parser)
    parser.set_defaults(run=run_command)


def add_options(parser: argparse.ArgumentParser) -> None:
    """What every command that runs a crew takes."""
    parser.add_argument("--config", metavar="FILE", help="settings of the executor, as in config.yaml")
    parser.add_argument("--store", metavar="FILE", help="keep the run in this SQLite file, so that it can be resumed")
    parser.add_argument(
        "--max-messages", type=int, metavar="N", help="max_messages_per_request: the bound of the history (default 50)"
    )
    parser.add_argument(
        "--history", metavar="POLICY", help="history policy, such as head_tail or rolling:limit=40 (default rolling)"
    )
    parser.add_argument("--rounds", type=int, metavar="N", help="at most so many model calls (default 200)")
    parser.add_argument("--quiet", action="store_true", help="only the answer")
    parser.add_argument("--stream", action="store_true", help="print the reply as it is written")
    parser.add_argument("--trace", action="store_true", help="at the end, the span tree: time, tokens, cost, prunings")
    parser.add_argument("--json", action="store_true", help="the result as JSON instead of the answer")
    parser.add_argument("--record", metavar="FILE", help="write the transcript to this file, for `crew simulate`")


def run_command(given: argparse.Namespace) -> int:
    """Run it."""
    words = given.input if given.input is not None else _read_input()
    # Chosen here, so that it can be told whatever becomes of the run.
    given.run_id = uuid.uuid4().hex
    return _run_and_report(
        given, lambda executor: executor.execute_stream(words.strip("\n"), agent=given.agent, run_id=given.run_id)
    )


def _read_input() -> str:
    """The input from a pipe, or from a person, who is told so."""
    if sys.stdin is None:
        raise DefinitionError("crew run", "there is no input: give it as an argument, or to standard input")

    if sys.stdin.isatty():
        print("crew: type the input; Ctrl-D on a line of its own ends it", file=sys.stderr)

    return sys.stdin.read()


def _run_and_report(given: argparse.Namespace, begin: Callable[[CrewExecutor], EventStream]) -> int:
    """Begin or resume a run, watch it, print what it came to."""
    crew = load_crew(given.target)
    tree = Tree() if given.trace else None
    store = None if given.store is None else _open_store(given.store)

    try:
        result = run_until_signalled(_run_interactively(_build_executor(crew, given, store, tree), begin, given))
    except (KeyboardInterrupt, RunError):
        if given.store is not None:
            _print_resume_command(given)

        raise
    finally:
        if tree is not None:
            print(tree, file=sys.stderr)

        if store is not None:
            store.close()

    return _print_result(result, given)


def _open_store(place: str) -> SQLiteStore:
    if not place or Path(place).is_dir():
        raise DefinitionError("--store", f"this must be a file such as runs.db, not {place!r}")

    if not Path(place).parent.is_dir():
        raise DefinitionError("--store", f"there is no folder {str(Path(place).parent)!r}; make it first")

    return SQLiteStore(place)


def _print_result(result: RunResult, given: argparse.Namespace) -> int:
    """Print the answer, keep the transcript, and say by the exit code what the run came to."""
    lost = "answer"

    try:
        print(
            json.dumps(_result_json(result), ensure_ascii=False, indent=2) if given.json else result.output, flush=True
        )
        lost = "transcript"

        if given.record is not None:
            read_recording(result).save(given.record)
    except BrokenPipeError:
        raise  # who read our output has left
    except OSError as error:
        print(f"crew: the {lost} can't be written: {error}", file=sys.stderr)
        return 1

    return EXIT_CODES.get(result.stop_reason, 1)


def _build_executor(
    crew: Crew, given: argparse.Namespace, store: SQLiteStore | None, tree: Tree | None
) -> CrewExecutor:
    options: dict[str, Any] = {
        "max_messages_per_request": given.max_messages,
        "history": None if given.history is None else parse_policy(given.history)[1],
        "limits": None if given.rounds is None else Limits(rounds=given.rounds),
        "store": store,
        "observers": None if tree is None else [tree],
    }
    chosen = {name: value for name, value in options.items() if value is not None}
    target = given.target.partition(":")[0]
    place = given.config if given.config is not None or not target.endswith(CONFIG_SUFFIXES) else target
    return CrewExecutor(crew, **chosen) if place is None else CrewExecutor.from_config(place, crew, **chosen)


async def _run_interactively(
    executor: CrewExecutor, begin: Callable[[CrewExecutor], EventStream], given: argparse.Namespace
) -> RunResult:
    """Run, and go on as long as somebody is there to answer."""
    async with executor:
        result = await _print_events(begin(executor), given)

        while result.stop_reason == "paused" and sys.stdin is not None and sys.stdin.isatty():
            try:
                answers = {pause.id: _ask_person(pause) for pause in result.pauses}
            except EOFError:
                break  # whoever was there has left

            result = await _print_events(executor.resume_stream(result.run_id, answers), given)

    if result.stop_reason == "paused":
        _print_pauses(result, given)

    return result


def _print_pauses(result: RunResult, given: argparse.Namespace) -> None:
    for pause in result.pauses:
        print(f"crew: waits for {pause.id} ({pause.reason}): {pause.text}", file=sys.stderr)

    if given.store is None:
        print("crew: the run is gone with this process; --store FILE would have kept it", file=sys.stderr)
    else:
        words = {"approval": "yes", "input": "WORDS", "in_doubt": "skip"}
        _print_resume_command(given, *(f"--answer={pause.id}={words[pause.reason]}" for pause in result.pauses))


def _print_resume_command(given: argparse.Namespace, *answers: str) -> None:
    """The command that carries the run on, under the same settings."""
    settings = {
        "--store": given.store,
        "--config": given.config,
        "--max-messages": given.max_messages,
        "--history": given.history,
        "--rounds": given.rounds,
    }
    said = [str(part) for option in settings.items() if option[1] is not None for part in option]
    command = shlex.join(["crew", "resume", given.target, given.run_id, *said, *answers])
    print(f"crew: go on with: {command}", file=sys.stderr)


def _result_json(result: RunResult) -> dict[str, Any]:
    output = result.output
    return {
        "output": output if isinstance(output, str) else output.model_dump(mode="json"),
        "stop_reason": result.stop_reason,
        "run_id": result.run_id,
        "trace_id": result.trace_id,
        "agent": result.agent,
        "usage": {name: getattr(result.usage, name) for name in result.usage.__dataclass_fields__},
        "messages": result.metrics.messages,
        "limit": result.metrics.limit,
        "prunings": result.metrics.prunings,
        "messages_pruned": result.metrics.messages_pruned,
        "pauses": [{"id": p.id, "reason": p.reason, "text": p.text} for p in result.pauses],
    }


def add_resume_parser(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "resume",
        help="carry on a run that was paused, interrupted or killed",
        description="Carry on a run that `crew run --store FILE` kept. Nothing whose result was committed is repeated.",
        epilog=f"{EXIT_CODES_HELP} Example: crew resume crew.py RUN --store runs.db --answer 'RUN:call_1=yes'",
    )
    parser.add_argument("target", help=TARGET_HELP)
    parser.add_argument("run_id", help="the run's id")
    parser.add_argument(
        "--answer", action="append", default=[], metavar="PAUSE=WORDS", help="yes, no, why not, or what is asked for"
    )
    add_options(parser)
    parser.set_defaults(run=resume_command)


def resume_command(given: argparse.Namespace) -> int:
    """Resume it."""
    if given.store is None:
        raise DefinitionError("crew resume", "--store FILE says where the run was kept")

    if not Path(given.store).is_file():
        raise DefinitionError(
            "crew resume", f"there is no file {given.store!r}; --store FILE says where the run was kept"
        )

    answers = _parse_answers(given)
    return _run_and_report(given, lambda executor: executor.resume_stream(given.run_id, answers))


def _parse_answers(given: argparse.Namespace) -> dict[str, Any]:
    store = SQLiteStore(given.store)

    try:
        pending = {pause.id: pause for pause in pending_pauses(asyncio.run(store.load(given.run_id)).state)}
    finally:
        store.close()

    found: dict[str, Any] = {}

    for pair in given.answer:
        id, _, words = pair.partition("=")

        if id not in pending:
            raise UnknownPause(given.run_id, [id], [*pending])

        found[id] = parse_answer(pending[id], words)

    return found
