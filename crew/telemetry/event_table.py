"""What is told within a span rather than as one of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from crew.messages import Usage
from crew.runs.events import (
    AgentStarted,
    Asked,
    BranchFinished,
    BranchStarted,
    BranchTimedOut,
    CallHeld,
    CallsDeclined,
    Cancelled,
    Compacted,
    CompactionFailed,
    FellBack,
    HandedOff,
    HistoryPruned,
    HistoryRepaired,
    LimitReached,
    Paused,
    Replied,
    ReplyEmpty,
    Resumed,
    Retried,
    Routed,
    RunFailed,
    RunFinished,
    RunStarted,
    Summarised,
    TooLong,
    ToolReturned,
    ToolsStarted,
    Warned,
)
from crew.secrets.patterns import redact

NOTES: dict[type[Any], tuple[str, Callable[[Any], dict[str, Any]]]] = {
    Retried: ("crew.retry", lambda e: {"attempt": e.attempt, "reason": redact(e.reason), "wait": e.wait}),
    FellBack: (
        "crew.fallback",
        lambda e: {"model": redact(e.model), "backup": redact(e.backup), "reason": redact(e.reason)},
    ),
    TooLong: ("crew.too_long", lambda e: {"model": redact(e.model), "tokens": e.tokens, "maximum": e.maximum or 0}),
    Paused: ("crew.paused", lambda e: {"pauses": tuple(f"{p.reason} {p.id}" for p in e.pauses)}),
    Routed: ("crew.route", lambda e: {"signal": redact(e.signal), "target": e.target or ""}),
    CallHeld: ("crew.call_held", lambda e: {"call": redact(e.call_id)}),
    CallsDeclined: (
        "crew.calls_declined",
        lambda e: {"calls": tuple(redact(name) for name in e.calls), "accepted": e.accepted},
    ),
    ReplyEmpty: ("crew.reply_empty", lambda e: {"outcome": e.outcome}),
    HistoryRepaired: ("crew.history.repaired", lambda e: {"changes": tuple(redact(change) for change in e.changes)}),
    LimitReached: ("crew.limit_reached", lambda e: {"limit": e.limit, "value": e.value}),
    BranchTimedOut: ("crew.branch_timed_out", lambda e: {"group": e.group, "seconds": e.seconds}),
    Warned: ("crew.warning", lambda e: {"text": redact(e.text)}),
    Cancelled: ("crew.cancelled", lambda e: {}),
}

ON_ROOT = frozenset({"crew.paused", "crew.limit_reached", "crew.cancelled"})
"""What is told of the whole run, whichever branch it happened in."""

LogFields = dict[str, Any]


def _usage_fields(usage: Usage) -> LogFields:
    told: LogFields = {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens}

    if usage.cache_read_tokens:
        told["cache_read_tokens"] = usage.cache_read_tokens

    return told if usage.cost is None else told | {"cost_usd": usage.cost}


def _reply_fields(e: Replied) -> LogFields:
    calls = {"calls": [call.name for call in e.message.calls]} if e.message.calls else {}
    return {"model": e.model, "finish_reason": e.finish_reason, **_usage_fields(e.usage), **calls}


def _pruning_fields(e: HistoryPruned) -> LogFields:
    return {
        "before": e.before,
        "after": e.after,
        "limit": e.limit,
        "evicted": len(e.evicted),
        "policy": e.policy,
        "reason": e.reason,
        "tokens_before": e.tokens_before,
        "tokens_after": e.tokens_after,
        "where": e.where,
        **({"masked": len(e.masked)} if e.masked else {}),
    }


def _compaction_fields(e: Compacted) -> LogFields:
    return {
        "cause": e.cause,
        "covers": len(e.covers),
        "tokens_before": e.tokens_before,
        "tokens_after": e.tokens_after,
    }


def _tool_fields(e: ToolReturned) -> LogFields:
    return {
        "tool": e.result.name,
        "call": e.result.call_id,
        "outcome": e.result.outcome,
        "seconds": round(e.seconds, 6),
    }


LINES: dict[type[Any], tuple[str, Callable[[Any], LogFields]]] = {
    RunStarted: ("run.started", lambda e: {"messages": len(e.messages)}),
    Resumed: ("run.resumed", lambda e: {"answers": len(e.answers)}),
    AgentStarted: ("agent.started", lambda e: {}),
    Asked: (
        "model.asked",
        lambda e: {"provider": e.provider, "model": e.model, "messages": e.messages, "tokens": e.tokens_estimated},
    ),
    Replied: ("model.replied", _reply_fields),
    Retried: (
        "model.retried",
        lambda e: {
            "provider": e.provider,
            "model": e.model,
            "attempt": e.attempt,
            "reason": e.reason,
            "wait": round(e.wait, 3),
        },
    ),
    FellBack: ("model.fell_back", lambda e: {"model": e.model, "backup": e.backup, "reason": e.reason}),
    TooLong: ("model.too_long", lambda e: {"model": e.model, "tokens": e.tokens, "maximum": e.maximum}),
    ReplyEmpty: ("reply.empty", lambda e: {"outcome": e.outcome}),
    ToolsStarted: ("tools.started", lambda e: {"tools": [call.name for call in e.calls]}),
    ToolReturned: ("tool.returned", _tool_fields),
    CallHeld: ("call.held", lambda e: {"call": e.call_id}),
    CallsDeclined: ("calls.declined", lambda e: {"calls": list(e.calls), "accepted": e.accepted}),
    HandedOff: ("handoff", lambda e: {"target": e.target}),
    Routed: ("route", lambda e: {"signal": e.signal, "target": e.target}),
    BranchStarted: ("branch.started", lambda e: {"started": e.branch, "group": e.group or e.tool}),
    BranchFinished: (
        "branch.finished",
        lambda e: {
            "finished": e.branch,
            "group": e.group,
            "outcome": e.outcome,
            **({"error": e.error} if e.error else {}),
        },
    ),
    BranchTimedOut: ("branch.timed_out", lambda e: {"group": e.group, "seconds": e.seconds}),
    HistoryPruned: ("history.pruned", _pruning_fields),
    Summarised: (
        "history.summarised",
        lambda e: {"model": e.model, **_usage_fields(e.usage), **({"error": e.error} if e.error else {})},
    ),
    Compacted: ("history.compacted", _compaction_fields),
    CompactionFailed: (
        "history.compaction_failed",
        lambda e: {"cause": e.cause, "reason": e.reason, "waiting": e.pending_messages},
    ),
    HistoryRepaired: ("history.repaired", lambda e: {"changes": list(e.changes), "where": e.where}),
    LimitReached: ("limit.reached", lambda e: {"limit": e.limit, "value": e.value}),
    Warned: ("run.warned", lambda e: {"text": e.text}),
    Paused: ("run.paused", lambda e: {"pauses": [f"{pause.reason} {pause.id}" for pause in e.pauses]}),
    Cancelled: ("run.cancelled", lambda e: {}),
    RunFailed: ("run.failed", lambda e: {"error": e.error, "error_type": e.error_type}),
    RunFinished: (
        "run.finished",
        lambda e: {"stop_reason": e.stop_reason, "requests": e.usage.requests, **_usage_fields(e.usage)},
    ),
}


def adjusted_level(event: Any, run_id: str) -> str | None:
    """The level of a line that says something worse, or less bad, than its name does."""
    match event:
        case ToolReturned() if event.result.outcome == "error":
            return "warning"
        case BranchFinished(outcome="failed"):
            return "warning"
        case RunFailed() if event.run_id != run_id:
            return "warning"
        case _:
            return None
