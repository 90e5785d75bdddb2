"""The answers of the native API. The OpenAPI document describes them by their classes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import JsonValue

from crew.messages import Message, Usage
from crew.runs.state import StopReason

Status = Literal["running", "interrupted"] | StopReason
"""The status of a run.

interrupted  it is unfinished and no process drives it: the server was stopped. It can be resumed.
failed       an error stopped it, such as an unavailable model. It can be resumed.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """The facts of a run; times are in seconds since the epoch. `version` is the number of its commits."""

    run_id: str
    conversation_id: str
    crew: str
    agent: str
    status: Status
    version: int
    messages: int
    created: float
    updated: float
    metadata: dict[str, JsonValue]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallName:
    """A tool call that waits for an answer."""

    id: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseAnswer:
    """A pause that waits for an answer: an approval, a text, or a decision about a call in doubt.

    A question with `choices` accepts one of them. `checked` is the input or output that a guardrail asks about; empty
    for a token that may not answer.
    """

    id: str
    reason: str
    run_id: str
    agent: str
    text: str
    call: CallName | None
    arguments: dict[str, Any] | None
    choices: list[str] = field(default_factory=list)
    checked: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallInDoubtAnswer:
    """A call that was started and has no result: it may have taken effect."""

    key: str
    agent: str
    tool: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitAnswer:
    """The limit that ended a run."""

    name: str
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureAnswer:
    """Why a run failed."""

    type: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunAnswer(RunFacts):
    """A run with its output, usage, pauses and times; a failed one with its error."""

    output: Any
    limit: LimitAnswer | None
    error: FailureAnswer | None
    usage: Usage
    pauses: list[PauseAnswer]
    in_doubt: list[CallInDoubtAnswer]
    active_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunList:
    """A page of runs, newest first; `cursor` is the argument for the next page."""

    runs: list[RunFacts]
    cursor: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscriptAnswer:
    """Every message of a run, with those of the runs that it continues."""

    run_id: str
    messages: list[Message]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationFacts:
    """A conversation and its newest run."""

    conversation_id: str
    newest_run: RunFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationList:
    """A page of conversations, newest first; `cursor` is the argument for the next page."""

    conversations: list[ConversationFacts]
    cursor: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationAnswer:
    """A conversation: its runs, oldest first, its messages, and the pauses that wait for an answer."""

    conversation_id: str
    crew: str
    agent: str
    runs: list[RunFacts]
    messages: list[Message]
    pauses: list[PauseAnswer]


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeAnswer:
    """A transition of a crew's graph; an empty target ends the run."""

    source: str
    target: str
    kind: Literal["handoff", "route", "then", "branch", "tool"]
    label: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAnswer:
    """An agent or a parallel group."""

    name: str
    kind: Literal["agent", "group"]
    purpose: str = ""
    model: str = ""
    tools: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class CrewAnswer:
    """The graph of a crew, as lists and in Mermaid."""

    name: str
    entry: str
    max_messages_per_request: int | None
    nodes: list[NodeAnswer]
    edges: list[EdgeAnswer]
    mermaid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CrewList:
    """The crews of the service."""

    crews: list[CrewAnswer]


@dataclass(frozen=True, slots=True, kw_only=True)
class ViolationAnswer:
    """One rule that a request breaks."""

    rule: str
    text: str
    field: str | None = None
    index: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorFacts:
    """What is wrong; further keys depend on the type."""

    type: str
    message: str
    violations: list[ViolationAnswer] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorAnswer:
    """The answer to a request that is refused or fails."""

    error: ErrorFacts
