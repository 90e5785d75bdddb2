"""Prints the events of a run to the terminal."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from crew.engine.stream import EventStream
from crew.messages import ToolCall
from crew.runs.call_text import argument_lines
from crew.runs.event_text import event_text
from crew.runs.events import (
    AgentPrepared,
    AgentStarted,
    Asked,
    BranchFinished,
    BranchStarted,
    CallEdited,
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
    QuestionAsked,
    Replied,
    Resumed,
    Retried,
    Routed,
    RunFailed,
    RunFinished,
    RunStarted,
    RunStopped,
    Summarised,
    TextDelta,
    ToolProgress,
    ToolReturned,
    ToolsStarted,
)
from crew.runs.progress_text import progress_text
from crew.runs.result import RunResult

WIDTH = 100
PROGRESS_SECONDS = 0.5

SIGNS: dict[type[Event], str] = {
    AgentStarted: "●",
    HandedOff: "→",
    Routed: "→",
    BranchStarted: "⑂",
    BranchFinished: "⑃",
    CallHeld: "⏸",
    CallEdited: "✎",
    QuestionAsked: "⏸",
    RunStopped: "■",
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
        case AgentPrepared() if not event.prepared.tools:
            text = ""
        case Asked() if event.model.startswith("scripted:"):
            text = event_text(replace(event, model="scripted"))  # the rest of the name is its reply
        case Replied():
            text = shorten(f"{event.agent}: {event.message.text}") if event.message.text else ""
        case ToolsStarted():
            calls = ", ".join(f"{call.name}({call.arguments})" for call in event.calls)
            text = shorten(f"{event.agent} calls {calls}")
        case CallHeld() if held is not None:
            listed = ", ".join(argument_lines(event.arguments, ""))
            text = shorten(f"{event.agent} wants to call {held.name}({listed})") + ": waits for approval"
        case ToolProgress():
            sign, text = "…", shorten(f"{event.tool}: {progress_text(event.data)}")
        case QuestionAsked():
            text = shorten(f"{event.tool} asks: {event.question.text}")
        case RunStopped():
            text = shorten(f"{text}: {event.reason}")
        case CallEdited():
            text = shorten(f"{text}: {event.changes}")
        case ToolReturned():
            sign = {"ok": "✓", "retry": "↻"}.get(event.result.outcome, "✗")
            text = shorten(f"{event.result.name}: {event.result.text}")
        case RunFailed() if "/" not in event.run_id:
            text = "failed"  # the command prints the error as its last line
        case _:
            pass

    if not text or isinstance(event, NOT_PRINTED):
        return None

    indent = _indent(event.run_id) + "  " * isinstance(event, ToolReturned | ToolProgress)
    return f"{indent}{sign} {text}"


def _indent(run_id: str) -> str:
    """Two spaces for each level of the run below the first."""
    return "  " * run_id.count("/")


def shorten(text: str) -> str:
    """The text in one line of the terminal."""
    line = " ⏎ ".join(text.strip("\n").splitlines())
    return line if len(line) <= WIDTH else line[: WIDTH - 1] + "…"


async def print_events(
    stream: EventStream, args: argparse.Namespace, on_start: Callable[[], None] | None = None
) -> RunResult:
    """Print the events of a run to stderr as they arrive, and return its result.

    `on_start` is called at the first event: the run has accepted its input or the answers.
    """
    last_calls: dict[str, tuple[ToolCall, ...]] = {}
    replies, progress = StreamedReplies(), ProgressLines()

    try:
        async with stream:
            async for event in stream:
                if on_start is not None:
                    on_start()
                    on_start = None

                if isinstance(event, TextDelta):
                    if args.stream:
                        replies.add(event)

                    continue

                if isinstance(event, Replied):
                    last_calls[event.run_id] = event.message.calls

                held = _held_call(event, last_calls) if isinstance(event, CallHeld) else None
                was_streamed = replies.end(event)

                if args.quiet or was_streamed:
                    continue

                for shown in progress.due(event):
                    if line := event_line(shown, held):
                        replies.print_line(line)
    finally:
        replies.close()

    return stream.result


class ProgressLines:
    """Chooses which progress is printed: of each call at most one line in half a second, and the last one."""

    def __init__(self) -> None:
        self._printed_at: dict[str, float] = {}
        self._skipped: dict[str, ToolProgress] = {}

    def due(self, event: Event) -> Iterator[Event]:
        """The events to print now that this one has arrived."""
        if isinstance(event, ToolProgress):
            key = event.key or event.call_id

            if event.at - self._printed_at.get(key, -1.0) < PROGRESS_SECONDS:
                self._skipped[key] = event
                return

            self._printed_at[key] = event.at
            self._skipped.pop(key, None)
        elif isinstance(event, ToolReturned) and (last := self._skipped.pop(event.key, None)):
            yield last

        yield event


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
