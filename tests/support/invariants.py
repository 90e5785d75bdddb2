"""The invariants of requests and run states, as lists of violations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from crew.history.view import visible_entries
from crew.interfaces import ModelRequest
from crew.message_rules import validate
from crew.message_rules.profiles import PROFILES
from crew.messages import AssistantMessage, SummaryMessage, SystemMessage, message_size
from crew.runs import Finished, RunState
from crew.runs.state import CheckInput
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


def view_violations(agent: str, state: RunState, before: RunState | None) -> Iterator[str]:
    """Every message that leaves a view with summaries is covered by exactly one of them, or waits for one."""
    view, entries = state.views[agent], state.history.entries
    assert view.summaries is not None
    waiting = [_covered(state, [id]) for id in view.summaries.pending]
    parts = [*waiting, *(_covered(state, [s.entry.message.id]) for s in view.summaries.shown)]
    twice = [id for id, count in Counter(id for part in parts for id in part).items() if count > 1]
    # A summary of the shared history may cover more than this agent was shown, so that it overlaps.
    is_shared = state.pending_summary.message_ids or any(isinstance(e.message, SummaryMessage) for e in entries)

    if twice and not is_shared:
        yield f"more than one summary covers {twice}"

    old = before.views.get(agent) if before is not None else None
    is_filtered = old is not None and old.handoff_position != view.handoff_position

    if before is None or before.run_id != state.run_id or old is None or old.summaries is None or is_filtered:
        return

    lost = _accounted(agent, before) - {id for part in parts for id in part} - _accounted(agent, state, shown=True)

    if lost:
        yield f"left without a summary: {sorted(lost)}"


def _accounted(agent: str, state: RunState, *, shown: bool = False) -> set[str]:
    """The messages that a view showed its agent (with `shown`: would show it), verbatim or in a summary, or that wait
    for one."""
    view = state.views[agent]
    assert view.summaries is not None
    sent = {code // 4 for code in view.last_request}
    entries = [
        entry
        for entry in visible_entries(state.history, view)
        if shown
        or agent == state.agent
        or entry.position in sent
        or (isinstance(entry.message, AssistantMessage) and entry.message.agent == agent)
    ]
    verbatim = [entry.message.id for entry in entries if not isinstance(entry.message, SystemMessage)]
    return _covered(state, [*verbatim, *view.summaries.pending])


def _covered(state: RunState, ids: Sequence[str]) -> set[str]:
    """These messages; in place of each summary those that it covers, through any number of summaries."""
    by_id = {message.id: message for message in state.transcript}
    found: set[str] = set()

    for id in ids:
        message = by_id[id]
        found |= _covered(state, message.covers) if isinstance(message, SummaryMessage) else {id}

    return found


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

    is_unchecked = isinstance(state.next, CheckInput) and state.next.messages  # the goal waits for guardrails
    has_goal = state.history.goal in [entry.message.id for entry in entries]

    if not has_goal and not is_unchecked and not isinstance(state.next, Finished):
        yield f"{where}: the goal is missing"

    # A summary has the position of the last message that it covers.
    if any(state.transcript[e.position].id not in (e.message.id, *getattr(e.message, "covers", ())) for e in entries):
        yield f"{where}: the position of a message differs from the transcript"

    ids = [message.id for message in state.transcript]

    if len(set(ids)) < len(ids):
        yield f"{where}: two messages have the same id"

    if before is not None and before.transcript[:] != state.transcript[: len(before.transcript)]:
        yield f"{where}: the transcript changed"

    for agent, view in state.views.items():
        if view.summaries is not None:
            yield from (f"{where}: view of {agent}: {v}" for v in view_violations(agent, state, before))

    for key, child in state.children.items():
        old = before.children.get(key) if before is not None else None
        yield from state_violations(child, old if old and old.run_id == child.run_id else None, limit)
