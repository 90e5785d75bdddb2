"""The invariants of requests and run states, as lists of violations."""

from __future__ import annotations

from collections.abc import Iterator

from crew.interfaces import ModelRequest
from crew.message_rules import validate
from crew.message_rules.profiles import PROFILES
from crew.messages import AssistantMessage, message_size
from crew.runs import Finished, RunState
from tests.support.messages import represented_ids


def request_violations(request: ModelRequest, limit: int | None) -> Iterator[str]:
    """A request is within the limit, does not end with a reply, and is valid on every provider."""
    size = sum(map(message_size, request.messages))

    # A request for a summary may hold one more message: the instruction.
    if limit is not None and size > limit + (request.purpose == "summary"):
        yield f"{size} messages, more than {limit}"

    if isinstance(request.messages[-1], AssistantMessage):
        yield "the last message is a reply"

    for profile in PROFILES.values():
        yield from (f"{profile.name}: {violation}" for violation in validate(request.messages, profile))


def unsummarized_ids(state: RunState) -> Iterator[str]:
    """Messages of a run and its children that are not in its history, nor covered there, nor waiting for a summary.

    Where the policy summarizes what it evicts, there are none.
    """
    waiting = set(state.pending_summary.message_ids)
    kept = [*state.history.messages, *(message for message in state.transcript if message.id in waiting)]
    covered = represented_ids(kept, state.transcript)
    yield from (message.id for message in state.transcript if message.role != "system" and message.id not in covered)

    for child in state.children.values():
        yield from unsummarized_ids(child)


def state_violations(state: RunState, before: RunState | None, limit: int | None) -> Iterator[str]:
    """A state and its child runs are within the limit, keep the goal, and have a transcript that only grows."""
    entries, size = state.history.entries, state.history.size
    where = state.run_id

    if size != sum(message_size(entry.message) for entry in entries):
        yield f"{where}: the size of the history is wrong"

    if limit is not None and size > limit:
        yield f"{where}: {size} messages, more than {limit}"

    if state.history.goal not in [entry.message.id for entry in entries] and not isinstance(state.next, Finished):
        yield f"{where}: the goal is missing"

    # A summary has the position of the last message that it covers.
    if any(state.transcript[e.position].id not in (e.message.id, *getattr(e.message, "covers", ())) for e in entries):
        yield f"{where}: the position of a message differs from the transcript"

    ids = [message.id for message in state.transcript]

    if len(set(ids)) < len(ids):
        yield f"{where}: two messages have the same id"

    if before is not None and before.transcript[:] != state.transcript[: len(before.transcript)]:
        yield f"{where}: the transcript changed"

    for key, child in state.children.items():
        old = before.children.get(key) if before is not None else None
        yield from state_violations(child, old if old and old.run_id == child.run_id else None, limit)
