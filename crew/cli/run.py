"""`crew run`: run a crew, watch it, and answer what it asks."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from crew.agents import Crew
from crew.cli.simulate import read_policy
from crew.cli.stopping import ask, run_until_stopped
from crew.cli.target import CONFIGURATION, HELP, find_crew
from crew.cli.terminal import line_of
from crew.errors import DefinitionError, RunError
from crew.execution.stream import EventStream
from crew.executor import CrewExecutor
from crew.runs import Limits, Pause, RunResult
from crew.runs.events import TextDelta
from crew.simulator import read_recording
from crew.store import SQLiteStore
from crew.telemetry import Tree

EXITS = (
    "Exit codes: 0 completed, 1 failed, 2 wrong usage, 3 paused (nobody to answer), 4 a limit, 130 Ctrl-C, 143 SIGTERM."
)
EXIT_CODES = {"completed": 0, "paused": 3, "limit": 4, "cancelled": 130}


PROMPTS = {
    "input": "> ",
    "approval": "[y]es, [n]o, or why not > ",
    "in_doubt": "[r]un again, [s]kip, or what it returned > ",
}


def add_parser(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "run",
        help="run a crew on an input",
        description="Run a crew. What happens goes to stderr, the answer to stdout; where the crew pauses, it asks.",
        epilog=f"{EXITS} Example: crew run examples/hello.py 'Where is order 17?'",
    )
    parser.add_argument("target", help=HELP)
    parser.add_argument("input", nargs="?", help="what the crew shall do; without it, standard input")
    parser.add_argument("--agent", help="who begins; default: the crew's entry")
    add_options(parser)
    parser.set_defaults(run=run)


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


def run(given: argparse.Namespace) -> int:
    """Run it."""
    words = given.input if given.input is not None else _typed()
    # Chosen here, so that it can be told whatever becomes of the run.
    given.run_id = uuid.uuid4().hex
    return carry(
        given, lambda executor: executor.execute_stream(words.strip("\n"), agent=given.agent, run_id=given.run_id)
    )


def _typed() -> str:
    """The input from a pipe, or from a person, who is told so."""
    if sys.stdin is None:
        raise DefinitionError("crew run", "there is no input: give it as an argument, or to standard input")

    if sys.stdin.isatty():
        print("crew: type the input; Ctrl-D on a line of its own ends it", file=sys.stderr)

    return sys.stdin.read()


def carry(given: argparse.Namespace, begin: Callable[[CrewExecutor], EventStream]) -> int:
    """Begin or resume a run, watch it, print what it came to."""
    crew = find_crew(given.target)
    tree = Tree() if given.trace else None
    store = None if given.store is None else _store(given.store)

    try:
        result = run_until_stopped(_converse(_executor(crew, given, store, tree), begin, given))
    except (KeyboardInterrupt, RunError):
        if given.store is not None:
            _tell_resume(given)

        raise
    finally:
        if tree is not None:
            print(tree, file=sys.stderr)

        if store is not None:
            store.close()

    return _tell(result, given)


def _store(place: str) -> SQLiteStore:
    if not place or Path(place).is_dir():
        raise DefinitionError("--store", f"this must be a file such as runs.db, not {place!r}")

    if not Path(place).parent.is_dir():
        raise DefinitionError("--store", f"there is no folder {str(Path(place).parent)!r}; make it first")

    return SQLiteStore(place)


def _tell(result: RunResult, given: argparse.Namespace) -> int:
    """Print the answer, keep the transcript, and say by the exit code what the run came to."""
    lost = "answer"

    try:
        print(json.dumps(_plain(result), ensure_ascii=False, indent=2) if given.json else result.output, flush=True)
        lost = "transcript"

        if given.record is not None:
            read_recording(result).save(given.record)
    except BrokenPipeError:
        raise  # who read our output has left
    except OSError as error:
        print(f"crew: the {lost} can't be written: {error}", file=sys.stderr)
        return 1

    return EXIT_CODES.get(result.stop_reason, 1)


def _executor(crew: Crew, given: argparse.Namespace, store: SQLiteStore | None, tree: Tree | None) -> CrewExecutor:
    options: dict[str, Any] = {
        "max_messages_per_request": given.max_messages,
        "history": None if given.history is None else read_policy(given.history)[1],
        "limits": None if given.rounds is None else Limits(rounds=given.rounds),
        "store": store,
        "observers": None if tree is None else [tree],
    }
    chosen = {name: value for name, value in options.items() if value is not None}
    target = given.target.partition(":")[0]
    place = given.config if given.config is not None or not target.endswith(CONFIGURATION) else target
    return CrewExecutor(crew, **chosen) if place is None else CrewExecutor.from_config(place, crew, **chosen)


async def _converse(
    executor: CrewExecutor, begin: Callable[[CrewExecutor], EventStream], given: argparse.Namespace
) -> RunResult:
    """Run, and go on as long as somebody is there to answer."""
    async with executor:
        result = await _watch(begin(executor), given)

        while result.stop_reason == "paused" and sys.stdin is not None and sys.stdin.isatty():
            try:
                answers = {pause.id: _answer(pause) for pause in result.pauses}
            except EOFError:
                break  # whoever was there has left

            result = await _watch(executor.resume_stream(result.run_id, answers), given)

    if result.stop_reason == "paused":
        _tell_pauses(result, given)

    return result


def _tell_pauses(result: RunResult, given: argparse.Namespace) -> None:
    for pause in result.pauses:
        print(f"crew: waits for {pause.id} ({pause.reason}): {pause.text}", file=sys.stderr)

    if given.store is None:
        print("crew: the run is gone with this process; --store FILE would have kept it", file=sys.stderr)
    else:
        words = {"approval": "yes", "input": "WORDS", "in_doubt": "skip"}
        _tell_resume(given, *(f"--answer={pause.id}={words[pause.reason]}" for pause in result.pauses))


def _tell_resume(given: argparse.Namespace, *answers: str) -> None:
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


def _piece(event: TextDelta) -> str:
    """What the terminal shows of a piece; an attempt that failed can't be unprinted, so that it is struck out aloud."""
    match event.channel:
        case "text":
            return event.text
        case "restart":
            return "\n[that attempt failed; the reply begins again]\n"
        case _:
            return ""


async def _watch(stream: EventStream, given: argparse.Namespace) -> RunResult:
    async with stream:
        async for event in stream:
            if isinstance(event, TextDelta):
                if given.stream:
                    print(_piece(event), end="", file=sys.stderr, flush=True)
            elif not given.quiet and (line := line_of(event)):
                print(line, file=sys.stderr)

    return stream.result


def _answer(pause: Pause) -> Any:
    print(f"\n{pause.text}", file=sys.stderr)

    return read_answer(pause, ask(PROMPTS[pause.reason]))


def read_answer(pause: Pause, words: str) -> Any:
    """A person's words as the answer that this pause takes."""
    given = words.strip()

    if pause.reason == "input":
        return words

    if pause.reason == "approval":
        return {"y": True, "yes": True, "n": False, "no": False, "": False}.get(given.lower(), given)

    known = {"r": "run again", "run again": "run again", "s": "skip", "skip": "skip", "": "skip"}
    return known.get(given.lower(), {"done": given})


def _plain(result: RunResult) -> dict[str, Any]:
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
