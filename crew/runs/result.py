"""`RunResult` and its metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from pydantic import JsonValue

from crew.messages import Message, Transcript, Usage
from crew.runs.counters import ToolCounters
from crew.runs.state import AnswerReason, Branch, CallInDoubt, Pause, ReachedLimit, RunState, StopReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """Figures of a run: its history, and its usage by agent and tool.

    sizes         the sizes of the history before and after each pruning.
    by_policy     how often each policy or rule pruned the history or a view.
    tokens_saved  the estimate of what pruning left out of the requests.
    cost_saved    what the run would have cost more without pruning, in dollars; None if a price is unknown.

    The other fields are sums over the manifests of all requests.
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


class ResultHistory(tuple[Message, ...]):
    """The messages of a history, and the evicted ones that wait for a summary.

    As `history=` of an `execute` it passes on both, so that the next summary covers the messages in `waiting`. A list
    or a slice of it holds only the messages.
    """

    waiting: tuple[Message, ...]
    evicted_since_attempt: int

    def __new__(
        cls, messages: Iterable[Message] = (), waiting: tuple[Message, ...] = (), evicted_since_attempt: int = 0
    ) -> Self:
        """The number says how many messages were evicted since the last attempt to summarize."""
        made = super().__new__(cls, messages)
        made.waiting, made.evicted_since_attempt = waiting, evicted_since_attempt
        return made


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """The outcome of a run. `history` is bounded, `transcript` is complete; `limit` is the limit that ended the run.

    `finish_reason` is why the final answer ended; anything but "stop" means that it may be incomplete. It is None if
    the run is not completed. `in_doubt` are the writes that were started without a result: they may have taken effect.
    `orphans` are the tools and models that went on although they were cancelled, when the run returned. `metadata` is
    what was passed to `execute`. The stop reason `running` only occurs with `execute(on_existing="return")`.

    Pass the result itself as `history=` of the next `execute` to continue the conversation.
    """

    output: Any
    stop_reason: StopReason | Literal["running"]
    finish_reason: AnswerReason | None = None
    limit: ReachedLimit | None = None
    run_id: str
    conversation_id: str
    agent: str
    history: ResultHistory
    transcript: Transcript = field(repr=False)
    usage: Usage
    metrics: Metrics = field(repr=False)
    metadata: dict[str, JsonValue] = field(default_factory=dict)
    pauses: tuple[Pause, ...] = ()
    in_doubt: tuple[CallInDoubt, ...] = ()
    orphans: tuple[str, ...] = ()
    branches: tuple[Branch, ...] = field(default=(), repr=False)
    trace_id: str = ""
    state: RunState = field(repr=False)
