"""What every event says."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Discriminator

from crew.history.token_budget import TokenBudget
from crew.messages import AssistantMessage, Manifest, Message, ToolCall, ToolResult, Usage
from crew.runs.state import Pause


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseEvent:
    """What every event says: in which run, by which agent, as which one, when."""

    run_id: str = ""
    agent: str = ""
    sequence: int = 0
    at: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Summarised(BaseEvent):
    """A summariser answered for these messages; or did not, and `error` says why."""

    covers: tuple[str, ...]
    text: str = ""
    error: str = ""
    usage: Usage
    provider: str = ""
    model: str = ""
    kind: Literal["summarised"] = "summarised"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted(BaseEvent):
    """A summary stands in the history for the messages that it covers; `cause` is the policy or the strategy."""

    cause: str
    summary: str
    covers: tuple[str, ...]
    tokens_before: int
    tokens_after: int
    size: int
    limit: int | None
    kind: Literal["compacted"] = "compacted"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionFailed(BaseEvent):
    """A summary came to nothing; `waiting` messages are carried over to the next attempt."""

    cause: str
    reason: str
    pending_messages: int
    kind: Literal["compaction_failed"] = "compaction_failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class HandedOff(BaseEvent):
    """The work goes to another agent or group."""

    target: str
    call_id: str
    kind: Literal["handed_off"] = "handed_off"


@dataclass(frozen=True, slots=True, kw_only=True)
class Routed(BaseEvent):
    """A signal, or `then`, sends the work on; no target: the run ends."""

    signal: str
    target: str | None
    kind: Literal["routed"] = "routed"


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchStarted(BaseEvent):
    """A branch of a group, or an agent called as a tool, begins as a run of its own."""

    branch: str
    group: str = ""
    tool: str = ""
    kind: Literal["branch_started"] = "branch_started"


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchFinished(BaseEvent):
    """A branch, or an agent called as a tool, has ended."""

    branch: str
    outcome: str
    error: str = ""
    group: str = ""
    kind: Literal["branch_finished"] = "branch_finished"


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchTimedOut(BaseEvent):
    """The group's time is over; what has not ended by now has failed."""

    group: str
    seconds: float
    kind: Literal["branch_timed_out"] = "branch_timed_out"


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryPruned(BaseEvent):
    """Messages left the history, or one agent's view of it, or are masked there; they stay in the transcript."""

    policy: str
    reason: str
    before: int
    after: int
    limit: int
    evicted: tuple[str, ...]
    tokens_before: int
    tokens_after: int
    where: Literal["history", "view"] = "history"
    masked: tuple[str, ...] = ()
    kind: Literal["history_pruned"] = "history_pruned"


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryRepaired(BaseEvent):
    """A history that came in broken was mended."""

    changes: tuple[str, ...]
    where: Literal["door", "view"] = "door"
    kind: Literal["history_repaired"] = "history_repaired"


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentStarted(BaseEvent):
    """An agent takes over."""

    kind: Literal["agent_started"] = "agent_started"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked(BaseEvent):
    """A model is asked; the manifest tells what it gets to see."""

    provider: str
    model: str
    messages: int
    tokens_estimated: int
    manifest: Manifest | None = None
    kind: Literal["asked"] = "asked"


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDelta(BaseEvent):
    """A piece of a reply on its way; not stored."""

    text: str
    channel: Literal["text", "thinking", "arguments", "restart"] = "text"
    kind: Literal["text_delta"] = "text_delta"


@dataclass(frozen=True, slots=True, kw_only=True)
class Replied(BaseEvent):
    """A model replied; the message is whole, also where not all of its calls are accepted.

    Its manifest is that of the request, with what was billed. `saved` is what the request cost less, in dollars, than
    it would have with everything in it; None where the price is unknown.
    """

    message: AssistantMessage
    usage: Usage
    tokens: int
    finish_reason: str = "stop"
    model: str = ""
    response_id: str = ""
    cost_saved: float | None = 0.0
    kind: Literal["replied"] = "replied"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyEmpty(BaseEvent):
    """The reply held nothing; `final` if it had been asked once more already."""

    outcome: Literal["asked_again", "final"]
    kind: Literal["reply_empty"] = "reply_empty"


