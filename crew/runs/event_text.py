"""One line of plain English for each event, for log lines and terminals alike; without message content."""

from __future__ import annotations

from crew.messages import Usage
from crew.runs.events import (
    AgentPrepared,
    AgentStarted,
    Asked,
    BranchFinished,
    BranchStarted,
    BranchTimedOut,
    CallEdited,
    CallHeld,
    CallLost,
    CallsDeclined,
    Cancelled,
    Compacted,
    CompactionFailed,
    ConsentAsked,
    Event,
    FellBack,
    GuardrailChecked,
    HandedOff,
    HistoryPruned,
    HistoryRepaired,
    LimitReached,
    Paused,
    QuestionAsked,
    Replied,
    ReplyEmpty,
    RequestDelayed,
    Resumed,
    Retried,
    Routed,
    RunFailed,
    RunFinished,
    RunStarted,
    RunStopped,
    Summarised,
    TooLong,
    ToolReturned,
    ToolsStarted,
    Warned,
)


def event_text(event: Event) -> str:
    """The event in one line; empty for pieces of a stream and for running totals."""
    return _model_text(event) or _tool_text(event) or _agent_text(event) or _history_text(event) or _run_text(event)


def _model_text(event: Event) -> str:
    match event:
        case Asked():
            return f"{event.agent} asks {event.model} ({pluralize(event.messages, 'message')})"
        case Replied():
            calls = f", {pluralize(len(event.message.calls), 'tool call')}" if event.message.calls else ""
            return f"{event.agent} replied: {pluralize(event.usage.output_tokens, 'token')}{calls}"
        case ReplyEmpty():
            return f"{event.agent} replied with nothing" + ("; asking again" if event.outcome == "asked_again" else "")
        case Retried():
            return f"{event.model}: {event.reason}; attempt {event.attempt + 1} in {event.wait:.1f} s"
        case RequestDelayed():
            return f"{event.model}: waiting about {event.wait:.0f} s for the rate limit of {event.limit}"
        case FellBack():
            return f"{event.agent} falls back from {event.model} to {event.backup}: {event.reason}"
        case TooLong():
            return f"the request is too long for {event.model}; sending fewer messages"
        case _:
            return ""


def _tool_text(event: Event) -> str:
    match event:
        case ToolsStarted():
            return f"{event.agent} calls {', '.join(call.name for call in event.calls)}"
        case ToolReturned():
            how = {
                "ok": "returned",
                "retry": "asks the model to try again",
                "error": "failed",
                "unknown": "was given up; its effect is unknown",
            }
            return f"tool {event.result.name} {how[event.result.outcome]}"
        case CallLost():
            return f"the process that ran {event.name} was lost; its effect is unknown"
        case CallHeld():
            return f"call {event.call_id} waits for approval"
        case QuestionAsked():
            return f"tool {event.tool} asks the user"
        case CallEdited():
            return f"arguments of {event.tool} changed" + (f" by {event.by}" if event.by else "")
        case CallsDeclined():
            return f"{pluralize(len(event.calls), 'tool call')} declined, {event.accepted} accepted"
        case _:
            return ""


def _agent_text(event: Event) -> str:
    match event:
        case AgentStarted():
            return f"{event.agent} starts"
        case AgentPrepared():
            tools = pluralize(len(event.prepared.tools), "tool")
            return f"{event.agent}: {f'toolsets listed {tools}' if event.prepared.tools else 'instructions resolved'}"
        case ConsentAsked():
            return f"{', '.join(event.consents)} waits for consent"
        case GuardrailChecked():
            words = {"passed": "passed", "rewritten": "rewrote", "refused": "refused", "held": "asks a person about"}
            subject = f"the call of {event.tool}" if event.tool else f"the {event.on}"
            return f"guardrail {event.guardrail} {words[event.outcome]} {subject}"
        case HandedOff():
            return f"{event.agent} hands off to {event.target}"
        case Routed():
            signal = f" (signal {event.signal})" if event.signal else ""
            function = f" (chosen by {event.function})" if event.function else ""
            return f"{event.agent} routes to {event.target or 'the end'}{signal}{function}"
        case BranchStarted():
            return f"branch {_branch_name(event.branch)} starts"
        case BranchFinished():
            return f"branch {_branch_name(event.branch)} {event.outcome}" + (f": {event.error}" if event.error else "")
        case BranchTimedOut():
            return f"group {event.group} timed out after {event.seconds:g} s"
        case _:
            return ""


def _history_text(event: Event) -> str:
    match event:
        case HistoryPruned():
            sizes = f"{event.before} → {event.after} messages, {event.tokens_before} → {event.tokens_after} tokens"
            return f"{event.where} pruned by {event.policy}: {sizes}"
        case HistoryRepaired():
            return f"history repaired: {'; '.join(event.changes)}"
        case Summarised():
            return f"the summarizer failed: {event.error}" if event.error else "the summarizer answered"
        case Compacted():
            tokens = f"{event.tokens_before} → {event.tokens_after} tokens"
            place = "" if event.where == "history" else " of the view"
            return f"{pluralize(len(event.covers), 'message')}{place} summarized for {event.cause}: {tokens}"
        case CompactionFailed():
            place = "" if event.where == "history" else " of the view"
            return f"no summary{place} for {event.cause}: {event.reason}"
        case _:
            return ""


def _run_text(event: Event) -> str:
    match event:
        case RunStarted():
            return f"run started with {pluralize(len(event.messages), 'message')}"
        case Resumed():
            return f"run resumed with {pluralize(len(event.answers), 'answer')}"
        case Warned():
            return event.text
        case Paused():
            return f"waiting for {pluralize(len(event.pauses), 'answer')}"
        case LimitReached():
            return (
                f"limit reached: {event.value:g} {event.limit.removesuffix('s') if event.value == 1 else event.limit}"
            )
        case RunStopped():
            return f"tool {event.tool} ended the run"
        case Cancelled():
            return "cancelled"
        case RunFailed():
            branch = event.run_id.partition("/")[2]
            return f"branch {branch} failed: {event.error}" if branch else f"run failed: {event.error}"
        case RunFinished():
            return f"{event.stop_reason}: {usage_text(event.usage)}"
        case _:
            return ""


def usage_text(usage: Usage) -> str:
    """Requests, tokens and cost in one line."""
    cost = "cost unknown" if usage.cost is None else f"${usage.cost:.4f}"
    cached = f", {usage.cache_read_tokens} cached" if usage.cache_read_tokens else ""
    tokens = f"{usage.input_tokens} tokens in{cached}, {usage.output_tokens} out"
    return f"{pluralize(usage.requests, 'request')}, {tokens}, {cost}"


def pluralize(number: int, noun: str) -> str:
    """The number with its noun."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _branch_name(path: str) -> str:
    return path.rsplit("/", 1)[-1]
