"""Log lines, one for each step, made from events."""

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

Fields = dict[str, Any]


def _bill(usage: Usage) -> Fields:
    told: Fields = {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens}

    if usage.cache_read_tokens:
        told["cache_read_tokens"] = usage.cache_read_tokens

    return told if usage.cost is None else told | {"cost_usd": usage.cost}


def _replied(e: Replied) -> Fields:
    calls = {"calls": [call.name for call in e.message.calls]} if e.message.calls else {}
    return {"model": e.model, "finish_reason": e.finish_reason, **_bill(e.usage), **calls}


def _pruned(e: HistoryPruned) -> Fields:
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


def _compacted(e: Compacted) -> Fields:
    return {
        "cause": e.cause,
        "covers": len(e.covers),
        "tokens_before": e.tokens_before,
        "tokens_after": e.tokens_after,
    }


def _returned(e: ToolReturned) -> Fields:
    return {
        "tool": e.result.name,
        "call": e.result.call_id,
        "outcome": e.result.outcome,
        "seconds": round(e.seconds, 6),
    }


LINES: dict[type[Any], tuple[str, Callable[[Any], Fields]]] = {
    RunStarted: ("run.started", lambda e: {"messages": len(e.messages)}),
    Resumed: ("run.resumed", lambda e: {"answers": len(e.answers)}),
    AgentStarted: ("agent.started", lambda e: {}),
    Asked: (
        "model.asked",
        lambda e: {"provider": e.provider, "model": e.model, "messages": e.messages, "tokens": e.tokens},
    ),
    Replied: ("model.replied", _replied),
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
    ToolReturned: ("tool.returned", _returned),
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
    HistoryPruned: ("history.pruned", _pruned),
    Summarised: (
        "history.summarised",
        lambda e: {"model": e.model, **_bill(e.usage), **({"error": e.error} if e.error else {})},
    ),
    Compacted: ("history.compacted", _compacted),
    CompactionFailed: (
        "history.compaction_failed",
        lambda e: {"cause": e.cause, "reason": e.reason, "waiting": e.waiting},
    ),
    HistoryRepaired: ("history.repaired", lambda e: {"changes": list(e.changes), "where": e.where}),
    LimitReached: ("limit.reached", lambda e: {"limit": e.limit, "value": e.value}),
    Warned: ("run.warned", lambda e: {"text": e.text}),
    Paused: ("run.paused", lambda e: {"pauses": [f"{pause.reason} {pause.id}" for pause in e.pauses]}),
    Cancelled: ("run.cancelled", lambda e: {}),
    RunFailed: ("run.failed", lambda e: {"error": e.error, "error_type": e.error_type}),
    RunFinished: (
        "run.finished",
        lambda e: {"stop_reason": e.stop_reason, "requests": e.usage.requests, **_bill(e.usage)},
    ),
}


def louder(event: Any, run_id: str) -> str | None:
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
