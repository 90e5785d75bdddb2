"""Encodes states and events as versioned JSON, and decodes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json

from crew.errors import StoreError
from crew.messages import Message, Transcript
from crew.runs.events import Event
from crew.runs.state import RunState

VERSION = 3
"""Raised when stored states of the version before can't be decoded; a new field with a default needs no new version."""


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def encode_state(state: RunState, since: int = 0) -> bytes:
    """A state with its children as JSON; of the transcript only messages `since`, if the others are stored apart."""
    return b'{"version":%d,"state":%s}' % (VERSION, _adapter(RunState).dump_json(_without_inherited(state, since)))


def decode_state(data: bytes, before: Sequence[bytes] = ()) -> RunState:
    """The decoded state; `before` are the encoded messages that are stored apart. Checks the version first."""
    state: RunState = _decode(RunState, "state", data)

    try:
        messages = [_adapter(Message).validate_json(message) for message in before]
    except ValidationError as error:
        raise StoreError("", f"A stored message does not match version {VERSION}: {error}.") from error

    return _with_inherited(state, messages)


def _without_inherited(state: RunState, since: int) -> RunState:
    """Encode each message once: of a branch only the messages that it did not inherit."""
    children = {key: _without_inherited(child, child.inherited_messages) for key, child in state.children.items()}
    transcript = Transcript(state.transcript[since:]) if since else state.transcript
    return replace(state, transcript=transcript, children=children)


def _with_inherited(state: RunState, before: Sequence[Message]) -> RunState:
    transcript = Transcript([*before, *state.transcript]) if before else state.transcript
    children = {
        key: _with_inherited(child, transcript[: child.inherited_messages]) for key, child in state.children.items()
    }
    return replace(state, transcript=transcript, children=children)


def encode_messages(messages: Sequence[Message]) -> list[bytes]:
    """Each message as JSON."""
    return [_adapter(Message).dump_json(message) for message in messages]


def encode_events(events: Sequence[Event]) -> bytes:
    """Events as JSON, in order; the data of a tool's progress must be JSON too."""
    return b'{"version":%d,"events":%s}' % (VERSION, _adapter(list[Event]).dump_json(list(events)))


def decode_events(data: bytes) -> list[Event]:
    """The decoded events."""
    events: list[Event] = _decode(list[Event], "events", data)
    return events


def _decode(kind: Any, key: str, data: bytes) -> Any:
    try:
        found = from_json(data)
    except ValueError as error:
        raise StoreError("", f"The stored {key} is not valid JSON: {error}.") from error

    version = found.get("version") if isinstance(found, dict) else None

    if version != VERSION or key not in found:
        raise StoreError(
            "",
            f"The stored {key} has version {version!r}; this release reads only version {VERSION}. Finish the run with "
            "the release that wrote it, or start it again.",
        )

    try:
        return _adapter(kind).validate_python(found[key])
    except ValidationError as error:
        raise StoreError("", f"The stored {key} does not match version {VERSION}: {error}.") from error
