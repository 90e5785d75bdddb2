"""`crew chat`: a conversation with a crew in the terminal, turn by turn."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import uuid
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TypeVar

from crew.cli.escaped_output import stdout_is_terminal
from crew.cli.executor_setup import build_executor, load_runnable, open_run_store, printed_warnings
from crew.cli.pause_answers import ask_user, print_refusals
from crew.cli.signals import Terminated, prompt, run_until_signalled
from crew.cli.store_commands import parse_metadata, request_lines
from crew.cli.terminal import print_events
from crew.engine.stream import EventStream
from crew.errors import CrewError, DefinitionError, InvalidInput, RunError, UnknownRun
from crew.executor import CrewExecutor
from crew.messages import AssistantMessage, Usage
from crew.runs.answer_text import Answer
from crew.runs.result import RunResult
from crew.runs.state import Pause
from crew.store.codec import MessageSection
from crew.store.rows import message_text

Value = TypeVar("Value")

HELP = """\
/history  the messages that the next request can hold
/why      what the last request held, what it left out and why
/cost     requests, tokens and cost of this session
/retry    resume the last turn if it failed, was cancelled or waits for an answer, else ask the last question again
/quit     end; so does Ctrl-D. Ctrl-C cancels the turn and keeps the conversation"""


def chat_command(args: argparse.Namespace) -> int:
    """Read messages from the terminal until the user quits; each is a turn of the conversation."""
    runnable = load_runnable(args)
    store = open_run_store(args, runnable)

    if args.location is None and args.conversation:
        lost = f"the conversation {args.conversation!r} is kept in memory, and lost at the end of this chat"
        print(f"crew: {lost}; pass --store FILE to continue or keep it", file=sys.stderr)

    # A terminal shows a reply while it is generated; elsewhere each answer is printed to stdout as a whole.
    args.stream = stdout_is_terminal()
    args.quiet = args.quiet or not args.stream

    try:
        with printed_warnings(args):
            executor = build_executor(runnable, args, store, None)

        chat = Chat(executor, args)

        try:
            chat.run()
        finally:
            asyncio.run(executor.aclose())
    finally:
        if store is not None:
            store.close()

    return 0


class Chat:
    """One conversation at the terminal. Each turn has an event loop, so that Ctrl-C ends the turn and not the chat."""

    def __init__(self, executor: CrewExecutor, args: argparse.Namespace) -> None:
        self._executor, self._args = executor, args
        self._id: str = args.conversation or uuid.uuid4().hex
        self._metadata = parse_metadata(args.metadata)
        self._input = self._run_id = ""
        self._is_open = False
        """Whether the last turn failed, was cancelled or waits for an answer, so that it can be resumed."""
        self._results: dict[str, RunResult] = {}

    def run(self) -> None:
        """Read and answer until the end of the input. Raises `InvalidInput` if no turn can start with the options."""
        self._stream("?")  # checks the options; a stream starts nothing until it is read
        print(f"crew: conversation {self._id}; /help lists the commands", file=sys.stderr)
        self._open_last_turn()

        while True:
            try:
                line = prompt("> " if sys.stdin.isatty() else "").strip()
            except EOFError:
                return

            if line in ("/quit", "/exit"):
                return

            if line:
                self._handle(line)

    def _handle(self, line: str) -> None:
        commands = {"/history": self._print_history, "/why": self._print_why, "/cost": self._print_cost}

        if line == "/help":
            print(HELP)
        elif line in commands:
            commands[line]()
        elif line == "/retry":
            self._retry()
        elif line.startswith("/"):
            print(f"crew: unknown command {line}; /help lists the commands", file=sys.stderr)
        else:
            self._ask(line)

    # ------------------------------------------------------------------------------------------ turns

    def _ask(self, text: str) -> None:
        self._input, self._run_id = text, uuid.uuid4().hex
        self._turn(lambda: self._stream(text))
        self._args.agent = None  # the next turn starts with the agent that answers now

    def _stream(self, text: str) -> EventStream:
        return self._executor.execute_stream(
            text,
            run_id=self._run_id or None,
            conversation=self._id,
            on_paused="cancel",
            agent=self._args.agent,
            metadata=self._metadata,
            model=self._args.model,
        )

    def _retry(self) -> None:
        if self._is_open:
            self._turn(lambda: self._executor.resume_stream(self._run_id))
        elif self._input:
            self._ask(self._input)
        else:
            print("crew: there is no turn to repeat", file=sys.stderr)

    def _turn(self, start: Callable[[], EventStream]) -> None:
        self._finish(self._attempt(lambda: print_events(start(), self._args)))

    def _finish(self, result: RunResult | None) -> None:
        """Run a turn to its end, with the user's answers to its pauses, and print the answer."""
        while result is not None:
            self._results[result.run_id] = result

            if result.stop_reason != "paused":
                break

            result = self._resume(result.run_id, result.pauses)

        self._is_open = result is None

        if result is None:
            return

        if result.stop_text:
            print(f"crew: stopped: {result.stop_text}", file=sys.stderr)
        elif not self._args.stream or result.stop_reason != "completed" or self._is_wrapped(result.agent):
            output = result.output_json()
            print(output if isinstance(output, str) else json.dumps(output, ensure_ascii=False, indent=2), flush=True)

    def _is_wrapped(self, agent: str) -> bool:
        """Whether the streamed reply has the output inside an object, because its type is no object."""
        output = self._executor.plan.output_type(agent)
        return output is not None and output.wrapper is not None

    def _resume(self, run_id: str, pauses: tuple[Pause, ...]) -> RunResult | None:
        """Ask the user and resume the turn; ask again if the run does not accept an answer, such as new arguments."""
        while True:
            try:
                answers = {pause.id: ask_user(pause) for pause in pauses}
            except (EOFError, KeyboardInterrupt) as error:
                if isinstance(error, Terminated):
                    raise

                print("crew: not answered; /retry asks again, the next message cancels this turn", file=sys.stderr)
                return None

            outcome = self._attempt(partial(self._send_answers, run_id, pauses, answers))

            if not isinstance(outcome, InvalidInput):
                return outcome

            print(f"crew: {outcome}", file=sys.stderr)

    async def _send_answers(
        self, run_id: str, pauses: tuple[Pause, ...], answers: dict[str, Answer]
    ) -> RunResult | InvalidInput:
        stream = self._executor.resume_stream(run_id, answers)

        try:
            return await print_events(stream, self._args, partial(print_refusals, pauses, answers))
        except InvalidInput as error:
            return error  # nothing was stored

    def _open_last_turn(self) -> None:
        """Ask for the answers that the last turn of a stored conversation waits for, or offer to resume it."""
        found = self._attempt(lambda: self._executor.conversation(self._id)) if self._args.conversation else None

        if found is None:
            return

        if found.crew != (name := self._executor.plan.crew.name):
            problem = (
                f"the conversation {self._id!r} belongs to the crew {found.crew!r}, not to {name!r}; use another id"
            )
            raise DefinitionError("--conversation", problem)

        last = found.runs[-1]
        self._run_id = last.run_id

        if found.pauses:
            self._finish(self._resume(last.run_id, found.pauses))
        elif last.status in ("failed", "running"):
            self._is_open = True
            print("crew: the last turn did not end; /retry resumes it, the next message closes it", file=sys.stderr)

    def _attempt(self, work: Callable[[], Coroutine[object, object, Value]]) -> Value | None:
        """The result of this work; None if it failed or was cancelled with Ctrl-C, which is printed."""
        try:
            return run_until_signalled(work())
        except Terminated:
            raise
        except KeyboardInterrupt:
            print("\ncrew: the turn is cancelled; the conversation goes on, /retry resumes the turn", file=sys.stderr)
        except UnknownRun:
            pass  # a new conversation
        except CrewError as error:
            print(f"crew: {error}", file=sys.stderr)

            if isinstance(error, RunError) and error.result is not None:
                self._results[error.result.run_id] = error.result  # its requests are billed too

        return None

    # ------------------------------------------------------------------------------------------ commands

    def _print_history(self) -> None:
        found = self._attempt(lambda: self._executor.conversation(self._id))

        for message in () if found is None else found.history:
            speaker = message.agent if isinstance(message, AssistantMessage) else message.role
            print(f"{speaker}: {message_text(message).lstrip()}")

    def _print_why(self) -> None:
        messages = self._attempt(lambda: self._executor.transcript(self._id)) or ()
        replies = [
            index
            for index, message in enumerate(messages)
            if isinstance(message, AssistantMessage) and message.manifest is not None
        ]

        if not replies:
            print("crew: no request was answered yet", file=sys.stderr)
            return

        section = MessageSection(path=self._id, start=0, messages=messages)
        known = {message.id: (position, message) for position, message in section.numbered()}
        print("\n".join(request_lines(section, replies[-1], known)))

    def _print_cost(self) -> None:
        usage = sum((result.usage for result in self._results.values()), Usage())
        cost = "unknown" if usage.cost is None else f"${usage.cost:.4f}"
        tokens = (
            f"{usage.input_tokens:,} input tokens ({usage.cache_read_tokens:,} cached), {usage.output_tokens:,} output"
        )
        turns, requests = _count(len(self._results), "turn"), _count(usage.requests, "request")
        print(f"{turns}, {requests}, {tokens}, cost {cost}")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
