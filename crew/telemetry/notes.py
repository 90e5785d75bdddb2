"""What is told within a span rather than as one of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from crew.runs.events import (
    BranchTimedOut,
    CallHeld,
    CallsDeclined,
    Cancelled,
    FellBack,
    HistoryRepaired,
    LimitReached,
    Paused,
    ReplyEmpty,
    Retried,
    Routed,
    TooLong,
    Warned,
)
from crew.telemetry.redaction import safe

NOTES: dict[type[Any], tuple[str, Callable[[Any], dict[str, Any]]]] = {
    Retried: ("crew.retry", lambda e: {"attempt": e.attempt, "reason": safe(e.reason), "wait": e.wait}),
    FellBack: (
        "crew.fallback",
        lambda e: {"model": safe(e.model), "backup": safe(e.backup), "reason": safe(e.reason)},
    ),
    TooLong: ("crew.too_long", lambda e: {"model": safe(e.model), "tokens": e.tokens, "maximum": e.maximum or 0}),
    Paused: ("crew.paused", lambda e: {"pauses": tuple(f"{p.reason} {p.id}" for p in e.pauses)}),
    Routed: ("crew.route", lambda e: {"signal": safe(e.signal), "target": e.target or ""}),
    CallHeld: ("crew.call_held", lambda e: {"call": safe(e.call_id)}),
    CallsDeclined: (
        "crew.calls_declined",
        lambda e: {"calls": tuple(safe(name) for name in e.calls), "accepted": e.accepted},
    ),
    ReplyEmpty: ("crew.reply_empty", lambda e: {"outcome": e.outcome}),
    HistoryRepaired: ("crew.history.repaired", lambda e: {"changes": tuple(safe(change) for change in e.changes)}),
    LimitReached: ("crew.limit_reached", lambda e: {"limit": e.limit, "value": e.value}),
    BranchTimedOut: ("crew.branch_timed_out", lambda e: {"group": e.group, "seconds": e.seconds}),
    Warned: ("crew.warning", lambda e: {"text": safe(e.text)}),
    Cancelled: ("crew.cancelled", lambda e: {}),
}

ON_ROOT = frozenset({"crew.paused", "crew.limit_reached", "crew.cancelled"})
"""What is told of the whole run, whichever branch it happened in."""
