"""What passes between an agent and its model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from crew.manifest import Manifest
from crew.messages import AssistantMessage, Usage
from crew.runs.events.stamp import Stamp


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentStarted(Stamp):
    """An agent takes over."""

    kind: Literal["agent_started"] = "agent_started"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked(Stamp):
    """A model is asked; the manifest tells what it gets to see."""

    provider: str
    model: str
    messages: int
    tokens: int
    manifest: Manifest | None = None
    kind: Literal["asked"] = "asked"


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDelta(Stamp):
    """A piece of a reply on its way; not stored."""

    text: str
    channel: Literal["text", "thinking", "arguments", "restart"] = "text"
    kind: Literal["text_delta"] = "text_delta"


@dataclass(frozen=True, slots=True, kw_only=True)
class Replied(Stamp):
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
    saved: float | None = 0.0
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
class TooLong(Stamp):
    """The request outgrew the model's window; the view is cut further. `maximum` is the window, where it was named."""

    model: str
    tokens: int
    maximum: int | None
    reason: str
    kind: Literal["too_long"] = "too_long"


@dataclass(frozen=True, slots=True, kw_only=True)
class FellBack(Stamp):
    """The agent's backup model takes over."""

    model: str
    backup: str
    reason: str
    kind: Literal["fell_back"] = "fell_back"
