"""Prints the events of a run to the terminal and reads the user's answers to pauses."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from crew.cli.arguments import ACCEPTED_ANSWERS
from crew.cli.signals import prompt
from crew.engine.stream import EventStream
from crew.messages import ToolCall
from crew.runs.call_text import argument_lines
from crew.runs.event_text import event_text
from crew.runs.events import (
    AgentStarted,
    Asked,
    BranchFinished,
    BranchStarted,
    CallHeld,
    Cancelled,
    Compacted,
    Event,
    FellBack,
    HandedOff,
    HistoryPruned,
    HistoryRepaired,
    LimitReached,
    Paused,
    Replied,
    Resumed,
    Retried,
    Routed,
    RunFailed,
    RunFinished,
    RunStarted,
    Summarised,
    TextDelta,
    ToolReturned,
    ToolsStarted,
)
from crew.runs.result import RunResult
from crew.runs.state import Pause

WIDTH = 100

SIGNS: dict[type[Event], str] = {
    AgentStarted: "●",
    HandedOff: "→",
    Routed: "→",
    BranchStarted: "⑂",
    BranchFinished: "⑃",
    CallHeld: "⏸",
    HistoryPruned: "✂",
    Compacted: "✎",
    HistoryRepaired: "✚",
    Retried: "↻",
    FellBack: "↻",
    LimitReached: "■",
    Paused: "⏸",
    RunFinished: "■",
    RunFailed: "✗",
}
LEVEL_SIGNS = {"debug": " ", "info": " ", "warning": "!", "error": "✗"}
NOT_PRINTED = (RunStarted, Resumed, Summarised, Cancelled)
"""Events that repeat what the user typed or what the next printed line says."""


def event_line(event: Event, held: ToolCall | None = None) -> str | None:
    """The line to print for an event; None for an event that is not printed. `held` is the call of a `CallHeld`."""
    sign, text = SIGNS.get(type(event)) or LEVEL_SIGNS[event.severity], event_text(event)

    match event:
        case Replied():
            text = _shorten(f"{event.agent}: {event.message.text}") if event.message.text else ""
        case ToolsStarted():
            calls = ", ".join(f"{call.name}({call.arguments})" for call in event.calls)
            text = _shorten(f"{event.agent} calls {calls}")
        case CallHeld() if held is not None:
            listed = ", ".join(argument_lines(event.arguments, ""))
            text = _shorten(f"{event.agent} wants to call {held.name}({listed})") + ": waits for approval"
        case ToolReturned():
            sign = "✓" if event.result.outcome == "ok" else "✗"
            text = _shorten(f"{event.result.name}: {event.result.text}")
        case RunFailed() if "/" not in event.run_id:
            text = "failed"  # the command prints the error as its last line
        case _:
            pass

    if not text or isinstance(event, NOT_PRINTED):
        return None

    indent = _indent(event.run_id) + "  " * isinstance(event, ToolReturned)
    return f"{indent}{sign} {text}"


def _indent(run_id: str) -> str:
    """Two spaces for each level of the run below the first."""
    return "  " * run_id.count("/")


def _shorten(text: str) -> str:
    line = " ⏎ ".join(text.strip("\n").splitlines())
    return line if len(line) <= WIDTH else line[: WIDTH - 1] + "…"


APPROVALS = {"y": True, "yes": True, "n": False, "no": False}
DOUBT_ANSWERS = {"r": "run again", "run again": "run again", "s": "skip", "skip": "skip"}

Answer: TypeAlias = str | bool | dict[str, str]
"""An answer to a pause, as `CrewExecutor.resume` accepts it."""


async def print_events(stream: EventStream, args: argparse.Namespace) -> RunResult:
    """Print the events of a run to stderr as they arrive, and return its result."""
    last_calls: dict[str, tuple[ToolCall, ...]] = {}
    replies = StreamedReplies()

    try:
        async with stream:
            async for event in stream:
                if isinstance(event, TextDelta):
                    if args.stream:
                        replies.add(event)

                    continue

                if isinstance(event, Replied):
                    last_calls[event.run_id] = event.message.calls

                held = _held_call(event, last_calls) if isinstance(event, CallHeld) else None
                was_streamed = replies.end(event)

                if not args.quiet and not was_streamed and (line := event_line(event, held)):
                    replies.print_line(line)
    finally:
        replies.close()

    return stream.result


@dataclass(slots=True, eq=False)
class _Reply:
    run_id: str
    agent: str
    pieces: list[str]
    """The text that is not printed yet."""
    has_ended: bool = False


class StreamedReplies:
    """Prints the replies of agents that stream at the same time as blocks, one after the other, each with its agent.

    The text of the first reply is printed as it arrives; the others wait until it has ended.
    """

    def __init__(self) -> None:
        self._replies: list[_Reply] = []
        self._last: _Reply | None = None
        """The reply that was printed last, unless another line followed."""
        self._line_is_open = False

    def add(self, event: TextDelta) -> None:
        """Print a piece of a reply, or keep it until it is its turn."""
        if not (text := _delta_text(event)):
            return

        reply = next((one for one in self._replies if one.run_id == event.run_id and not one.has_ended), None)

        if reply is None:
            reply = _Reply(event.run_id, event.agent, [])
            self._replies.append(reply)

        reply.pieces.append(text)
        self._print_next()

    def end(self, event: Event) -> bool:
        """End the replies that the event ends; return whether it repeats the text of one of them."""
        ended = [reply for reply in self._replies if not reply.has_ended and _ends(event, reply)]

        for reply in ended:
            reply.has_ended = True

        self._print_next()
        return bool(ended) and isinstance(event, Replied)

    def print_line(self, line: str) -> None:
        """Print a line between two blocks, or between two parts of a block."""
        self._end_line()
        print(line, file=sys.stderr)

    def close(self) -> None:
        """Print what is left: the run has ended or failed."""
        for reply in self._replies:
            reply.has_ended = True

        self._print_next()

    def _print_next(self) -> None:
        while self._replies:
            reply = self._replies[0]

            for piece in reply.pieces:
                self._print_piece(reply, piece)

            reply.pieces.clear()

            if not reply.has_ended:
                return

            self._end_line()
            self._replies.pop(0)

    def _print_piece(self, reply: _Reply, piece: str) -> None:
        if self._last is not reply:
            self._end_line()
            print(f"{_indent(reply.run_id)}  {reply.agent}: ", end="", file=sys.stderr)

        print(piece, end="", file=sys.stderr, flush=True)
        self._last = None if piece == RESTARTED else reply
        self._line_is_open = not piece.endswith("\n")

    def _end_line(self) -> None:
        if self._line_is_open:
            print(file=sys.stderr)

        self._last, self._line_is_open = None, False


def _ends(event: Event, reply: _Reply) -> bool:
    """Whether no further text of the reply follows: a run asks, pauses or ends only after its branches have ended."""
    if isinstance(event, Replied):
        return event.run_id == reply.run_id

    is_above = f"{reply.run_id}/".startswith(f"{event.run_id}/")
    return is_above and isinstance(event, Asked | Paused | RunFinished | RunFailed | LimitReached)


def _held_call(event: CallHeld, last_calls: Mapping[str, tuple[ToolCall, ...]]) -> ToolCall | None:
    """The held call in the last reply of its run; a call whose id was replaced is found if it is the only one."""
    calls = last_calls.get(event.run_id, ())
    matching = calls if len(calls) == 1 else [call for call in calls if call.id == event.call_id]
    return matching[0] if matching else None


RESTARTED = "\n[The attempt failed; the reply starts again.]\n"
"""Printed text of a failed attempt can't be removed, so that a note marks the restart."""


