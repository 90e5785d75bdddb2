"""`crew chat`: a conversation with a crew in the terminal, turn by turn."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import uuid
from collections.abc import Callable, Coroutine
from typing import TypeVar

from crew.cli.run_command import build_executor, find_store, output_json, printed_warnings
from crew.cli.signals import Terminated, prompt, run_until_signalled
from crew.cli.store_commands import prefix_text, tokens_text
from crew.cli.target import load_crew
from crew.cli.terminal import ask_user, print_events, print_refusals
from crew.engine.stream import EventStream
from crew.errors import CrewError, UnknownRun
from crew.executor import CrewExecutor
from crew.messages import AssistantMessage, Manifest, Usage
from crew.runs.result import RunResult
from crew.runs.state import Pause
from crew.store.location import open_store
from crew.store.rows import message_text

Value = TypeVar("Value")

HELP = """\
/history  the messages that the next request can hold
/why      what the last request held, what it left out and why
/cost     requests, tokens and cost of this session
/retry    resume the last turn if it failed or was cancelled, else ask the last question again
/quit     end; so does Ctrl-D. Ctrl-C cancels the turn and keeps the conversation"""


def chat_command(args: argparse.Namespace) -> int:
    """Read messages from the terminal until the user quits; each is a turn of the conversation."""
    find_store(args)
    crew = load_crew(args.target, args.allow_modules)
    store = None if args.location is None else open_store(args.location, args.store_name)
    # A terminal shows a reply while it is generated; elsewhere each answer is printed to stdout as a whole.
    args.stream, args.quiet = sys.stdout.isatty(), args.quiet or not sys.stdout.isatty()

    try:
        with printed_warnings(args):
            executor = build_executor(crew, args, store, None)

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
        self._input = self._run_id = ""
        self._is_open = False
        """Whether the last turn failed, was cancelled or waits for an answer, so that it can be resumed."""
        self._results: dict[str, RunResult] = {}

    def run(self) -> None:
        """Read and answer until the end of the input."""
        print(f"crew: conversation {self._id}; /help lists the commands", file=sys.stderr)
        self._answer_pauses()

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
        self._turn(
            lambda: self._executor.execute_stream(
                text, run_id=self._run_id, conversation=self._id, on_paused="cancel", agent=self._args.agent
            )
        )
        self._args.agent = None  # the next turn starts with the agent that answers now

    def _retry(self) -> None:
        if self._is_open:
            self._turn(lambda: self._executor.resume_stream(self._run_id))
        elif self._input:
            self._ask(self._input)
        else:
            print("crew: there is no turn to repeat", file=sys.stderr)

    def _turn(self, start: Callable[[], EventStream]) -> None:
        """Run a turn to its end, with the user's answers to its pauses, and print the answer."""
        result = self._attempt(lambda: print_events(start(), self._args))

        while result is not None and result.stop_reason == "paused":
            result = self._resume(result.run_id, result.pauses)

        self._is_open = result is None

        if result is None:
            return

        self._results[result.run_id] = result

        if not self._args.stream or result.stop_reason != "completed":
            output = output_json(result)
            print(output if isinstance(output, str) else json.dumps(output, ensure_ascii=False, indent=2), flush=True)

    def _resume(self, run_id: str, pauses: tuple[Pause, ...]) -> RunResult | None:
        try:
            answers = {pause.id: ask_user(pause) for pause in pauses}
        except (EOFError, KeyboardInterrupt) as error:
            if isinstance(error, Terminated):
                raise

            print("crew: not answered; the next message cancels this turn", file=sys.stderr)
            return None

        print_refusals(pauses, answers)
        return self._attempt(lambda: print_events(self._executor.resume_stream(run_id, answers), self._args))

    def _answer_pauses(self) -> None:
        """Ask for the answers that the last turn of a stored conversation waits for."""
        found = self._attempt(lambda: self._executor.conversation(self._id)) if self._args.conversation else None

        if found is not None and found.pauses:
            result = self._resume(found.runs[-1].run_id, found.pauses)

            if result is not None:
                self._results[result.run_id] = result
                print(output_json(result), flush=True)

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

        return None

    # ------------------------------------------------------------------------------------------ commands

    def _print_history(self) -> None:
        found = self._attempt(lambda: self._executor.conversation(self._id))

        for message in () if found is None else found.history:
            speaker = message.agent if isinstance(message, AssistantMessage) else message.role
            print(f"{speaker}: {message_text(message)}")

    def _print_why(self) -> None:
        manifest = self._last_manifest()

        if manifest is None:
            print("crew: no request was answered yet", file=sys.stderr)
            return

        print(f"{manifest.agent} · {manifest.model} · {manifest.messages} messages sent · {tokens_text(manifest)}")
        print(prefix_text(manifest))

        for line in manifest.removed:
            print(f"  ○ {line.id}  {line.disposition} by {line.reason or 'the policy'}")

        for line in manifest.tail:
            print(
                f"  ● {line.id}  {line.disposition}{f' by {line.reason}' if line.reason else ''}, {line.tokens} tokens"
            )

    def _last_manifest(self) -> Manifest | None:
        messages = [message for result in self._results.values() for message in result.transcript]
        replies = [message for message in messages if isinstance(message, AssistantMessage)]
        return next((reply.manifest for reply in reversed(replies) if reply.manifest is not None), None)

    def _print_cost(self) -> None:
        usage = sum((result.usage for result in self._results.values()), Usage())
        cost = "unknown" if usage.cost is None else f"${usage.cost:.4f}"
        tokens = (
            f"{usage.input_tokens:,} input tokens ({usage.cache_read_tokens:,} cached), {usage.output_tokens:,} output"
        )
        print(f"{len(self._results)} turns, {usage.requests} requests, {tokens}, cost {cost}")
