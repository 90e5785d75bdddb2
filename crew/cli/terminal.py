"""Prints the events of a run to the terminal and reads the user's answers to pauses."""

from __future__ import annotations

import argparse
import sys
from typing import TypeAlias

from crew.cli.signals import prompt
from crew.engine.stream import EventStream
from crew.messages import ToolCall, Usage
from crew.runs.events import (
    AgentStarted,
    Asked,
    BranchFinished,
    BranchStarted,
    CallsDeclined,
    Event,
    FellBack,
    HandedOff,
    HistoryPruned,
    HistoryRepaired,
    LimitReached,
    Paused,
    Replied,
    Retried,
    Routed,
    RunFailed,
    RunFinished,
    TextDelta,
    ToolReturned,
    ToolsStarted,
    Warned,
)
from crew.runs.result import RunResult
from crew.runs.state import Pause

WIDTH = 100


def event_line(event: Event) -> str | None:
    """The line for an event; None for what would only be noise."""
    words = _words(event)
    return None if words is None else f"{'  ' * event.run_id.count('/')}{words}"


def _words(event: Event) -> str | None:
    return _of_history(event) or _of_graph(event) or _of_agent(event) or _of_run(event)


def _of_history(event: Event) -> str | None:
    match event:
        case HistoryPruned():
            tokens = f"{event.tokens_before} → {event.tokens_after} tokens"
            return f"✂ history pruned by {event.policy}: {event.before} → {event.after} messages, {tokens}"
        case HistoryRepaired():
            return f"✚ history repaired: {'; '.join(event.changes)}"
        case _:
            return None


def _of_graph(event: Event) -> str | None:
    match event:
        case AgentStarted():
            return f"● {event.agent}"
        case HandedOff():
            return f"→ {event.agent} hands over to {event.target}"
        case Routed():
            return f"→ {event.agent} goes on to {event.target or 'the end'} {event.signal}".rstrip()
        case BranchStarted():
            return f"⑂ {event.branch.rsplit('/', 1)[-1]} begins"
        case BranchFinished():
            why = f": {event.error}" if event.error else ""
            return f"⑃ {event.branch.rsplit('/', 1)[-1]} {event.outcome}{why}"
        case _:
            return None


def _of_agent(event: Event) -> str | None:
    match event:
        case Asked():
            return f"  {event.agent} asks {_shorten(event.model, 40)} ({pluralize(event.messages, 'message')})"
        case Replied() if event.message.text:
            return _shorten(f"  {event.agent}: {event.message.text}")
        case ToolsStarted():
            return _shorten(f"  {event.agent} calls {', '.join(_format_call(call) for call in event.calls)}")
        case ToolReturned():
            sign = "✓" if event.result.outcome == "ok" else "✗"
            return _shorten(f"  {sign} {event.result.name}: {event.result.text}")
        case CallsDeclined():
            return f"  {len(event.calls)} calls declined, {event.accepted} accepted"
        case _:
            return None


def _of_run(event: Event) -> str | None:
    match event:
        case Warned():
            return f"! {event.text}"
        case Retried():
            return f"↻ {event.model}: {event.reason}; attempt {event.attempt + 1} in {event.wait:.1f} s"
        case FellBack():
            return f"↻ {event.backup} takes over from {event.model}: {event.reason}"
        case LimitReached():
            return f"■ the limit of {event.value:g} {event.limit} is reached"
        case Paused():
            return f"⏸ waits for {pluralize(len(event.pauses), 'answer')}"
        case RunFailed():
            # Of the whole run the command itself says why, as its last word.
            return f"✗ {event.run_id.partition('/')[2]} failed: {event.error}" if "/" in event.run_id else "✗ failed"
        case RunFinished():
            return f"■ {event.stop_reason} — {usage_line(event.usage)}"
        case _:
            return None


def usage_line(usage: Usage) -> str:
    """What was spent, in a line."""
    cost = "cost unknown" if usage.cost is None else f"${usage.cost:.4f}"
    cached = f", {usage.cache_read_tokens} cached" if usage.cache_read_tokens else ""
    tokens = f"{usage.input_tokens} tokens in{cached}, {usage.output_tokens} out"
    return f"{pluralize(usage.requests, 'request')}, {tokens}, {cost}"


def _format_call(call: ToolCall) -> str:
    return f"{call.name}({call.arguments})"


def pluralize(number: int, what: str) -> str:
    """A number with its noun."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def _shorten(text: str, width: int = WIDTH) -> str:
    flat = " ⏎ ".join(text.strip("\n").splitlines())
    return flat if len(flat) <= width else flat[: width - 1] + "…"


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
