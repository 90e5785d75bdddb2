"""What becomes of calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from crew.messages import ToolCall, ToolResult
from crew.runs.events.stamp import Stamp


@dataclass(frozen=True, slots=True, kw_only=True)
class CallHeld(Stamp):
    """A call waits for a person's approval."""

    call_id: str
    kind: Literal["call_held"] = "call_held"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolsStarted(Stamp):
    """Calls begin. Committed before they do, so that after a crash it is known which ones are in doubt."""

    calls: tuple[ToolCall, ...]
    kind: Literal["tools_started"] = "tools_started"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolProgress(Stamp):
    """What a tool showed while it works; not stored."""

    call_id: str
    data: Any
    kind: Literal["tool_progress"] = "tool_progress"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolReturned(Stamp):
    """A call is answered."""

    result: ToolResult
    tokens: int
    seconds: float = 0.0
    kind: Literal["tool_returned"] = "tool_returned"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallsDeclined(Stamp):
    """A reply asked for more calls than are accepted."""

    calls: tuple[str, ...]
    accepted: int
    kind: Literal["calls_declined"] = "calls_declined"
