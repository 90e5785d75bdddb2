"""What a run came to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from crew.messages import Message, Transcript, Usage
from crew.runs.counters import ToolCounters
from crew.runs.state import Branch, Pause, RunState, StopReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """How the history fared, and who spent what.

    `by_policy` counts prunings and moves of views by the policy or rule behind them. `tokens_saved` estimates what the
    requests would have held beyond what they did, had nothing been pruned, and `cost_saved` what the run would have
    cost beyond what it did, at its own prices, in dollars; None where a price is unknown. The rest sums up the
    manifests.
    """

    messages: int
    limit: int | None
    estimated_tokens: int
    prunings: int
    messages_pruned: int
    sizes: tuple[tuple[int, int], ...]
    by_agent: Mapping[str, Usage]
    by_tool: Mapping[str, ToolCounters]
    by_policy: Mapping[str, int]
    requests: int
    tokens_estimated: int
    tokens_billed: int
    tokens_saved: int
    cost_saved: float | None
    cached_predicted: int
    cached_billed: int
    prefix_breaks: int


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
