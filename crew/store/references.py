"""Finds the positions of the messages that a state refers to by their ids: what waits for a summary, and summaries."""

from __future__ import annotations

from collections.abc import Iterable

from crew.history.summaries import locate_messages
from crew.messages import Message, SummaryMessage, Transcript
from crew.runs.state import RunState


def pending_positions(state: RunState) -> set[int]:
    """The positions of the messages that wait for a summary, and of those that locate the summaries of this state.

    A summary stands at the position of the last message that it covers, so that message is needed. The summaries
    of single views are compared with the shared ones message by message: where there are any, all summaries below are
    needed too.
    """
    views = [view.summaries for view in state.views.values() if view.summaries is not None]
    ids = {*state.pending_summary.message_ids}
    ids.update(id for view in views for id in view.pending)
    ids.update(summary.entry.message.id for view in views for summary in view.shown)
    ids.update(entry.message.id for entry in state.history.entries if isinstance(entry.message, SummaryMessage))

    if not ids:
        return set()

    found: set[int] = set()

    for position, message in _locate(state.transcript, ids):
        found.add(position)

        if isinstance(message, SummaryMessage):
            found |= _positions_below(state.transcript, position, message, all_summaries=bool(views))

    return found


def _locate(transcript: Transcript, ids: Iterable[str]) -> list[tuple[int, Message]]:
    """The messages with these ids and their positions. An id that a run made ends with the position."""
    found: list[tuple[int, Message]] = []
    sought: list[str] = []

    for id in ids:
        tail = id.rpartition(":")[2]
        message = transcript.get(int(tail)) if tail.isdecimal() else None

        if message is not None and message.id == id:
            found.append((int(tail), message))
        else:
            sought.append(id)

    return [*found, *locate_messages(transcript, sought)] if sought else found


def _positions_below(
    transcript: Transcript, position: int, summary: SummaryMessage, *, all_summaries: bool
) -> frozenset[int]:
    """The positions that a summary needs; cached, because neither the summary nor what it covers ever changes."""
    cache, key = summary.cache(), f"positions below, {all_summaries}"
    known: frozenset[int] | None = cache.get(key)

    if known is None:
        # An imported summary may name messages that are not here, or itself.
        covered = [place for place in _locate(transcript, summary.covers) if place[0] < position]
        verbatim = [index for index, message in covered if not isinstance(message, SummaryMessage)]
        found = {max(verbatim)} if verbatim else set()

        for index, message in covered:
            if isinstance(message, SummaryMessage) and (all_summaries or not verbatim):
                below = _positions_below(transcript, index, message, all_summaries=all_summaries)
                found |= {index, *below}

        known = cache[key] = frozenset(found)

    return known
