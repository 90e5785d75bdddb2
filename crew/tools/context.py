"""What a tool may know of the run that calls it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from crew.messages import Message, Usage

Deps = TypeVar("Deps")


@dataclass(frozen=True, slots=True, kw_only=True)
class Context(Generic[Deps]):
    """Handed to a tool that has a parameter annotated with it; the model never sees that parameter.

    `emit` shows progress to whoever watches the run. `transcript` is the conversation so far.
    """

    deps: Deps
    run_id: str
    agent: str
    call_id: str
    usage: Usage
    emit: Callable[[Any], None]
    transcript: Sequence[Message] = ()