def _delta_text(event: TextDelta) -> str:
    """The streamed text; empty for channels that are not printed."""
    match event.channel:
        case "text":
            return event.text
        case "restart":
            return RESTARTED
        case _:
            return ""


def ask_user(pause: Pause) -> Answer:
    """Ask the user at the terminal to answer a pause, until the answer is one that the pause accepts."""
    print(f"\n{pause.text}", file=sys.stderr)
    answer: Answer | None = None

    while answer is None:
        answer = parse_answer(pause, prompt(f"{ACCEPTED_ANSWERS[pause.reason]} > "))

    return answer


def parse_answer(pause: Pause, text: str) -> Answer | None:
    """Convert typed text to an answer; None if the pause does not accept it."""
    stripped = text.strip()

    if not stripped:
        return None

    match pause.reason:
        case "input":
            return text
        case "approval":
            return APPROVALS.get(stripped.lower(), stripped)
        case "in_doubt":
            key, equals, result = stripped.partition("=")
            is_result = bool(equals) and key.strip().lower() == "done"
            return {"done": result.strip()} if is_result else DOUBT_ANSWERS.get(stripped.lower())


def print_refusals(pauses: Iterable[Pause], answers: Mapping[str, Answer]) -> None:
    """Print a line for each call that an answer refuses."""
    for pause in pauses:
        answer = answers.get(pause.id, True)

        if pause.reason == "approval" and pause.call is not None and answer is not True:
            reason = f": {answer}" if isinstance(answer, str) else ""
            print(_shorten(f"✗ {pause.call.name} was refused{reason}"), file=sys.stderr)
