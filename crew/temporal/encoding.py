"""The JSON that the client, the workflow and the activities of a run exchange, and its encoding."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from hashlib import sha256
from typing import Any

from pydantic import TypeAdapter
from pydantic_core import from_json, to_json

from crew import errors
from crew.engine.event_stamps import stamp
from crew.engine.journal import JournalEntry
from crew.errors import ContextOverflow, ContextTooLong, ProviderError, RunError, describe
from crew.messages import Message, Transcript
from crew.runs.events import Event, ToolsStarted
from crew.runs.state import CallTools, RunState
from crew.store.codec import BareState, decode_messages, encode_bare_state, encode_messages, message_sections
from crew.transitions.advance import find_run
from crew.transitions.plan import Plan

WORKFLOW = "crew_run"
PERFORM, APPEND, SNAPSHOT, FIND = "crew_perform", "crew_append", "crew_snapshot", "crew_find"
ANSWER, STATE = "answer", "state"
NOT_STARTED = "NotStarted"
"""The type of the error of an activity that failed before its effect started: it may be repeated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """How the workflow of a run behaves.

    heartbeat_seconds   after so long without a heartbeat, the worker of an activity counts as lost.
    effect_seconds      the longest time that one effect may take.
    max_history_events  the run continues as a new execution of its workflow before its history has so many events,
    max_history_bytes   or so many bytes.
    """

    heartbeat_seconds: float = 10.0
    effect_seconds: float = 3_600.0
    max_history_events: int = 8_000
    max_history_bytes: int = 8_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInput:
    """The first argument of the workflow; the second one is the state. `resumed` is the event that a resume records."""

    run_id: str
    fingerprint: str
    settings: RunSettings = field(default_factory=RunSettings)
    resumed: dict[str, Any] | None = None
    since: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectInput:
    """The argument of every activity: journal entries that may not be stored yet, and the effect, if any.

    `key` identifies the effect in the run; its outcome is stored under it.
    """

    run_id: str
    fingerprint: str
    entries: list[list[Any]]
    kind: str = ""
    path: str = ""
    call_key: str = ""
    key: str = ""
    heartbeat_seconds: float = 10.0
    traceparent: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of an effect: its events, each with whether it is an input event, and the error that it raised."""

    events: list[tuple[bool, dict[str, Any]]]
    error: dict[str, Any] | None = None


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def plan_fingerprint(plan: Plan) -> str:
    """A short hash of the parts of the crew, and of the settings by which a workflow prunes its history.

    Settings with their default values do not count, so that a new setting leaves the hash of a run under way unchanged.
    """
    found: dict[str, Any] = {
        "history": plan.policy_spec,
        "max_messages_per_request": plan.budget.limit,
        "prune_to": plan.budget.prune_to,
        "sanitize_output": plan.sanitize_output,
        "max_input_tokens": {
            name: agent.max_input_tokens
            for name, agent in plan.agents.items()
            if agent.max_input_tokens != plan.crew.agents_by_name[name].max_input_tokens
        },
    }
    settings = {name: value for name, value in found.items() if value != _DEFAULTS[name]}
    parts: dict[str, Any] = dict(sorted(plan.fingerprint.items()))
    return sha256(to_json({**parts, " settings": settings} if settings else parts)).hexdigest()[:16]


_DEFAULTS: dict[str, Any] = {
    "history": {"name": "rolling"},
    "max_messages_per_request": 50,
    "prune_to": 25,
    "sanitize_output": False,
    "max_input_tokens": {},
}


# ------------------------------------------------------------------------------------------ events


def encode_event(event: Event) -> dict[str, Any]:
    """An event as JSON."""
    encoded: dict[str, Any] = _adapter(Event).dump_python(event, mode="json")
    return encoded


def decode_event(data: dict[str, Any]) -> Event:
    """The event that `encode_event` encoded."""
    event: Event = _adapter(Event).validate_python(data)
    return event


def encode_outcome(journal: Sequence[JournalEntry], error: BaseException | None) -> bytes:
    """The outcome of an effect, from the journal of the run that performed it."""
    events = [(entry.is_input, encode_event(entry.event)) for entry in journal]
    return to_json({"events": events, "error": None if error is None else encode_error(error)})


def decode_outcome(data: bytes | dict[str, Any]) -> Outcome:
    """The outcome that `encode_outcome` encoded."""
    found = from_json(data) if isinstance(data, bytes) else data
    return Outcome(events=[(bool(is_input), event) for is_input, event in found["events"]], error=found["error"])


def encode_entry(entry: JournalEntry) -> list[Any]:
    """A journal entry; one that an effect produced refers to the outcome of that effect."""
    event = entry.event

    if isinstance(event, ToolsStarted) and event.keys:
        event = replace(event, calls=())  # the stored state has them, and arguments may be long

    if entry.source is None:
        return [entry.is_input, event.sequence, encode_event(event)]

    return [entry.is_input, event.sequence, *entry.source, event.at, event.elapsed]


def effect_key(entry: Sequence[Any]) -> str | None:
    """The key of the effect whose outcome an encoded entry refers to; None if the entry holds its event."""
    return None if isinstance(entry[2], dict) else str(entry[2])


def entry_event(entry: Sequence[Any], outcome: Outcome | None, state: RunState) -> Event:
    """The event of an encoded entry: from the outcome that it refers to, numbered as in the workflow."""
    if outcome is None:
        return _with_calls(decode_event(entry[2]), state)

    _, sequence, _, index, at, elapsed = entry
    event = decode_event(outcome.events[index][1])
    return stamp(event, find_run(state, event.run_id) or state, sequence=sequence, at=at, elapsed=elapsed)


def _with_calls(event: Event, state: RunState) -> Event:
    run = find_run(state, event.run_id)

    if not isinstance(event, ToolsStarted) or event.calls or run is None or not isinstance(run.next, CallTools):
        return event

    calls = {open.key: open.effective_call for open in run.next.calls}
    return replace(event, calls=tuple(calls[key] for key in event.keys))


# ------------------------------------------------------------------------------------------ errors


def encode_error(error: BaseException) -> dict[str, Any]:
    """An error as JSON."""
    facts: dict[str, Any] = {}

    match error:
        case ContextOverflow():
            facts = {"limit": error.limit, "items": [list(item) for item in error.items]}
        case ProviderError():
            names = ("provider", "model", "status", "request_id", "retry_after", "may_retry")
            facts = {name: getattr(error, name) for name in names}

            if isinstance(error, ContextTooLong):
                facts["maximum"] = error.maximum
        case _:
            pass

    text = describe(error).removeprefix(type(error).__name__).removeprefix(": ")
    return {"type": type(error).__name__, "text": text, "facts": facts}


def decode_error(data: dict[str, Any]) -> Exception:
    """The error that `encode_error` encoded. Of a class that is neither Crew's nor Python's, a `RunError` is left."""
    name, text, facts = data["type"], data["text"], data["facts"]
    kind = getattr(errors, name, None) or getattr(builtins, name, None)

    if kind is ContextOverflow:
        error = ContextOverflow(text, limit=facts["limit"])
        error.items = tuple((item, size) for item, size in facts["items"])  # the text lists them already
        return error

    if isinstance(kind, type) and issubclass(kind, ProviderError):
        return kind(text, **facts)

    if (
        isinstance(kind, type)
        and issubclass(kind, Exception)
        and (issubclass(kind, RunError) or kind.__init__ in _PLAIN)
    ):
        return kind(text)

    return RunError(f"{name}: {text}")


_PLAIN = (Exception.__init__, ValueError.__init__, RuntimeError.__init__, TypeError.__init__)

# ------------------------------------------------------------------------------------------ states


def encode_snapshot(state: RunState) -> bytes:
    """A state with its loaded messages."""
    transcript = state.transcript
    loaded = [*transcript.numbered()]
    older = {str(place): message for place, message in loaded if place < transcript.start}
    own = encode_messages([message for place, message in loaded if place >= transcript.start])
    below = {one.path: encode_messages(one.messages) for one in message_sections(state) if one.path != state.run_id}
    return to_json(
        {
            "run_id": state.run_id,
            "state": encode_bare_state(state).decode(),
            "start": transcript.start,
            "older": {place: encode_messages([message])[0].decode() for place, message in older.items()},
            "own": [item.decode() for item in own],
            "below": {path: [item.decode() for item in items] for path, items in below.items()},
        }
    )


def decode_snapshot(data: bytes) -> RunState:
    """The state that `encode_snapshot` encoded."""
    found = from_json(data)
    older: dict[int, Message] = {int(place): decode_messages([item])[0] for place, item in found["older"].items()}
    bare = BareState(found["state"].encode())
    own = Transcript(decode_messages(found["own"]), start=found["start"], older=older)
    below = {path: decode_messages(items) for path, items in found["below"].items()}
    return bare.decode({**below, found["run_id"]: own})
