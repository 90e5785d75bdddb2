"""Prints the events of a run to the terminal and reads the user's answers to pauses."""

from __future__ import annotations

import argparse
import sys
from typing import TypeAlias

from crew.cli.signals import prompt
from crew.engine.stream import EventStream
from crew.runs.event_text import event_text
from crew.runs.events import (
    AgentStarted,
    BranchFinished,
    BranchStarted,
    CallHeld,
    Cancelled,
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
    HistoryPruned: "✂",
    HistoryRepaired: "✚",
    Retried: "↻",
    FellBack: "↻",
    LimitReached: "■",
    Paused: "⏸",
    RunFinished: "■",
    RunFailed: "✗",
}
LEVEL_SIGNS = {"debug": " ", "info": " ", "warning": "!", "error": "✗"}
NOT_PRINTED = (RunStarted, Resumed, Summarised, CallHeld, Cancelled)
"""Events that repeat what the user typed or what the next printed line says."""


def event_line(event: Event) -> str | None:
    """The line to print for an event; None for an event that is not printed."""
    sign, text = SIGNS.get(type(event)) or LEVEL_SIGNS[event.severity], event_text(event)

    match event:
        case Replied():
            text = _shorten(f"{event.agent}: {event.message.text}") if event.message.text else ""
        case ToolsStarted():
            calls = ", ".join(f"{call.name}({call.arguments})" for call in event.calls)
            text = _shorten(f"{event.agent} calls {calls}")
        case ToolReturned():
            sign = "✓" if event.result.outcome == "ok" else "✗"
            text = _shorten(f"{event.result.name}: {event.result.text}")
        case RunFailed() if "/" not in event.run_id:
            text = "failed"  # the command prints the error as its last line
        case _:
            pass

    if not text or isinstance(event, NOT_PRINTED):
        return None

    indent = "  " * (event.run_id.count("/") + isinstance(event, ToolReturned))
    return f"{indent}{sign} {text}"


def _shorten(text: str) -> str:
    line = " ⏎ ".join(text.strip("\n").splitlines())
    return line if len(line) <= WIDTH else line[: WIDTH - 1] + "…"


PROMPTS = {
    "input": "> ",
    "approval": "[y]es, [n]o, or the reason for no > ",
    "in_doubt": "[r]un again, [s]kip, or the result of the call > ",
}
APPROVALS = {"y": True, "yes": True, "n": False, "no": False, "": False}
DOUBT_ANSWERS = {"r": "run again", "run again": "run again", "s": "skip", "skip": "skip", "": "skip"}

Answer: TypeAlias = str | bool | dict[str, str]
"""An answer to a pause, as `CrewExecutor.resume` accepts it."""


async def print_events(stream: EventStream, args: argparse.Namespace) -> RunResult:
    """Print the events of a run to stderr as they arrive, and return its result."""
    async with stream:
        async for event in stream:
            if isinstance(event, TextDelta):
                if args.stream:
                    print(_delta_text(event), end="", file=sys.stderr, flush=True)
            elif not args.quiet and (line := event_line(event)):
                print(line, file=sys.stderr)

    return stream.result


def _delta_text(event: TextDelta) -> str:
    """The streamed text; printed text of a failed attempt can't be removed, so that a note marks the restart."""
    match event.channel:
        case "text":
            return event.text
        case "restart":
            return "\n[The attempt failed; the reply starts again.]\n"
        case _:
            return ""


def ask_user(pause: Pause) -> Answer:
    """Ask the user at the terminal to answer a pause."""
    print(f"\n{pause.text}", file=sys.stderr)
    return parse_answer(pause, prompt(PROMPTS[pause.reason]))


def parse_answer(pause: Pause, text: str) -> Answer:
    """Convert typed text to the answer that the pause accepts."""
    if pause.reason == "input":
        return text

    stripped = text.strip()

    if pause.reason == "approval":
        return APPROVALS.get(stripped.lower(), stripped)

    return DOUBT_ANSWERS.get(stripped.lower(), {"done": stripped})
