"""A run as a person reads it: one line for each thing worth a look."""

from __future__ import annotations

import argparse
import sys
from typing import Any

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
    "approval": "[y]es, [n]o, or why not > ",
    "in_doubt": "[r]un again, [s]kip, or what it returned > ",
}


def _delta_text(event: TextDelta) -> str:
    """What the terminal shows of a piece; an attempt that failed can't be unprinted, so that it is struck out aloud."""
    match event.channel:
        case "text":
            return event.text
        case "restart":
            return "\n[that attempt failed; the reply begins again]\n"
        case _:
            return ""


async def _print_events(stream: EventStream, given: argparse.Namespace) -> RunResult:
    async with stream:
        async for event in stream:
            if isinstance(event, TextDelta):
                if given.stream:
                    print(_delta_text(event), end="", file=sys.stderr, flush=True)
            elif not given.quiet and (line := event_line(event)):
                print(line, file=sys.stderr)

    return stream.result


def _ask_person(pause: Pause) -> Any:
    print(f"\n{pause.text}", file=sys.stderr)

    return parse_answer(pause, prompt(PROMPTS[pause.reason]))


def parse_answer(pause: Pause, words: str) -> Any:
    """A person's words as the answer that this pause takes."""
    given = words.strip()

    if pause.reason == "input":
        return words

    if pause.reason == "approval":
        return {"y": True, "yes": True, "n": False, "no": False, "": False}.get(given.lower(), given)

    known = {"r": "run again", "run again": "run again", "s": "skip", "skip": "skip", "": "skip"}
    return known.get(given.lower(), {"done": given})
