"""What passes between an agent and its model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from crew.messages import AssistantMessage, Usage
from crew.runs.events.stamp import Stamp


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentStarted(Stamp):
    """An agent takes over."""

    kind: Literal["agent_started"] = "agent_started"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked(Stamp):
    """A model is asked."""

    provider: str
    model: str
    messages: int
    tokens: int
    kind: Literal["asked"] = "asked"


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDelta(Stamp):
    """A piece of a reply on its way; not stored."""

    text: str
    channel: Literal["text", "thinking", "arguments", "restart"] = "text"
    kind: Literal["text_delta"] = "text_delta"


@dataclass(frozen=True, slots=True, kw_only=True)
class Replied(Stamp):
    """A model replied; the message is whole, also where not all of its calls are accepted."""

    message: AssistantMessage
    usage: Usage
    tokens: int
    finish_reason: str = "stop"
    model: str = ""
    response_id: str = ""
    kind: Literal["replied"] = "replied"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyEmpty(Stamp):
    """The reply held nothing; `final` if it had been asked once more already."""

    outcome: Literal["asked_again", "final"]
    kind: Literal["reply_empty"] = "reply_empty"


@dataclass(frozen=True, slots=True, kw_only=True)
class Retried(Stamp):
    """A request failed in a way that is worth another try, which is made after a wait."""

    provider: str
    model: str
    attempt: int
    reason: str
    wait: float
    kind: Literal["retried"] = "retried"


@dataclass(frozen=True, slots=True, kw_only=True)
class FellBack(Stamp):
    """The agent's backup model takes over."""

    model: str
    backup: str
    reason: str
    kind: Literal["fell_back"] = "fell_back"
