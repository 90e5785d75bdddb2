"""How each event appears in logs and as a span event: its name there, its meaning, and its fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from crew.messages import Usage
from crew.runs.events import (
    AgentPrepared,
    AgentStarted,
    Asked,
    BaseEvent,
    BranchFinished,
    BranchStarted,
    BranchTimedOut,
    CallEdited,
    CallHeld,
    CallsDeclined,
    Cancelled,
    Compacted,
    CompactionFailed,
    ConsentAsked,
    FellBack,
    GuardrailChecked,
    HandedOff,
    HistoryPruned,
    HistoryRepaired,
    Level,
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
from crew.secrets.patterns import redact

Scalar = str | int | float
Fields = Mapping[str, Scalar | Sequence[str] | None]
SpanFields = Mapping[str, Scalar | Sequence[str]]


class LogEntry(NamedTuple):
    """The log line of an event: its name, its meaning in the docs, and its fields beside `text` and the ids."""

    name: str
    meaning: str
    fields: Callable[[Any], Fields]


class SpanEntry(NamedTuple):
    """The span event of an event: its name, its meaning in the docs, and its attributes."""

    name: str
    meaning: str
    fields: Callable[[Any], SpanFields]


# ------------------------------------------------------------------------------------------------ log lines


def _usage_fields(usage: Usage) -> dict[str, Scalar]:
    fields: dict[str, Scalar] = {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens}

    if usage.cache_read_tokens:
        fields["cache_read_tokens"] = usage.cache_read_tokens

    if usage.cost is not None:
        fields["cost_usd"] = usage.cost

    return fields


def _error_field(error: str) -> dict[str, str]:
    return {"error": error} if error else {}


def _reply_fields(event: Replied) -> Fields:
    calls = {"calls": [call.name for call in event.message.calls]} if event.message.calls else {}
    return {"model": event.model, "finish_reason": event.finish_reason, **_usage_fields(event.usage), **calls}


def _guardrail_fields(event: GuardrailChecked) -> SpanFields:
    made = {"tool": redact(event.tool), "call": redact(event.call_id)} if event.tool else {}
    return {
        "guardrail": event.guardrail,
        "on": event.on,
        "outcome": event.outcome,
        "seconds": round(event.seconds, 3),
        **made,
    }


def _retry_fields(event: Retried) -> Fields:
    return {
        "provider": event.provider,
        "model": event.model,
        "attempt": event.attempt,
        "reason": event.reason,
        "wait": round(event.wait, 3),
    }


def _tool_fields(event: ToolReturned) -> Fields:
    result = event.result
    return {
        "tool": result.name,
        "call": result.call_id,
        "outcome": result.outcome,
        "seconds": round(event.seconds, 6),
    }


def _pruning_fields(event: HistoryPruned) -> Fields:
    return {
        "before": event.before,
        "after": event.after,
        "limit": event.limit,
        "evicted": len(event.evicted),
        "policy": event.policy,
        "reason": event.reason,
        "tokens_before": event.tokens_before,
        "tokens_after": event.tokens_after,
        "where": event.where,
        **({"masked": len(event.masked)} if event.masked else {}),
        **({"cut": len(event.cut)} if event.cut else {}),
    }


def _compaction_fields(event: Compacted) -> Fields:
    return {
        "cause": event.cause,
        "covers": len(event.covers),
        "tokens_before": event.tokens_before,
        "tokens_after": event.tokens_after,
        "where": event.where,
    }


def _pause_fields(event: Paused) -> SpanFields:
    return {"pauses": [f"{pause.reason} {pause.id}" for pause in event.pauses]}


LOG_ENTRIES: dict[type[BaseEvent], LogEntry] = {
    RunStarted: LogEntry("run.started", "A run started; messages.", lambda e: {"messages": len(e.messages)}),
    Resumed: LogEntry("run.resumed", "A run resumed; answers (how many).", lambda e: {"answers": len(e.answers)}),
    AgentStarted: LogEntry("agent.started", "An agent became active.", lambda e: {}),
    AgentPrepared: LogEntry(
        "agent.prepared",
        "Instructions and toolsets of an agent were resolved; tools (how many its toolsets have).",
        lambda e: {"tools": len(e.prepared.tools)},
    ),
    ConsentAsked: LogEntry(
        "consent.asked", "Toolsets ask a person first; toolsets.", lambda e: {"toolsets": [*e.consents]}
    ),
    GuardrailChecked: LogEntry(
        "guardrail.checked",
        "A guardrail checked an input, a call or an output; guardrail, on, outcome, seconds, for a call tool and call.",
        _guardrail_fields,
    ),
    Asked: LogEntry(
        "model.asked",
        "A request is sent to a model; provider, model, messages, tokens.",
        lambda e: {"provider": e.provider, "model": e.model, "messages": e.messages, "tokens": e.tokens_estimated},
    ),
    Replied: LogEntry("model.replied", "The model replied; model, finish_reason, tokens, cost, calls.", _reply_fields),
    Retried: LogEntry(
        "model.retried", "An attempt failed and is repeated; provider, model, attempt, reason, wait.", _retry_fields
    ),
    RequestDelayed: LogEntry(
        "model.delayed",
        "A request waits for over a second for a rate limit; provider, model, limit, wait.",
        lambda e: {"provider": e.provider, "model": e.model, "limit": e.limit, "wait": e.wait},
    ),
    FellBack: LogEntry(
        "model.fell_back",
        "The agent switched to its backup model; model, backup, reason.",
        lambda e: {"model": e.model, "backup": e.backup, "reason": e.reason},
    ),
    TooLong: LogEntry(
        "model.too_long",
        "The request exceeded the model's context window and is cut further; model, tokens, maximum.",
        lambda e: {"model": e.model, "tokens": e.tokens, "maximum": e.maximum},
    ),
    ReplyEmpty: LogEntry(
        "reply.empty", "The reply had no text and no calls; outcome.", lambda e: {"outcome": e.outcome}
    ),
    ToolsStarted: LogEntry(
        "tools.started", "Tool calls start; tools.", lambda e: {"tools": [call.name for call in e.calls]}
    ),
    ToolReturned: LogEntry(
        "tool.returned",
        "A tool call has its result; tool, call, outcome, seconds. An error is a warning, with error_type.",
        _tool_fields,
    ),
    CallHeld: LogEntry("call.held", "A tool call waits for approval; call.", lambda e: {"call": e.call_id}),
    QuestionAsked: LogEntry(
        "tool.question",
        "A tool asks a person, and runs again once that is answered; tool, call.",
        lambda e: {"tool": e.tool, "call": e.call_id},
    ),
    CallEdited: LogEntry(
        "call.edited",
        "A person approved a tool call with other arguments; call, tool, by.",
        lambda e: {"call": e.call_id, "tool": e.tool, "by": e.by},
    ),
    CallsDeclined: LogEntry(
        "calls.declined",
        "A reply had more tool calls than are accepted; calls, accepted.",
        lambda e: {"calls": list(e.calls), "accepted": e.accepted},
    ),
    HandedOff: LogEntry(
        "handoff", "The agent handed control to another agent or group; target.", lambda e: {"target": e.target}
    ),
    Routed: LogEntry(
        "route",
        "A signal, or `then`, selected the next agent; signal, target, and the function that chose it.",
        lambda e: {"signal": e.signal, "target": e.target, "function": e.function},
    ),
    BranchStarted: LogEntry(
        "branch.started",
        "A branch, or an agent called as a tool, started; started, group.",
        lambda e: {"started": e.branch, "group": e.group or e.tool},
    ),
    BranchFinished: LogEntry(
        "branch.finished",
        "A branch, or an agent called as a tool, ended; finished, group, outcome. A failure is a warning, with error.",
        lambda e: {"finished": e.branch, "group": e.group, "outcome": e.outcome, **_error_field(e.error)},
    ),
    BranchTimedOut: LogEntry(
        "branch.timed_out",
        "The time limit of a group expired; group, seconds.",
        lambda e: {"group": e.group, "seconds": e.seconds},
    ),
    HistoryPruned: LogEntry(
        "history.pruned",
        "Messages were evicted, masked or cut; before, after, limit, evicted, policy, reason, tokens, where, masked, "
        "cut.",
        _pruning_fields,
    ),
    HistoryRepaired: LogEntry(
        "history.repaired",
        "An invalid history was repaired; changes, where (`input` or `view`).",
        lambda e: {"changes": list(e.changes), "where": e.where},
    ),
    Compacted: LogEntry(
        "history.compacted",
        "A summary replaced messages; cause, covers, tokens, where (`history` or the agent's `view`).",
        _compaction_fields,
    ),
    CompactionFailed: LogEntry(
        "history.compaction_failed",
        "No summary was made; cause, reason, waiting (messages kept for the next attempt), where.",
        lambda e: {"cause": e.cause, "reason": e.reason, "waiting": e.pending_messages, "where": e.where},
    ),
    Summarised: LogEntry(
        "history.summarised",
        "The summarizer answered; model, tokens, cost, error.",
        lambda e: {"model": e.model, **_usage_fields(e.usage), **_error_field(e.error)},
    ),
    LimitReached: LogEntry(
        "limit.reached",
        "The run reached a limit and ends; limit, value.",
        lambda e: {"limit": e.limit, "value": e.value},
    ),
    Warned: LogEntry("run.warned", "A warning, such as 80 % of a limit being used.", lambda e: {}),
    Paused: LogEntry("run.paused", "The run stopped until a person answers; pauses.", _pause_fields),
    RunStopped: LogEntry(
        "run.stopped", "A tool ended the run; tool, call.", lambda e: {"tool": e.tool, "call": e.call_id}
    ),
    Cancelled: LogEntry("run.cancelled", "The run was cancelled.", lambda e: {}),
    RunFailed: LogEntry(
        "run.failed",
        "A run failed; error, error_type. Of a branch, a warning.",
        lambda e: {"error": e.error, "error_type": e.error_type},
    ),
    RunFinished: LogEntry(
        "run.finished",
        "The run returned; stop_reason, requests, tokens, cost.",
        lambda e: {"stop_reason": e.stop_reason, "requests": e.usage.requests, **_usage_fields(e.usage)},
    ),
}
"""An event that has no entry is logged under its kind, with its text as the only field."""

INTERRUPTED = "run.interrupted"
TOOL_RAISED = "tool.raised"

LOG_EVENTS: dict[str, tuple[Level, str]] = {
    **{entry.name: (kind.level, entry.meaning) for kind, entry in LOG_ENTRIES.items()},
    TOOL_RAISED: ("warning", "A tool raised; tool, call, error_type, exception (the traceback, without secrets)."),
    INTERRUPTED: ("info", "The caller stopped waiting for the run; its state is committed, and it can be resumed."),
}

# ------------------------------------------------------------------------------------------------ span events

SPAN_EVENT_ENTRIES: dict[type[BaseEvent], SpanEntry] = {
    Retried: SpanEntry(
        "crew.retry",
        "On `chat`: an attempt failed and is repeated; attempt, reason, wait.",
        lambda e: {"attempt": e.attempt, "reason": redact(e.reason), "wait": e.wait},
    ),
    RequestDelayed: SpanEntry(
        "crew.delayed",
        "On `chat`: the request waits for over a second for a rate limit; limit, wait.",
        lambda e: {"limit": redact(e.limit), "wait": e.wait},
    ),
    FellBack: SpanEntry(
        "crew.fallback",
        "The agent switched to its backup model; model, backup, reason.",
        lambda e: {"model": redact(e.model), "backup": redact(e.backup), "reason": redact(e.reason)},
    ),
    TooLong: SpanEntry(
        "crew.too_long",
        "The request exceeded the model's context window and is cut further; model, tokens, maximum.",
        lambda e: {"model": redact(e.model), "tokens": e.tokens, "maximum": e.maximum or 0},
    ),
    Paused: SpanEntry("crew.paused", "On the root: the run stopped until a person answers; pauses.", _pause_fields),
    Routed: SpanEntry(
        "crew.route",
        "A signal, or `then`, selected the next agent; signal, target, and the function that chose it.",
        lambda e: {"signal": redact(e.signal), "target": e.target or "", "function": redact(e.function)},
    ),
    AgentPrepared: SpanEntry(
        "crew.agent_prepared",
        "Instructions and toolsets of an agent were resolved; tools (how many its toolsets have).",
        lambda e: {"tools": len(e.prepared.tools)},
    ),
    ConsentAsked: SpanEntry(
        "crew.consent_asked",
        "Toolsets ask a person first; toolsets.",
        lambda e: {"toolsets": [redact(name) for name in e.consents]},
    ),
    GuardrailChecked: SpanEntry(
        "crew.guardrail",
        "A guardrail checked an input, a call or an output; guardrail, on, outcome, seconds, for a call tool and call.",
        _guardrail_fields,
    ),
    CallHeld: SpanEntry(
        "crew.call_held", "A tool call waits for approval; call.", lambda e: {"call": redact(e.call_id)}
    ),
    QuestionAsked: SpanEntry(
        "crew.question",
        "A tool asks a person, and runs again once that is answered; tool, call.",
        lambda e: {"tool": e.tool, "call": redact(e.call_id)},
    ),
    CallEdited: SpanEntry(
        "crew.call_edited",
        "A person approved a tool call with other arguments; call, tool, by.",
        lambda e: {"call": redact(e.call_id), "tool": e.tool, "by": redact(e.by)},
    ),
    CallsDeclined: SpanEntry(
        "crew.calls_declined",
        "A reply had more tool calls than are accepted; calls, accepted.",
        lambda e: {"calls": [redact(name) for name in e.calls], "accepted": e.accepted},
    ),
    ReplyEmpty: SpanEntry(
        "crew.reply_empty", "The reply had no text and no calls; outcome.", lambda e: {"outcome": e.outcome}
    ),
    HistoryRepaired: SpanEntry(
        "crew.history.repaired",
        "An invalid history was repaired; changes.",
        lambda e: {"changes": [redact(change) for change in e.changes]},
    ),
    LimitReached: SpanEntry(
        "crew.limit_reached",
        "On the root: the run reached a limit and ends; limit, value.",
        lambda e: {"limit": e.limit, "value": e.value},
    ),
    BranchTimedOut: SpanEntry(
        "crew.branch_timed_out",
        "On the group: its time limit expired; group, seconds.",
        lambda e: {"group": e.group, "seconds": e.seconds},
    ),
    Warned: SpanEntry(
        "crew.warning", "A warning, such as 80 % of a limit being used; text.", lambda e: {"text": redact(e.text)}
    ),
    RunStopped: SpanEntry(
        "crew.stopped", "A tool ended the run; tool, call.", lambda e: {"tool": e.tool, "call": redact(e.call_id)}
    ),
    Cancelled: SpanEntry("crew.cancelled", "On the root: the run was cancelled.", lambda e: {}),
}

SPAN_EVENTS: dict[str, str] = {entry.name: entry.meaning for entry in SPAN_EVENT_ENTRIES.values()}

ON_ROOT = frozenset({"crew.paused", "crew.limit_reached", "crew.cancelled"})
"""Span events about the whole run, whichever branch they happened in."""
