"""The doors to what is outside the core, one method wide each, and the values that pass through them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Protocol, runtime_checkable

from pydantic import Discriminator

from crew.messages import HasCache, Message, ProviderData, ToolCall, Usage

# ------------------------------------------------------------------------------------------ who answers


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec(HasCache):
    """What a model is told of one tool."""

    name: str
    description: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputSpec(HasCache):
    """The JSON schema that a structured reply must fit."""

    name: str
    schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """How a model is asked. None leaves the provider's default; what a provider does not know is refused by it."""

    max_output_tokens: int | None = None
    temperature: float | None = None
    reasoning: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    thinking_tokens: int | None = None
    tool_choice: str | None = None
    parallel_tool_calls: bool | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryAttempt:
    """An attempt that failed and is made again after a wait."""

    attempt: int
    reason: str
    wait: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """One question to a model. `turn` counts this agent's requests in the conversation, from 0.

    `purpose` tells a request for a summary from one for a reply; the wire knows no difference.
    """

    messages: tuple[Message, ...]
    instructions: str = ""
    tools: tuple[ToolSpec, ...] = ()
    settings: ModelSettings = field(default_factory=ModelSettings)
    output: OutputSpec | None = None
    agent: str = ""
    run_id: str = ""
    conversation_id: str = ""
    turn: int = 0
    purpose: Literal["reply", "summary"] = "reply"
    on_retry: Callable[[RetryAttempt], None] | None = field(default=None, compare=False, repr=False)


FinishReason = Literal["stop", "calls", "length", "refusal", "filter"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReply:
    """One answer of a model."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    usage: Usage = field(default_factory=lambda: Usage(requests=1))
    finish_reason: FinishReason = "stop"
    provider_data: ProviderData | None = None
    model: str = ""
    response_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """A piece of a reply on its way."""

    text: str
    kind: Literal["text", "thinking", "arguments", "restart"] = "text"


OnDelta = Callable[[Delta], None]


@runtime_checkable
class Provider(Protocol):
    """Who answers. `name` and `model` say who, `profile` names the rules that its requests must keep."""

    @property
    def name(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def profile(self) -> str: ...

    async def complete(self, request: ModelRequest, on_delta: OnDelta | None = None) -> ModelReply: ...


# ------------------------------------------------------------------------------- what the model gets to see


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEntry:
    """A message in the history, its place in the transcript, and its estimated tokens."""

    message: Message
    position: int
    tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageGroup:
    """What stays or leaves as one: a message alone, or calls with their results.

    `opens` marks a user's message, which opens a turn. `mandatory` groups are never evicted.
    """

    entries: tuple[HistoryEntry, ...]
    size: int
    tokens: int
    kind: Literal["system", "user", "reply", "exchange", "results"]
    mandatory: bool = False

    @property
    def opens_turn(self) -> bool:
        return self.kind == "user"


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryBudget:
    """How large a history may be, and how far a pruning cuts. No limit: unbounded.

    `window` is that of the model whose agent is at work, in tokens, of which `fixed` are its instructions and tools.
    `touches` names, for a tool, the parameter that holds the file or thing which a call of it touches.
    """

    limit: int | None
    prune_to: int = 0
    window: int | None = None
    overhead_tokens: int = 0
    touches: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneDecision:
    """What a policy decided: what stays, what leaves, what is masked, what a summary shall stand for, and why."""

    kept: tuple[MessageGroup, ...]
    evicted: tuple[MessageGroup, ...] = ()
    masked: tuple[str, ...] = ()
    to_summarize: tuple[str, ...] = ()
    reason: str = ""


class Policy(Protocol):
    """Decides what of a history stays. Pure; it sees groups, so that it can't orphan a call.

    Beside `name` it may have, each with a default: `limit` (its own bound; 50, None for none), `prune_to` (half of the
    bound), `eager` (False; True to be asked after every append, not only beyond the bound), `summarizes` (False; True
    reserves the room of one message), `summarizer` (None: the agent's own model; a model's name, a provider, a tool, or
    a function from messages to text), `stage` ("history"; "view" if on an executor it shapes each agent's view
    instead), `marks` (False; True if a marker shall stand for what it hides in a view).
    """

    @property
    def name(self) -> str: ...

    def prune(self, history: Sequence[MessageGroup], budget: HistoryBudget) -> PruneDecision: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeHistory:
    """Everything that is not mandatory becomes one TL;DR."""

    kind: Literal["whole_history"] = "whole_history"


@dataclass(frozen=True, slots=True, kw_only=True)
class LastNMessages:
    """The last `n` messages stay verbatim; the rest becomes one TL;DR."""

    n: int = field(kw_only=False)
    kind: Literal["last_n_messages"] = "last_n_messages"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunked:
    """One TL;DR for each chunk of `size` messages; chunks end at group boundaries."""

    size: int = field(kw_only=False)
    kind: Literal["chunked"] = "chunked"


@dataclass(frozen=True, slots=True, kw_only=True)
class FromTimestamp:
    """What is older than `time` (seconds since the epoch) becomes one TL;DR."""

    time: float = field(kw_only=False)
    kind: Literal["from_timestamp"] = "from_timestamp"


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeHistoryMultipleSystemMessages:
    """One TL;DR for each block that a system message opens."""

    kind: Literal["whole_history_multiple_system_messages"] = "whole_history_multiple_system_messages"


CompressionStrategy = Annotated[
    WholeHistory | LastNMessages | Chunked | FromTimestamp | WholeHistoryMultipleSystemMessages,
    Discriminator("kind"),
]


class TokenCounter(Protocol):
    """Counts the tokens of a text."""

    def count(self, text: str) -> int: ...
