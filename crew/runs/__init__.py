"""A run as data: its state, its events, its limits, its result, and the doors that speak of it."""

from crew.runs.counters import RunCounters, ToolCounters
from crew.runs.events import Event
from crew.runs.interfaces import Observer, RunStore, StoredRun
from crew.runs.parameters import Limits, RequestParameters
from crew.runs.result import Metrics, RunResult
from crew.runs.state import (
    AskModel,
    AwaitInput,
    Branch,
    CallTools,
    Compact,
    Finished,
    Next,
    OpenCall,
    Pause,
    PendingSummary,
    RunBranches,
    RunState,
    StopReason,
    is_blocked,
    pending_pauses,
)

__all__ = [
    "AskModel",
    "AwaitInput",
    "Branch",
    "CallTools",
    "Compact",
    "Event",
    "Finished",
    "Limits",
    "Metrics",
    "Next",
    "Observer",
    "OpenCall",
    "Pause",
    "PendingSummary",
    "RequestParameters",
    "RunBranches",
    "RunCounters",
    "RunResult",
    "RunState",
    "RunStore",
    "StopReason",
    "StoredRun",
    "ToolCounters",
    "is_blocked",
    "pending_pauses",
]
