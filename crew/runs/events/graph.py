"""Where the work goes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from crew.runs.events.stamp import Stamp


@dataclass(frozen=True, slots=True, kw_only=True)
class HandedOff(Stamp):
    """The work goes to another agent or group."""

    target: str
    call_id: str
    kind: Literal["handed_off"] = "handed_off"


@dataclass(frozen=True, slots=True, kw_only=True)
class Routed(Stamp):
    """A signal, or `then`, sends the work on; no target: the run ends."""

    signal: str
    target: str | None
    kind: Literal["routed"] = "routed"


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchStarted(Stamp):
    """A branch of a group, or an agent called as a tool, begins as a run of its own."""

    branch: str
    group: str = ""
    tool: str = ""
    kind: Literal["branch_started"] = "branch_started"


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchFinished(Stamp):
    """A branch, or an agent called as a tool, has ended."""

    branch: str
    outcome: str
    error: str = ""
    group: str = ""
    kind: Literal["branch_finished"] = "branch_finished"


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchTimedOut(Stamp):
    """The group's time is over; what has not ended by now has failed."""

    group: str
    seconds: float
    kind: Literal["branch_timed_out"] = "branch_timed_out"
