"""States and events as versioned JSON, and back."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json

from crew.errors import StoreError
from crew.runs import Event, RunState

VERSION = 1


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def encode_state(state: RunState) -> bytes:
    """A state, its whole tree included, as JSON."""
    return b'{"version":%d,"state":%s}' % (VERSION, _adapter(RunState).dump_json(state))


def decode_state(data: bytes) -> RunState:
    """The state that was encoded."""
    state: RunState = _decode(RunState, "state", data)
    return state


def encode_events(events: Sequence[Event]) -> bytes:
    """Events as JSON, in order; what a tool showed of itself must be JSON too."""
    return b'{"version":%d,"events":%s}' % (VERSION, _adapter(list[Event]).dump_json(list(events)))


def decode_events(data: bytes) -> list[Event]:
    """The events that were encoded."""
    events: list[Event] = _decode(list[Event], "events", data)
    return events


def _decode(kind: Any, key: str, data: bytes) -> Any:
    try:
        found = from_json(data)
    except ValueError as error:
        raise StoreError("", f"What is stored is not JSON: {error}.") from error

    version = found.get("version") if isinstance(found, dict) else None

    if version != VERSION or key not in found:
        raise StoreError("", f"What is stored is of version {version!r}; this release reads version {VERSION} only.")

    try:
        return _adapter(kind).validate_python(found[key])
    except ValidationError as error:
        raise StoreError("", f"What is stored is not a run's {key}: {error}.") from error
