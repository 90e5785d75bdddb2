"""The events of a run: what happened, recorded in order, stored with the state, and delivered to observers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, JsonValue

from crew.history.token_budget import TokenBudget
from crew.interfaces import ToolSpec
from crew.messages import AssistantMessage, Manifest, Message, ToolCall, ToolResult, Usage
from crew.runs.prepared import PreparedAgent, PreparedTool
from crew.runs.state import Pause
from crew.tools.questions import Question

Level = Literal["debug", "info", "warning", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseEvent:
    """Every event has a run (a branch is `run/branch`), the active agent, a sequence number and a time.

    `elapsed` are the seconds from the input event before to this one; 0 at a start or resume, and for other events.
    """

    level: ClassVar[Level] = "info"
    run_id: str = ""
    agent: str = ""
    sequence: int = 0
    at: float = 0.0
    elapsed: float = 0.0

    @property
    def severity(self) -> Level:
        """The level of this event: `level`, unless its outcome asks for another one."""
        return self.level


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted(BaseEvent):
    """A run started with its goal, the last message, after the given history; `traceparent` is empty if not traced.

    `history_policy` is the policy of the history as `resolve_policy` accepts it, bounded to `history_limit` messages
    (None: no bound) and cut to `prune_to`.
    """

    messages: tuple[Message, ...]
    tokens: tuple[int, ...]
    repairs: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    token_budgets: dict[str, tuple[TokenBudget, ...]] = field(default_factory=dict)
    history_policy: dict[str, JsonValue] = field(default_factory=dict)
    history_limit: int | None = None
    prune_to: int | None = None
    traceparent: str = ""
    kind: Literal["run_started"] = "run_started"


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentStarted(BaseEvent):
    """An agent became active."""

    kind: Literal["agent_started"] = "agent_started"


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentPrepared(BaseEvent):
    """The instructions and toolsets of an agent were resolved when it became active.

    `texts` and `specs` are those that the run did not hold before, by their hashes; `listed` the tools of the toolsets
    that were listed first in this run; `overheads` the tokens of instructions and tools, for its model and its backup.
    """

    level: ClassVar[Level] = "debug"
    prepared: PreparedAgent
    overheads: tuple[int, ...] = ()
    texts: dict[str, str] = field(default_factory=dict)
    specs: dict[str, ToolSpec] = field(default_factory=dict)
    listed: dict[str, tuple[PreparedTool, ...]] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    kind: Literal["agent_prepared"] = "agent_prepared"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsentAsked(BaseEvent):
    """Toolsets ask a person before they list their tools: for each toolset the key and the question."""

    consents: dict[str, tuple[str, str]]
    kind: Literal["consent_asked"] = "consent_asked"


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardrailChecked(BaseEvent):
    """A guardrail checked an input, a call (`call_id`, `key`, `tool`) or an output.

    `words` are those of a refusal, or the question to a person. `text`, or the `arguments` of a call, are what it wrote
    instead, with its tokens. `usage` is the bill of a reply that was discarded: it was asked for beside the check.
    """

    guardrail: str
    on: Literal["input", "tool", "output"]
    outcome: Literal["passed", "rewritten", "refused", "held"]
    words: str = ""
    text: str = ""
    arguments: dict[str, Any] | None = None
    tokens: int = 0
    call_id: str = ""
    key: str = ""
    tool: str = ""
    seconds: float = 0.0
    usage: Usage = field(default_factory=Usage)
    kind: Literal["guardrail_checked"] = "guardrail_checked"

    @property
    def severity(self) -> Level:
        return "debug" if self.outcome == "passed" else "warning"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked(BaseEvent):
    """A request is sent to a model; the manifest lists the messages in it."""

    level: ClassVar[Level] = "debug"
    provider: str
    model: str
    messages: int
    tokens_estimated: int
    manifest: Manifest | None = None
    kind: Literal["asked"] = "asked"


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDelta(BaseEvent):
    """A piece of a streamed reply; not stored."""

    level: ClassVar[Level] = "debug"
    text: str
    channel: Literal["text", "thinking", "arguments", "restart"] = "text"
    kind: Literal["text_delta"] = "text_delta"


@dataclass(frozen=True, slots=True, kw_only=True)
class Replied(BaseEvent):
    """A model replied; the message is complete, even if some of its tool calls are declined.

    Its manifest is that of the request, with the billed tokens. `unpruned_tokens` are the input tokens that a request
    with the whole history has, and `cost_saved` is the difference in dollars to it; None if the price is unknown. The
    text of a reply that guardrails check is left out (`withheld`): the transcript has it once they accepted it.
    """

    message: AssistantMessage
    usage: Usage
    tokens: int
    finish_reason: str = "stop"
    model: str = ""
    response_id: str = ""
    cost_saved: float | None = 0.0
    unpruned_tokens: int = 0
    withheld: bool = False
    kind: Literal["replied"] = "replied"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyEmpty(BaseEvent):
    """The reply had no text and no calls; `final` if the request had been repeated once."""

    level: ClassVar[Level] = "warning"
    outcome: Literal["asked_again", "final"]
    kind: Literal["reply_empty"] = "reply_empty"


@dataclass(frozen=True, slots=True, kw_only=True)
class Retried(BaseEvent):
    """A request failed with a temporary error and is repeated after `wait` seconds."""

    level: ClassVar[Level] = "warning"
    provider: str
    model: str
    attempt: int
    reason: str
    wait: float
    kind: Literal["retried"] = "retried"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestDelayed(BaseEvent):
    """A request waits for over a second, because it would exceed a rate limit; `wait` are the expected seconds."""

    provider: str
    model: str
    limit: str
    wait: float
    kind: Literal["request_delayed"] = "request_delayed"


@dataclass(frozen=True, slots=True, kw_only=True)
class TooLong(BaseEvent):
    """The request exceeded the model's context window (`maximum`, if known); the view is cut further."""

    level: ClassVar[Level] = "warning"
    model: str
    tokens: int
    maximum: int | None
    reason: str
    kind: Literal["too_long"] = "too_long"


