"""`RunResult` and its metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, Self

from pydantic import JsonValue
from pydantic_core import to_jsonable_python
from typing_extensions import TypeVar

from crew.errors import NoOutput
from crew.messages import Message, ToolMessage, ToolResult, Transcript, Usage
from crew.runs.counters import ToolCounters
from crew.runs.state import AnswerReason, Branch, CallInDoubt, Pause, ReachedLimit, RunState, StopReason

ResultOutput_co = TypeVar("ResultOutput_co", covariant=True, default=Any)


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
class MissingOutput:
    """Why a run has no output of the type that its agent declares."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult(Generic[ResultOutput_co]):
    """The outcome of a run. `output` is the answer, of the type that the agent declares; without one it is text.

    `answer` is the same without an exception: the output, or a `MissingOutput` with the reason. `text` is the answer as
    the model wrote it, also where it is incomplete. `history` is bounded, `transcript` is complete; `limit` is the
    limit that ended the run.

    `finish_reason` is why the final answer ended; anything but "stop" means that it may be incomplete. It is None if
    the run is not completed. `stop_text` is the reason of a tool that ended the run with `StopRun`. `in_doubt` are the
    writes that were started without a result: they may have taken effect.
    `orphans` are the tools and models that went on although they were cancelled, when the run returned. `metadata` is
    what was passed to `execute`. The stop reason `running` only occurs with `execute(on_existing="return")`.

    Pass the result itself as `history=` of the next `execute` to continue the conversation.
    """

    answer: ResultOutput_co | MissingOutput
    text: str
    stop_reason: StopReason | Literal["running"]
    finish_reason: AnswerReason | None = None
    limit: ReachedLimit | None = None
    stop_text: str = ""
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

    @property
    def output(self) -> ResultOutput_co:
        """The answer. Raises `NoOutput` if the agent has an output type, and the run did not end with a value of it."""
        if isinstance(self.answer, MissingOutput):
            raise NoOutput(f"Run {self.run_id!r} has no output: {self.answer.reason}", result=self)

        return self.answer

    @property
    def tool_results(self) -> tuple[ToolResult, ...]:
        """The results of the tool calls in the transcript, in order."""
        tools = (message for message in self.transcript if isinstance(message, ToolMessage))
        return tuple(result for message in tools for result in message.results)

    def output_json(self) -> Any:
        """The output as JSON values: a text as it is; without an output, the text so far."""
        missing = isinstance(self.answer, MissingOutput | str)
        return self.text if missing else to_jsonable_python(self.answer, fallback=str)
