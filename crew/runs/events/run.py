"""How a run begins, waits and ends."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from crew.history import Gauge
from crew.messages import Message, Usage
from crew.runs.events.stamp import Stamp
from crew.runs.state import Pause


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted(Stamp):
    """A run begins; the last of the messages is its goal, those before it came in as history.

    `trace` is the W3C traceparent of the span under which it is traced; empty where nobody traces.
    """

    messages: tuple[Message, ...]
    tokens: tuple[int, ...]
    repairs: tuple[str, ...] = ()
    gauges: dict[str, tuple[Gauge, ...]] = field(default_factory=dict)
    trace: str = ""
    kind: Literal["run_started"] = "run_started"


@dataclass(frozen=True, slots=True, kw_only=True)
class Warned(Stamp):
    """Something that a person may want to know before it becomes a problem."""

    text: str
    kind: Literal["warned"] = "warned"


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageChanged(Stamp):
    """What this run has spent so far."""

    usage: Usage
    kind: Literal["usage_changed"] = "usage_changed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Paused(Stamp):
    """The run waits for a person."""

    pauses: tuple[Pause, ...]
    kind: Literal["paused"] = "paused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed(Stamp):
    """The run goes on, with these answers."""

    answers: dict[str, Any] = field(default_factory=dict)
    trace: str = ""
    kind: Literal["resumed"] = "resumed"


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitReached(Stamp):
    """A limit ends the run."""

    limit: str
    value: float
    kind: Literal["limit_reached"] = "limit_reached"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancelled(Stamp):
    """Somebody asked for the end."""

    kind: Literal["cancelled"] = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFailed(Stamp):
    """A run, or a branch, can't go on."""

    error: str
    error_type: str = ""
    kind: Literal["run_failed"] = "run_failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFinished(Stamp):
    """The last event of a run that returns."""

    stop_reason: str
    output: str
    usage: Usage
    kind: Literal["run_finished"] = "run_finished"