@dataclass(frozen=True, slots=True, kw_only=True)
class FellBack(BaseEvent):
    """The agent switched to its backup model."""

    level: ClassVar[Level] = "warning"
    model: str
    backup: str
    reason: str
    kind: Literal["fell_back"] = "fell_back"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallHeld(BaseEvent):
    """A tool call waits for approval. `arguments` are the validated ones, as JSON values; `key` is the call key."""

    call_id: str
    arguments: dict[str, Any] = field(default_factory=dict)
    key: str = ""
    effect: Literal["read", "write", ""] = ""
    kind: Literal["call_held"] = "call_held"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallEdited(BaseEvent):
    """A person approved a tool call with other arguments; `changes` describes the difference in one line."""

    call_id: str
    tool: str
    key: str
    arguments: dict[str, Any]
    changes: str
    by: str = ""
    kind: Literal["call_edited"] = "call_edited"


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionAsked(BaseEvent):
    """A tool asks a person. Its call was unwound, and runs again from its start once the question is answered."""

    call_id: str
    key: str
    tool: str
    question: Question
    kind: Literal["question_asked"] = "question_asked"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolsStarted(BaseEvent):
    """Tool calls start. Committed before they do, so that after a crash the calls in doubt are known.

    `keys` are their call keys, in the same order.
    """

    level: ClassVar[Level] = "debug"
    calls: tuple[ToolCall, ...]
    keys: tuple[str, ...] = ()
    kind: Literal["tools_started"] = "tools_started"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolProgress(BaseEvent):
    """Data that a running tool emitted; not stored. `tool` and `key` are those of its call."""

    level: ClassVar[Level] = "debug"
    call_id: str
    data: Any
    tool: str = ""
    key: str = ""
    kind: Literal["tool_progress"] = "tool_progress"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolReturned(BaseEvent):
    """A tool call has its result, which enters the transcript at `position` when all calls of the reply have theirs."""

    result: ToolResult
    tokens: int
    seconds: float = 0.0
    key: str = ""
    position: int | None = None
    kind: Literal["tool_returned"] = "tool_returned"

    @property
    def severity(self) -> Level:
        return self.level if self.result.outcome in ("ok", "retry") else "warning"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallLost(BaseEvent):
    """The process that ran a tool call was lost; it is not known whether the call took effect."""

    level: ClassVar[Level] = "warning"
    call_id: str
    name: str
    kind: Literal["call_lost"] = "call_lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallsDeclined(BaseEvent):
    """A reply had more tool calls than are accepted."""

    level: ClassVar[Level] = "warning"
    calls: tuple[str, ...]
    accepted: int
    kind: Literal["calls_declined"] = "calls_declined"


@dataclass(frozen=True, slots=True, kw_only=True)
class HandedOff(BaseEvent):
    """The agent handed control to another agent or group."""

    target: str
    call_id: str
    kind: Literal["handed_off"] = "handed_off"


