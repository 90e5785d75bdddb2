"""The interfaces that providers, history policies and token counters implement, and the values that cross them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, Literal, Protocol, runtime_checkable

from pydantic import Discriminator

from crew.errors import DefinitionError, abbreviate
from crew.messages import HasCache, Message, ProviderData, ToolCall, Usage
from crew.model_settings import ModelSettings as ModelSettings  # noqa: PLC0414  # users import it from here
from crew.settings import (
    LimitOrDefault,
    NonNegativeInt,
    NonNegativeNumber,
    PositiveInt,
    PositiveRatio,
    Seconds,
    Timestamp,
    check_settings,
    setting_problems,
)

# ------------------------------------------------------------------------------------------ providers


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec(HasCache):
    """The name, description and JSON schema of a tool, as sent to a model."""

    name: str
    description: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputSpec(HasCache):
    """The JSON schema of a structured reply."""

    name: str
    schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Limits of the retries, in seconds: `timeout` is for one attempt, `deadline` for all attempts and waits together.

    The waits double from `first_wait` to `longest_wait`, each with random jitter, so that clients that failed together
    do not retry together. A longer `Retry-After` of the service is honoured up to `longest_retry_after`.
    """

    attempts: PositiveInt = 8
    timeout: Seconds = 300.0
    deadline: Seconds = 900.0
    first_wait: NonNegativeNumber = 0.5
    longest_wait: NonNegativeNumber = 30.0
    longest_retry_after: NonNegativeNumber = 120.0

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryAttempt:
    """A failed attempt that is repeated after `wait` seconds."""

    attempt: int
    reason: str
    wait: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestDelay:
    """A request that waits for a rate limit: the name of the limit, and the expected wait in seconds."""

    limit: str
    wait: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """One request to a model. `turn` counts this agent's requests in the conversation, from 0.

    `purpose` separates requests for summaries from requests for replies. Providers send both alike. `order` is the
    place of the run among all runs; `estimated_tokens` are those of the input, 0 if they were not counted.
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
    order: int = field(default=0, compare=False)
    estimated_tokens: int = field(default=0, compare=False)
    on_retry: Callable[[RetryAttempt], None] | None = field(default=None, compare=False, repr=False)
    on_wait: Callable[[RequestDelay], None] | None = field(default=None, compare=False, repr=False)


FinishReason = Literal["stop", "calls", "length", "refusal", "filter"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReply:
    """The complete response of a model to one request. Each of its `warnings` is emitted as a `Warned` event."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    usage: Usage = field(default_factory=lambda: Usage(requests=1))
    finish_reason: FinishReason = "stop"
    provider_data: ProviderData | None = None
    model: str = ""
    response_id: str = ""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """A streamed piece of a reply. `restart` discards the pieces of a failed attempt."""

    text: str
    kind: Literal["text", "thinking", "arguments", "restart"] = "text"


OnDelta = Callable[[Delta], None]


