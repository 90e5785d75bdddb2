"""What happens in a run, as typed values: one stream for the caller, the terminal, logs, traces and the store."""

from __future__ import annotations

from typing import Annotated

from pydantic import Discriminator

from crew.runs.events.compaction import Compacted, CompactionFailed, Summarised
from crew.runs.events.graph import BranchFinished, BranchStarted, BranchTimedOut, HandedOff, Routed
from crew.runs.events.history import HistoryPruned, HistoryRepaired
from crew.runs.events.model import AgentStarted, Asked, FellBack, Replied, ReplyEmpty, Retried, TextDelta, TooLong
from crew.runs.events.run import (
    Cancelled,
    LimitReached,
    Paused,
    Resumed,
    RunFailed,
    RunFinished,
    RunStarted,
    UsageChanged,
    Warned,
)
from crew.runs.events.stamp import Stamp
from crew.runs.events.tools import CallHeld, CallsDeclined, ToolProgress, ToolReturned, ToolsStarted

Event = Annotated[
    RunStarted
    | AgentStarted
    | Asked
    | TextDelta
    | Replied
    | ReplyEmpty
    | Retried
    | FellBack
    | TooLong
    | CallHeld
    | ToolsStarted
    | ToolProgress
    | ToolReturned
    | CallsDeclined
    | HandedOff
    | Routed
    | BranchStarted
    | BranchFinished
    | BranchTimedOut
    | HistoryPruned
    | HistoryRepaired
    | Summarised
    | Compacted
    | CompactionFailed
    | Warned
    | UsageChanged
    | Paused
    | Resumed
    | LimitReached
    | Cancelled
    | RunFailed
    | RunFinished,
    Discriminator("kind"),
]

__all__ = [
    "AgentStarted",
    "Asked",
    "BranchFinished",
    "BranchStarted",
    "BranchTimedOut",
    "CallHeld",
    "CallsDeclined",
    "Cancelled",
    "Compacted",
    "CompactionFailed",
    "Event",
    "FellBack",
    "HandedOff",
    "HistoryPruned",
    "HistoryRepaired",
    "LimitReached",
    "Paused",
    "Replied",
    "ReplyEmpty",
    "Resumed",
    "Retried",
    "Routed",
    "RunFailed",
    "RunFinished",
    "RunStarted",
    "Stamp",
    "Summarised",
    "TextDelta",
    "TooLong",
    "ToolProgress",
    "ToolReturned",
    "ToolsStarted",
    "UsageChanged",
    "Warned",
]
