"""A run as data: its state, its events, its limits, its result, and the doors that speak of it."""

from crew.runs.doors import Observer, RunStore, Stored
from crew.runs.events import Event
from crew.runs.limits import Limits
from crew.runs.parameters import RequestParameters
from crew.runs.result import Metrics, RunResult
from crew.runs.state import (
    AskModel,
    AwaitInput,
    Backlog,
    Branch,
    CallTools,
    Compact,
    Finished,
    Next,
    OpenCall,
    Pause,
    RunBranches,
    RunState,
    StopReason,
    Tally,
    ToolTally,
    is_blocked,
    pauses,
)

__all__ = [
    "AskModel",
    "AwaitInput",
    "Backlog",
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
    "RequestParameters",
    "RunBranches",
    "RunResult",
    "RunState",
    "RunStore",
    "StopReason",
    "Stored",
    "Tally",
    "ToolTally",
    "is_blocked",
    "pauses",
]