@runtime_checkable
class Provider(Protocol):
    """Sends requests to a model. `profile` names the message rules that its requests must satisfy."""

    @property
    def name(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def profile(self) -> str: ...

    async def complete(self, request: ModelRequest, on_delta: OnDelta | None = None) -> ModelReply: ...


@runtime_checkable
class HasSecrets(Protocol):
    """Holds secrets (texts or `SecretStr`) that must not appear in any output; read before every request."""

    @property
    def secrets(self) -> Sequence[object]: ...


@runtime_checkable
class ChecksSettings(Protocol):
    """Raises DefinitionError for settings that its model does not support; called when an executor is created."""

    def check(self, settings: ModelSettings) -> None: ...


@runtime_checkable
class AsyncClosable(Protocol):
    """Holds connections that must be closed."""

    async def aclose(self) -> None: ...


@runtime_checkable
class RemoteProvider(Provider, HasSecrets, ChecksSettings, AsyncClosable, Protocol):
    """A provider that sends requests over a network. An executor wraps it in `Retrying` and closes its connections.

    Its three additional members are optional for other providers: an executor checks for each with `isinstance`.
    `aclose` closes the connections of the running event loop; the next `complete` must open new ones.
    """


# ------------------------------------------------------------------------------------------ history policies


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEntry:
    """A message in the history, with its position in the transcript and its estimated tokens."""

    message: Message
    position: int
    tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageGroup:
    """The unit of eviction: a single message, or tool calls with their results. `mandatory` groups always stay."""

    entries: tuple[HistoryEntry, ...]
    size: int
    tokens: int
    kind: Literal["system", "user", "reply", "exchange", "results"]
    mandatory: bool = False

    @property
    def opens_turn(self) -> bool:
        """Whether a user message starts a turn here."""
        return self.kind == "user"


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryBudget:
    """The bounds that a policy prunes to. Sizes are in messages; a tool message counts one for each result.

    limit            the most messages that may stay; None: unbounded.
    prune_to         the size to cut to once the limit is exceeded.
    eager            the policy runs after every append, not only beyond the limit.
    window           the context window of the active agent's model, in tokens; None: unknown.
    overhead_tokens  the tokens of that window that instructions and tools take.
    touches          for each tool that accesses a file or resource, the parameter that names it.
    """

    limit: int | None
    prune_to: int = 0
    eager: bool = False
    window: int | None = None
    overhead_tokens: int = 0
    touches: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneDecision:
    """The result of `Policy.prune`.

    `masked` lists the ids of tool messages to hide, `to_summarize` the ids of messages that a summary replaces.
    """

    kept: tuple[MessageGroup, ...]
    evicted: tuple[MessageGroup, ...] = ()
    masked: tuple[str, ...] = ()
    to_summarize: tuple[str, ...] = ()
    reason: str = ""


@runtime_checkable
class Policy(Protocol):
    """Decides which groups of a history stay. Pure: the same groups and budget give the same decision.

    Without `options` (see `ConfiguredPolicy`) a policy has the defaults of `PolicyOptions`.
    """

    @property
    def name(self) -> str: ...

    def prune(self, history: Sequence[MessageGroup], budget: HistoryBudget) -> PruneDecision: ...


Summarizer = str | Provider | Callable[[Sequence[Message]], str | Awaitable[str]] | None
"""Writes summaries: a model's name, a provider, a function, or a tool (gets plain text); None: the agent's model."""

DEFAULT_LIMIT = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyOptions:
    """When the framework runs a policy, and on what.

    limit          the most messages it keeps; None: no bound. "default": 50 messages in a history. In a view it means
                   no bound, and the policy runs before every request, unless it has a threshold.
    prune_to       the size to cut to once the limit is exceeded; None: half of the limit.
    stage          what an executor's policy prunes: the "history" that all agents share, or the "view" of each agent.
    eager          run after every append, not only beyond the limit; in a view with summaries, before every request.
    threshold      run when a request exceeds this share of the model's window. View only: it replaces the framework's
                   own threshold of 0.8.
    summarizes     reserve one message of the limit for a summary. In a view, summarize what leaves it.
    summarizer     writes the summaries; with `keeps_summaries`, a new one of a view does not replace the older ones.
    insert_marker  put a marker in place of the messages that the policy hides. View only.
    """

    limit: LimitOrDefault = "default"
    prune_to: PositiveInt | None = None
    stage: Literal["history", "view"] = "history"
    eager: bool = False
    threshold: PositiveRatio | None = None
    summarizes: bool = False
    summarizer: Summarizer = None
    keeps_summaries: bool = False
    insert_marker: bool = False

    @property
    def history_limit(self) -> int | None:
        return DEFAULT_LIMIT if self.limit == "default" else self.limit

    @property
    def explicit_limit(self) -> int | None:
        return None if self.limit == "default" else self.limit


@runtime_checkable
class ConfiguredPolicy(Policy, Protocol):
    """A policy that changes some of the defaults."""

    @property
    def options(self) -> PolicyOptions: ...


def policy_options(policy: Policy) -> PolicyOptions:
    """The options of a policy, checked; the defaults where it has none."""
    if not isinstance(policy, ConfiguredPolicy):
        return PolicyOptions()

    options: object = policy.options

    if not isinstance(options, PolicyOptions):
        problem = f"its attribute 'options' must be a PolicyOptions, not {abbreviate(options)}"
        raise DefinitionError(f"History policy {policy.name!r}", problem)

    if problems := setting_problems(options):
        raise DefinitionError(f"History policy {policy.name!r}", problems)

    return options


# ------------------------------------------------------------------------------------------ explicit compression


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeHistory:
    """Replace everything that is not mandatory by one TL;DR."""

    kind: Literal["whole_history"] = "whole_history"


@dataclass(frozen=True, slots=True, kw_only=True)
class LastNMessages:
    """Keep the last `n` messages verbatim and replace the rest by one TL;DR."""

    n: NonNegativeInt = field(kw_only=False)
    kind: Literal["last_n_messages"] = "last_n_messages"

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunked:
    """Replace each chunk of `size` messages by a TL;DR; chunks end at group boundaries."""

    size: PositiveInt = field(kw_only=False)
    kind: Literal["chunked"] = "chunked"

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class FromTimestamp:
    """Replace the messages before `time` by one TL;DR: seconds since the epoch, or a datetime, which becomes seconds.

    As in Python, a datetime without a time zone is in local time.
    """

    time: Timestamp = field(kw_only=False)
    kind: Literal["from_timestamp"] = "from_timestamp"

    def __post_init__(self) -> None:
        check_settings(self)
        object.__setattr__(self, "time", self.seconds)

    @property
    def seconds(self) -> float:
        return self.time.timestamp() if isinstance(self.time, datetime) else self.time


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeHistoryMultipleSystemMessages:
    """Replace each block that starts with a system message by a TL;DR."""

    kind: Literal["whole_history_multiple_system_messages"] = "whole_history_multiple_system_messages"


CompressionStrategy = Annotated[
    WholeHistory | LastNMessages | Chunked | FromTimestamp | WholeHistoryMultipleSystemMessages,
    Discriminator("kind"),
]


@runtime_checkable
class TokenCounter(Protocol):
    """Counts the tokens of a text."""

    def count(self, text: str) -> int: ...
