"""Runs as a service describes them, and its errors as those of `CrewExecutor`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import httpx2
from pydantic import TypeAdapter

from crew.errors import (
    ConversationBusy,
    ConversationPaused,
    CrewError,
    InvalidInput,
    RunActive,
    RunError,
    UnknownPause,
    UnknownRun,
    Violation,
)
from crew.messages import Message, Usage


class ServiceError(CrewError):
    """The service refused a request, or can't be reached; `status` is 0 if there was no answer."""

    def __init__(self, text: str, *, status: int = 0, type: str = "") -> None:
        self.status, self.type = status, type
        super().__init__(text)


class GatewayError(ServiceError):
    """A proxy in front of the service answered that it can't reach it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemotePause:
    """A pause of a run that waits for an answer. A question with `choices` accepts one of them.

    `checked` is the text that a guardrail asks about; empty if the token may not answer.
    """

    id: str
    reason: str
    run_id: str
    agent: str
    text: str
    call: dict[str, Any] | None = None
    arguments: dict[str, Any] | None = None
    choices: tuple[str, ...] = ()
    checked: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteRun:
    """A run as the service describes it. `stop_reason` is its status, like that of a `RunResult`.

    The messages are in `await client.transcript(run_id)`.
    """

    run_id: str
    conversation_id: str
    crew: str
    agent: str
    status: str
    version: int
    messages: int
    created: float
    updated: float
    metadata: dict[str, Any] = field(default_factory=dict)
    output: Any = None
    limit: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    usage: Usage = field(default_factory=Usage)
    pauses: tuple[RemotePause, ...] = ()
    in_doubt: tuple[dict[str, Any], ...] = ()
    active_seconds: float = 0.0

    @property
    def stop_reason(self) -> str:
        """The status, by the name of `RunResult`."""
        return self.status


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteConversation:
    """A stored conversation: its runs, oldest first, all messages, and the pauses that wait for an answer."""

    conversation_id: str
    crew: str
    agent: str
    runs: tuple[RemoteRun, ...]
    messages: tuple[Message, ...] = field(repr=False)
    pauses: tuple[RemotePause, ...] = ()


@cache
def adapter(kind: Any) -> TypeAdapter[Any]:
    """The adapter of a type, made once."""
    return TypeAdapter(kind)


def read_run(found: Any) -> RemoteRun:
    """The run of an answer."""
    run: RemoteRun = adapter(RemoteRun).validate_python(found)
    return run


def checked_result(run: RemoteRun) -> RemoteRun:
    """The run, unless it failed or was interrupted: then raise a `RunError` with it."""
    if run.status == "failed":
        reason = "the reason is not stored" if run.error is None else f"{run.error['type']}: {run.error['message']}"
        raise RunError(f"Run {run.run_id!r} failed: {reason}", result=run)

    if run.status == "interrupted":
        advice = f"Continue it with client.resume({run.run_id!r})."
        raise RunError(f"Run {run.run_id!r} was interrupted: the service was stopped. {advice}", result=run)

    return run


def unreachable(url: object, error: Exception) -> ServiceError:
    """The error of a request that got no answer."""
    status = error.status if isinstance(error, GatewayError) else 0
    text = f"Can't reach the service at {url}: {str(error) or type(error).__name__}. Is it running?"
    return ServiceError(text, status=status)


def checked(answer: httpx2.Response) -> httpx2.Response:
    """The answer, unless it is an error: then raise that."""
    if answer.is_success:
        return answer

    try:
        facts = json.loads(answer.text)["error"]
        type, message = str(facts["type"]), str(facts["message"])
    except (ValueError, KeyError, TypeError):
        status = answer.status_code

        if status in (502, 503, 504):
            raise GatewayError(f"a proxy answered with status {status}", status=status) from None

        raise ServiceError(f"The service answered with status {status}.", status=status) from None

    raise _error(answer.status_code, type, message, facts)


def check_stream(answer: httpx2.Response) -> None:
    """Raise `ServiceError` if a successful answer is not a stream of events, such as the page of a proxy."""
    media_type = answer.headers.get("content-type", "")

    if media_type.partition(";")[0].strip().lower() != "text/event-stream":
        text = f"{answer.url} answered with the content type {media_type!r} instead of text/event-stream."
        raise ServiceError(f"{text} Is it the address of `crew serve`?", status=answer.status_code)


def _error(status: int, type: str, message: str, facts: Mapping[str, Any]) -> CrewError:
    run_id = str(facts.get("run_id", ""))

    match type:
        case "invalid_input":
            found = facts.get("violations", [])
            return InvalidInput(
                [Violation(rule=one["rule"], text=one["text"], index=one.get("index")) for one in found]
            )
        case "not_found":
            return UnknownRun(run_id, message)
        case "run_finished":
            return UnknownRun(run_id, message, is_finished=True)
        case "run_active":
            return RunActive(run_id)
        case "unknown_pause":
            return UnknownPause(run_id, facts.get("unknown", []), facts.get("pending", []))
        case "conversation_busy":
            return ConversationBusy(str(facts.get("conversation_id", "")), run_id)
        case "conversation_paused":
            pauses = adapter(list[RemotePause]).validate_python(facts.get("pauses", []))
            return ConversationPaused(str(facts.get("conversation_id", "")), run_id, pauses)
        case _:
            return ServiceError(message, status=status, type=type)