@dataclass(frozen=True, slots=True, kw_only=True)
class Routed(BaseEvent):
    """A signal in the reply, or `then`, selected the next agent; without a target the run ends.

    `function` is the name of the function that chose it, if one did.
    """

    signal: str
    target: str | None
    function: str = ""
    kind: Literal["routed"] = "routed"


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchStarted(BaseEvent):
    """A branch of a parallel group, or an agent called as a tool, started as a child run."""

    branch: str
    group: str = ""
    tool: str = ""
    call_id: str = ""
    kind: Literal["branch_started"] = "branch_started"


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchFinished(BaseEvent):
    """A branch, or an agent called as a tool, ended."""

    branch: str
    outcome: str
    error: str = ""
    group: str = ""
    kind: Literal["branch_finished"] = "branch_finished"

    @property
    def severity(self) -> Level:
        return "warning" if self.outcome == "failed" else self.level


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchTimedOut(BaseEvent):
    """The time limit of a group expired; its unfinished branches fail."""

    level: ClassVar[Level] = "warning"
    group: str
    seconds: float
    kind: Literal["branch_timed_out"] = "branch_timed_out"


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryPruned(BaseEvent):
    """Messages left the history or a view, or a view masks or cuts them. `limit`: the number of the policy or limit."""

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
    cut: tuple[str, ...] = ()
    kind: Literal["history_pruned"] = "history_pruned"


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryRepaired(BaseEvent):
    """An invalid history was repaired: the given one (`input`), or the messages of one request (`view`)."""

    level: ClassVar[Level] = "warning"
    changes: tuple[str, ...]
    where: Literal["input", "view"] = "input"
    kind: Literal["history_repaired"] = "history_repaired"


@dataclass(frozen=True, slots=True, kw_only=True)
class Summarised(BaseEvent):
    """The summarizer answered for the messages that `covers` names, or failed with `error`; it took `seconds`."""

    level: ClassVar[Level] = "debug"
    covers: tuple[str, ...]
    text: str = ""
    error: str = ""
    usage: Usage
    provider: str = ""
    model: str = ""
    seconds: float = 0.0
    kind: Literal["summarised"] = "summarised"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted(BaseEvent):
    """A summary replaced messages in the history or in a view; `cause` is the policy or strategy that asked for it."""

    cause: str
    summary: str
    covers: tuple[str, ...]
    tokens_before: int
    tokens_after: int
    size: int
    limit: int | None
    where: Literal["history", "view"] = "history"
    kind: Literal["compacted"] = "compacted"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionFailed(BaseEvent):
    """No summary was made; `pending_messages` messages are kept for the next attempt."""

    level: ClassVar[Level] = "warning"
    cause: str
    reason: str
    pending_messages: int
    where: Literal["history", "view"] = "history"
    kind: Literal["compaction_failed"] = "compaction_failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Warned(BaseEvent):
    """A warning to the user, such as 80 % of a limit being used."""

    level: ClassVar[Level] = "warning"
    text: str
    kind: Literal["warned"] = "warned"


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageChanged(BaseEvent):
    """The usage of the run so far."""

    level: ClassVar[Level] = "debug"
    usage: Usage
    kind: Literal["usage_changed"] = "usage_changed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Paused(BaseEvent):
    """The run stopped until a person answers its pauses."""

    pauses: tuple[Pause, ...]
    kind: Literal["paused"] = "paused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed(BaseEvent):
    """The run resumed, with the answers by pause id."""

    answers: dict[str, Any] = field(default_factory=dict)
    traceparent: str = ""
    kind: Literal["resumed"] = "resumed"


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitReached(BaseEvent):
    """The run reached a limit and ends."""

    level: ClassVar[Level] = "warning"
    limit: str
    value: float
    kind: Literal["limit_reached"] = "limit_reached"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStopped(BaseEvent):
    """A tool ended the whole run with `StopRun`; `call_id` and `key` are those of its call."""

    call_id: str
    key: str
    tool: str
    reason: str
    kind: Literal["run_stopped"] = "run_stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancelled(BaseEvent):
    """The run was cancelled."""

    kind: Literal["cancelled"] = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFailed(BaseEvent):
    """A run or a branch failed."""

    level: ClassVar[Level] = "error"
    error: str
    error_type: str = ""
    kind: Literal["run_failed"] = "run_failed"

    @property
    def severity(self) -> Level:
        return "warning" if "/" in self.run_id else self.level


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFinished(BaseEvent):
    """The run returned; its last event."""

    stop_reason: str
    output: str
    usage: Usage
    kind: Literal["run_finished"] = "run_finished"


ModelEvent = Asked | TextDelta | Replied | ReplyEmpty | Retried | RequestDelayed | FellBack | TooLong
ToolEvent = (
    CallHeld | CallEdited | QuestionAsked | ToolsStarted | ToolProgress | ToolReturned | CallLost | CallsDeclined
)
AgentEvent = (
    AgentStarted
    | AgentPrepared
    | ConsentAsked
    | GuardrailChecked
    | HandedOff
    | Routed
    | BranchStarted
    | BranchFinished
    | BranchTimedOut
)
HistoryEvent = HistoryPruned | HistoryRepaired | Summarised | Compacted | CompactionFailed
RunEnd = LimitReached | RunStopped | Cancelled | RunFailed | RunFinished
RunEvent = RunStarted | Warned | UsageChanged | Paused | Resumed | RunEnd

Event = Annotated[ModelEvent | ToolEvent | AgentEvent | HistoryEvent | RunEvent, Discriminator("kind")]
