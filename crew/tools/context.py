"""`Context`: the run that calls a tool, as the tool sees it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from pydantic import JsonValue

from crew.messages import Message, Usage

Deps = TypeVar("Deps")


@dataclass(frozen=True, slots=True, kw_only=True)
class Context(Generic[Deps]):
    """Passed to a tool that has a parameter annotated with it. The model does not see that parameter.

    `idempotency_key` identifies this call among all calls of all runs, and stays the same when the call is repeated
    after a crash: pass it to services that accept one. `call_id` is the provider's id; it may repeat in other runs.
    `emit` sends progress to the observers of the run. `metadata` is a copy of what was passed to `execute`.
    `transcript` is the conversation so far, `readable()` the part of it that the handoff filter allows. Of a stored
    conversation both have the messages of this run and those that its history refers to; `await all_readable()` reads
    older ones from the store too, as `recall` does.
    """

    deps: Deps
    run_id: str
    agent: str
    call_id: str
    idempotency_key: str
    usage: Usage
    emit: Callable[[object], None]
    transcript: Sequence[Message] = ()
    metadata: dict[str, JsonValue] = field(default_factory=dict)
    readable: Callable[[], Sequence[Message]] = tuple
    load_readable: Callable[[], Awaitable[Sequence[Message]]] | None = field(default=None, repr=False)

    async def all_readable(self) -> Sequence[Message]:
        """Every message that the handoff filter allows, also those that are not in memory."""
        return self.readable() if self.load_readable is None else await self.load_readable()
