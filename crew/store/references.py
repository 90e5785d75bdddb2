"""Finds the positions of the messages that a state refers to by their ids: what waits for a summary, and summaries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from crew.history.summaries import locate_messages
from crew.messages import Message, SummaryMessage, SystemMessage, Transcript
from crew.runs.state import RunState

Place = tuple[int, Message]
"""A message and its position."""


def pending_positions(state: RunState) -> set[int]:
    """The positions of the messages that wait for a summary, and of those that locate the summaries of this state.

    A summary stands at the position of the last message that it covers, so that message is needed. The summaries of
    single views are compared with new shared ones, message by message: so the summaries below them are needed too, as
    far as they cover messages that a shared summary can still cover.
    """
    views = [view.summaries for view in state.views.values() if view.summaries is not None]
    ids = {*state.pending_summary.message_ids}
    ids.update(id for view in views for id in view.pending)
    ids.update(summary.entry.message.id for view in views for summary in view.shown)
    ids.update(entry.message.id for entry in state.history.entries if isinstance(entry.message, SummaryMessage))

    if not ids:
        return set()

    transcript = state.transcript
    compared_from = _oldest_shared_position(state) if views else len(transcript)
    found: set[int] = set()
    waiting = _locate(transcript, ids)

    while waiting:
        position, message = waiting.pop()

        if position not in found:
            found.add(position)
            waiting += _places_below(transcript, position, message, compared_from)

    return found


def _oldest_shared_position(state: RunState) -> int:
    """The position of the oldest message that a new summary of the shared history can cover."""
    pending = _locate(state.transcript, state.pending_summary.message_ids)
    places = [*pending, *((entry.position, entry.message) for entry in state.history.entries)]

    if any(isinstance(message, SummaryMessage) for _, message in places):
        return 0  # a new summary may cover that one, and with it messages of any age

    # System messages are never summarized.
    verbatim = (position for position, message in places if not isinstance(message, SystemMessage))
    return min(verbatim, default=len(state.transcript))


def _locate(transcript: Transcript, ids: Iterable[str]) -> list[Place]:
    """The messages with these ids and their positions. An id that a run made ends with the position."""
    found: list[Place] = []
    sought: list[str] = []

    for id in ids:
        tail = id.rpartition(":")[2]
        message = transcript.get(int(tail)) if tail.isdecimal() else None

        if message is not None and message.id == id:
            found.append((int(tail), message))
        else:
            sought.append(id)

    return [*found, *locate_messages(transcript, sought)] if sought else found


def _places_below(transcript: Transcript, position: int, message: Message, compared_from: int) -> Iterator[Place]:
    """What a summary needs: the last message that it covers, and the summaries that it covers.

    The latter only if it covers nothing else, or from `compared_from` on: older summaries cover older messages.
    """
    if not isinstance(message, SummaryMessage):
        return

    last, summaries = _covered_positions(transcript, position, message)

    for index in summaries if last is None else (last, *(index for index in summaries if index > compared_from)):
        if (covered := transcript.get(index)) is not None:
            yield index, covered


def _covered_positions(
    transcript: Transcript, position: int, summary: SummaryMessage
) -> tuple[int | None, tuple[int, ...]]:
    """The last message that a summary covers, and the positions of the summaries that it covers.

    Cached, because neither the summary nor what it covers ever changes.
    """
    cache = summary.cache()
    known: tuple[int | None, tuple[int, ...]] | None = cache.get("covered positions")

    if known is None:
        # An imported summary may name messages that are not here, or itself.
        covered = [place for place in _locate(transcript, summary.covers) if place[0] < position]
        summaries = tuple(index for index, message in covered if isinstance(message, SummaryMessage))
        last = max((index for index, message in covered if not isinstance(message, SummaryMessage)), default=None)
        known = cache["covered positions"] = (last, summaries)

    return known