@dataclass(frozen=True, slots=True, kw_only=True)
class Retried(BaseEvent):
    """A request failed in a way that is worth another try, which is made after a wait."""

    provider: str
    model: str
    attempt: int
    reason: str
    wait: float
    kind: Literal["retried"] = "retried"


@dataclass(frozen=True, slots=True, kw_only=True)
class TooLong(BaseEvent):
    """The request outgrew the model's window; the view is cut further. `maximum` is the window, where it was named."""

    model: str
    tokens: int
    maximum: int | None
    reason: str
    kind: Literal["too_long"] = "too_long"


@dataclass(frozen=True, slots=True, kw_only=True)
class FellBack(BaseEvent):
    """The agent's backup model takes over."""

    model: str
    backup: str
    reason: str
    kind: Literal["fell_back"] = "fell_back"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted(BaseEvent):
    """A run begins; the last of the messages is its goal, those before it came in as history.

    `trace` is the W3C traceparent of the span under which it is traced; empty where nobody traces.
    """

    messages: tuple[Message, ...]
    tokens: tuple[int, ...]
    repairs: tuple[str, ...] = ()
    token_budgets: dict[str, tuple[TokenBudget, ...]] = field(default_factory=dict)
    traceparent: str = ""
    kind: Literal["run_started"] = "run_started"


@dataclass(frozen=True, slots=True, kw_only=True)
class Warned(BaseEvent):
    """Something that a person may want to know before it becomes a problem."""

    text: str
    kind: Literal["warned"] = "warned"


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageChanged(BaseEvent):
    """What this run has spent so far."""

    usage: Usage
    kind: Literal["usage_changed"] = "usage_changed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Paused(BaseEvent):
    """The run waits for a person."""

    pauses: tuple[Pause, ...]
    kind: Literal["paused"] = "paused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed(BaseEvent):
    """The run goes on, with these answers."""

    answers: dict[str, Any] = field(default_factory=dict)
    traceparent: str = ""
    kind: Literal["resumed"] = "resumed"


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitReached(BaseEvent):
    """A limit ends the run."""

    limit: str
    value: float
    kind: Literal["limit_reached"] = "limit_reached"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancelled(BaseEvent):
    """Somebody asked for the end."""

    kind: Literal["cancelled"] = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFailed(BaseEvent):
    """A run, or a branch, can't go on."""

    error: str
    error_type: str = ""
    kind: Literal["run_failed"] = "run_failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFinished(BaseEvent):
    """The last event of a run that returns."""

    stop_reason: str
    output: str
    usage: Usage
    kind: Literal["run_finished"] = "run_finished"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallHeld(BaseEvent):
    """A call waits for a person's approval."""

    call_id: str
    kind: Literal["call_held"] = "call_held"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolsStarted(BaseEvent):
    """Calls begin. Committed before they do, so that after a crash it is known which ones are in doubt."""

    calls: tuple[ToolCall, ...]
    kind: Literal["tools_started"] = "tools_started"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolProgress(BaseEvent):
    """What a tool showed while it works; not stored."""

    call_id: str
    data: Any
    kind: Literal["tool_progress"] = "tool_progress"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolReturned(BaseEvent):
    """A call is answered."""

    result: ToolResult
    tokens: int
    seconds: float = 0.0
    kind: Literal["tool_returned"] = "tool_returned"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallsDeclined(BaseEvent):
    """A reply asked for more calls than are accepted."""

    calls: tuple[str, ...]
    accepted: int
    kind: Literal["calls_declined"] = "calls_declined"


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
