"""A run as a person reads it: one line for each thing worth a look."""

from __future__ import annotations

from crew.messages import ToolCall, Usage
from crew.runs import Event
from crew.runs.events import (
    AgentStarted,
    Asked,
    BranchFinished,
    BranchStarted,
    CallsDeclined,
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
    ToolReturned,
    ToolsStarted,
    Warned,
)

WIDTH = 100


def line_of(event: Event) -> str | None:
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
            return f"  {event.agent} asks {_short(event.model, 40)} ({counted(event.messages, 'message')})"
        case Replied() if event.message.text:
            return _short(f"  {event.agent}: {event.message.text}")
        case ToolsStarted():
            return _short(f"  {event.agent} calls {', '.join(_call(call) for call in event.calls)}")
        case ToolReturned():
            sign = "✓" if event.result.outcome == "ok" else "✗"
            return _short(f"  {sign} {event.result.name}: {event.result.text}")
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
            return f"⏸ waits for {counted(len(event.pauses), 'answer')}"
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
    return f"{counted(usage.requests, 'request')}, {tokens}, {cost}"


def _call(call: ToolCall) -> str:
    return f"{call.name}({call.arguments})"


def counted(number: int, what: str) -> str:
    """A number with its noun."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def _short(text: str, width: int = WIDTH) -> str:
    flat = " ⏎ ".join(text.strip("\n").splitlines())
    return flat if len(flat) <= width else flat[: width - 1] + "…"
