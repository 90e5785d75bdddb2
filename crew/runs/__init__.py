"""A run as data: its state, its events, its limits, its result, and the interfaces of its store and observers."""

from crew.history.summaries import PendingSummary
from crew.runs.counters import RunCounters, ToolCounters
from crew.runs.events import Event
from crew.runs.interfaces import ImmediateStore, Observer, ObserverFactory, RunInfo, RunObserver, RunStore, StoredRun
from crew.runs.open_calls import OpenCall
from crew.runs.parameters import Limits, RequestParameters
from crew.runs.result import Metrics, MissingOutput, RunResult
from crew.runs.state import (
    AskModel,
    AwaitInput,
    Branch,
    CallTools,
    Compact,
    Finished,
    Next,
    Pause,
    ReachedLimit,
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
    "ImmediateStore",
    "Limits",
    "Metrics",
    "MissingOutput",
    "Next",
    "Observer",
    "ObserverFactory",
    "OpenCall",
    "Pause",
    "PendingSummary",
    "ReachedLimit",
    "RequestParameters",
    "RunBranches",
    "RunCounters",
    "RunInfo",
    "RunObserver",
    "RunResult",
    "RunState",
    "RunStore",
    "StopReason",
    "StoredRun",
    "ToolCounters",
    "is_blocked",
    "pending_pauses",
]
