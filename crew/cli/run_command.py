"""`crew run`, `crew resume` and `crew cancel`: run a crew, print its events, and ask the user where it pauses."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import shlex
import sys
import uuid
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from crew.cli.executor_setup import Runnable, load_runnable, open_executor, open_run_store
from crew.cli.pause_answers import accepted_answers, answer_problem, ask_user, print_choices, print_refusals
from crew.cli.signals import run_until_signalled
from crew.cli.store_commands import parse_metadata
from crew.cli.terminal import print_events
from crew.engine.stream import EventStream
from crew.errors import DefinitionError, InvalidInput, RunError, UnknownPause
from crew.executor import CrewExecutor
from crew.runs.answer_text import Answer, parse_answer
from crew.runs.result import RunResult
from crew.runs.state import Pause, pending_pauses
from crew.simulator.recording import read_recording
from crew.store.location import file_problem, open_existing_store
from crew.store.postgres_url import without_passwords
from crew.telemetry.text_tree import Tree

EXIT_CODES = {"completed": 0, "paused": 3, "limit": 4, "stopped": 5, "cancelled": 130}


def run_command(args: argparse.Namespace) -> int:
    """Start a run and return the exit code."""
    metadata = parse_metadata(args.metadata)
    text = args.input if args.input is not None else _read_input()
    runnable = load_runnable(args)
    # Chosen here, so that the resume command can be printed however the run ends.
    args.run_id = uuid.uuid4().hex

    def start(executor: CrewExecutor) -> EventStream:
        if args.location is not None and not args.quiet:
            print(f"crew: run {args.run_id}", file=sys.stderr)

        return executor.execute_stream(
            text.strip("\n"), agent=args.agent, run_id=args.run_id, metadata=metadata, model=args.model
        )

    return _run_and_report(args, runnable, start)


def resume_command(args: argparse.Namespace) -> int:
    """Resume a run and return the exit code."""
    runnable = _load_stored(args)
    pauses = _load_pauses(args, runnable)
    answers = _parse_answers(args, pauses)
    on_start = _refusal_printer(args, pauses, answers)
    return _run_and_report(args, runnable, lambda executor: _resume(executor, args, answers), on_start)


def cancel_command(args: argparse.Namespace) -> int:
    """Cancel a run and return the exit code."""
    args.quiet = False
    runnable = _load_stored(args)
    store = None if isinstance(runnable, CrewExecutor) else open_existing_store(args.location, args.store_name)

    try:
        run_until_signalled(_cancel(open_executor(runnable, store, None, args), args.run_id))
    finally:
        if store is not None:
            store.close()

    print(f"crew: run {args.run_id} is cancelled", file=sys.stderr)
    return 0


async def _cancel(opening: Awaitable[CrewExecutor], run_id: str) -> None:
    async with await opening as executor:
        await executor.cancel(run_id)


def _load_stored(args: argparse.Namespace) -> Runnable:
    """The target of a command for a stored run."""
    runnable = load_runnable(args)

    if args.location is not None:
        return runnable

    if isinstance(runnable, CrewExecutor):
        raise DefinitionError(args.target, "the executor keeps its runs in memory; pass store=… to it to save them")

    raise DefinitionError("--store", "required: the SQLite file that holds the run")


def _refusal_printer(
    args: argparse.Namespace, pauses: Sequence[Pause], answers: dict[str, Answer]
) -> Callable[[], None] | None:
    return None if args.quiet else partial(print_refusals, pauses, answers)


def _resume(executor: CrewExecutor, args: argparse.Namespace, answers: dict[str, Answer]) -> EventStream:
    return executor.resume_stream(args.run_id, answers, strict=args.strict, take_over=args.take_over)


def _read_input() -> str:
    if sys.stdin is None:
        raise DefinitionError("no input", "pass it as an argument or on standard input")

    if sys.stdin.isatty():
        print("crew: type the input, then press Ctrl-D on an empty line", file=sys.stderr)

    return sys.stdin.read()


def _load_pauses(args: argparse.Namespace, runnable: Runnable) -> Sequence[Pause]:
    if isinstance(runnable, CrewExecutor):
        return asyncio.run(_load_pauses_with(runnable, args.run_id))

    store = open_existing_store(args.location, args.store_name)

    try:
        return tuple(pending_pauses(asyncio.run(store.load(args.run_id)).state))
    finally:
        store.close()


async def _load_pauses_with(executor: CrewExecutor, run_id: str) -> Sequence[Pause]:
    async with executor:
        return tuple(pending_pauses((await executor.store.load(run_id)).state))


def _parse_answers(args: argparse.Namespace, pauses: Sequence[Pause]) -> dict[str, Answer]:
    answers: dict[str, Answer] = {}

    for option in args.answer:
        pause, text = _find_pause(option, args.run_id, pauses)
        answer = parse_answer(pause, text)

        if answer is None:
            raise DefinitionError("--answer", answer_problem(pause, text, f"the answer to {pause.id}"))

        answers[pause.id] = answer

    return answers


def _find_pause(option: str, run_id: str, pauses: Sequence[Pause]) -> tuple[Pause, str]:
    """Split an option into the pause that it names and the answer; without a name it answers the only pause."""
    for pause in pauses:
        if option.startswith(f"{pause.id}="):
            return pause, option.removeprefix(f"{pause.id}=")

    # An answer may hold an equals sign itself; a pause of this run begins with its id.
    is_unnamed = "=" not in option or option.startswith("done=") or not option.startswith(run_id)

    if is_unnamed and len(pauses) == 1:
        return pauses[0], option

    if not pauses:
        raise DefinitionError("--answer", f"the run {run_id} waits for no answer: resume it without --answer")

    if is_unnamed:
        pending = ", ".join(pause.id for pause in pauses)
        raise DefinitionError("--answer", f"must be PAUSE=ANSWER, not {option!r}; pending: {pending}")

    raise UnknownPause(run_id, [option.partition("=")[0]], [pause.id for pause in pauses])


def _run_and_report(
    args: argparse.Namespace,
    runnable: Runnable,
    start: Callable[[CrewExecutor], EventStream],
    on_start: Callable[[], None] | None = None,
) -> int:
    """Start or resume a run, print its events and its result; `on_start` is called when it has started."""
    if args.record is not None and (problem := file_problem(args.record, "run.json")):
        raise DefinitionError("--record", problem)

    if args.stream and args.temporal is not None and not args.quiet:
        print("! --stream: workers do not send partial replies; each is printed when it is complete", file=sys.stderr)

    tree = Tree() if args.trace else None
    store = open_run_store(args, runnable)

    try:
        result = run_until_signalled(
            _run_interactively(open_executor(runnable, store, tree, args), start, args, on_start)
        )
    except (KeyboardInterrupt, RunError) as error:
        if isinstance(error, KeyboardInterrupt) and args.temporal is not None:
            print("crew: the run goes on with the workers of the Temporal server", file=sys.stderr)
            _print_command(args, "follow it again", "resume")
            _print_command(args, "cancel it", "cancel")
        elif args.location is not None:
            _print_command(args, "resume", "resume")

        raise
    finally:
        if tree is not None:
            print(tree, file=sys.stderr)

        if store is not None:
            store.close()

    return _print_result(result, args)


async def _run_interactively(
    opening: Awaitable[CrewExecutor],
    start: Callable[[CrewExecutor], EventStream],
    args: argparse.Namespace,
    on_start: Callable[[], None] | None,
) -> RunResult:
    """Run to the end; where the run pauses and standard input is a terminal, ask the user and resume."""
    async with await opening as executor:
        result = await print_events(start(executor), args, on_start)

        while result.stop_reason == "paused" and sys.stdin is not None and sys.stdin.isatty():
            try:
                answers = {pause.id: ask_user(pause) for pause in result.pauses}
                on_start = _refusal_printer(args, result.pauses, answers)
                result = await print_events(_resume(executor, args, answers), args, on_start)
            except EOFError:
                break  # Ctrl-D: the user does not answer
            except InvalidInput as error:
                print(f"crew: {error}", file=sys.stderr)  # nothing was stored: ask again

    if result.stop_reason == "paused":
        _print_pauses(result, args)

    return result


def _print_pauses(result: RunResult, args: argparse.Namespace) -> None:
    for pause in result.pauses:
        print(f"crew: waiting for an answer to {pause.id} ({pause.reason}): {pause.full_text}", file=sys.stderr)
        print_choices(pause)
        print(f"crew: answer with {accepted_answers(pause)}", file=sys.stderr)

    if args.location is None:
        print("crew: The run was not saved; pass --store FILE to make it resumable.", file=sys.stderr)
    else:
        samples = {"approval": "yes", "input": "TEXT", "question": "TEXT", "in_doubt": "skip", "consent": "yes"}
        answers = {pause.id: pause.choices[0] if pause.choices else samples[pause.reason] for pause in result.pauses}
        _print_command(args, "resume", "resume", *(f"--answer={id}={answer}" for id, answer in answers.items()))


def _print_command(args: argparse.Namespace, purpose: str, command: str, *answers: str) -> None:
    """Print a command for the run, such as the one that resumes it, with the same settings."""
    print(f"crew: {purpose} with: {command_line(args, command, args.target, args.run_id, *answers)}", file=sys.stderr)


def command_line(args: argparse.Namespace, command: str, target: str, run_id: str, *answers: str) -> str:
    """A command for a run, with the settings of these arguments; the password of the store is not shown."""
    settings = {
        "--store": None if args.store is None else without_passwords(args.store),
        "--config": args.config,
        "--max-messages": args.max_messages,
        "--history": args.history,
        "--temporal": args.temporal,
        "--namespace": args.namespace,
        "--task-queue": args.task_queue,
        "--allow-modules": None if args.allow_modules is None else ",".join(args.allow_modules),
    }
    options = [str(part) for option in settings.items() if option[1] is not None for part in option]
    return shlex.join(["crew", command, target, run_id, *options, *answers])


def _print_result(result: RunResult, args: argparse.Namespace) -> int:
    """Print the answer, write the transcript, and return the exit code."""
    written = "answer"

    for doubt in result.in_doubt:
        call = f"{doubt.call.name} ({doubt.key})"
        print(f"crew: in doubt: {call} was started and has no result; it may have taken effect", file=sys.stderr)

    if result.stop_text:
        print(f"crew: stopped: {result.stop_text}", file=sys.stderr)

    try:
        printed = _result_json(result) if args.json else result.output_json()
        text = printed if isinstance(printed, str) else json.dumps(printed, ensure_ascii=False, indent=2)

        if text or result.stop_reason != "paused":
            print(text, flush=True)

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
    return {
        "output": result.output_json(),
        "stop_reason": result.stop_reason,
        "stop_text": result.stop_text,
        "limit": None if result.limit is None else dataclasses.asdict(result.limit),
        "run_id": result.run_id,
        "trace_id": result.trace_id,
        "agent": result.agent,
        "usage": dataclasses.asdict(result.usage),
        "messages": result.metrics.messages,
        "max_messages_per_request": result.metrics.limit,
        "prunings": result.metrics.prunings,
        "messages_pruned": result.metrics.messages_pruned,
        "finish_reason": result.finish_reason,
        "in_doubt": [{"key": one.key, "agent": one.agent, "tool": one.call.name} for one in result.in_doubt],
        "orphans": list(result.orphans),
        "pauses": [
            {
                "id": pause.id,
                "reason": pause.reason,
                "text": pause.text,
                "choices": list(pause.choices),
                "checked": pause.checked,
            }
            for pause in result.pauses
        ],
    }
