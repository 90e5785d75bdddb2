"""What a run came to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from crew.messages import Message, Transcript, Usage
from crew.runs.state import Branch, Pause, RunState, StopReason, ToolTally


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """How the history fared, and who spent what."""

    messages: int
    limit: int | None
    estimated_tokens: int
    prunings: int
    messages_pruned: int
    sizes: tuple[tuple[int, int], ...]
    by_agent: Mapping[str, Usage]
    by_tool: Mapping[str, ToolTally]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """What a run came to. `history` is bounded and ready for the next `execute`; `transcript` is everything.

    Handed in as `history=` itself, the conversation goes on where it stood.
    """

    output: Any
    stop_reason: StopReason
    run_id: str
    conversation_id: str
    agent: str
    history: tuple[Message, ...]
    transcript: Transcript = field(repr=False)
    usage: Usage
    metrics: Metrics = field(repr=False)
    pauses: tuple[Pause, ...] = ()
    branches: tuple[Branch, ...] = field(default=(), repr=False)
    trace_id: str = ""
    state: RunState = field(repr=False)
