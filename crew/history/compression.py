"""Explicit compression: which messages of a history each strategy turns into a TL;DR."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import assert_never

from crew.interfaces import (
    Chunked,
    CompressionStrategy,
    FromTimestamp,
    LastNMessages,
    MessageGroup,
    WholeHistory,
    WholeHistoryMultipleSystemMessages,
)
from crew.messages import SummaryMessage

MIN_MESSAGES = 10
"""Fewer uncompressed messages than this are not worth a request."""

Span = tuple[str, ...]


def spans_to_compress(
    groups: Sequence[MessageGroup], strategy: CompressionStrategy, verbatim: Collection[str] = ()
) -> tuple[Span, ...]:
    """The ids that each TL;DR shall stand for; none where too little is left outside what is protected.

    `verbatim` are messages that were tried before and did not get smaller.
    """
    free = [g for g in groups if not g.mandatory and g.kind != "system" and g.entries[0].message.id not in verbatim]
    parts = _spans_for(groups, free, strategy)
    fresh = sum(g.size for part in parts for g in part if not isinstance(g.entries[0].message, SummaryMessage))
    return tuple(_ids(part) for part in parts if part) if fresh >= MIN_MESSAGES else ()


def _ids(part: Iterable[MessageGroup]) -> Span:
    return tuple(entry.message.id for g in part for entry in g.entries)


def _spans_for(
    groups: Sequence[MessageGroup], free: list[MessageGroup], strategy: CompressionStrategy
) -> list[list[MessageGroup]]:
    match strategy:
        case WholeHistory():
            return [free]
        case LastNMessages(n=n):
            last = _last_positions(groups, n)
            return [[g for g in free if g.entries[0].position not in last]]
        case FromTimestamp(time=time):
            return [[g for g in free if g.entries[-1].message.time < time]]
        case Chunked(size=size):
            return _chunks(groups, free, size)
        case WholeHistoryMultipleSystemMessages():
            return _blocks(groups, free)
        case _:
            assert_never(strategy)


def _last_positions(groups: Sequence[MessageGroup], n: int) -> set[int]:
    """Where the last groups stand that together hold at least the last `n` messages."""
    found: set[int] = set()
    taken = 0

    for g in reversed(groups):
        if taken >= n:
            break

        if g.kind != "system":
            found.add(g.entries[0].position)
            taken += g.size

    return found


def _chunks(groups: Sequence[MessageGroup], free: list[MessageGroup], size: int) -> list[list[MessageGroup]]:
    """Neighbours, about `size` messages each; what stays ends a chunk, so that the order holds."""
    chunks: list[list[MessageGroup]] = [[]]
    loose = {g.entries[0].position for g in free if not isinstance(g.entries[0].message, SummaryMessage)}

    for g in groups:
        if g.entries[0].position not in loose:
            chunks.append([])
        else:
            chunks[-1].append(g)

            if sum(member.size for member in chunks[-1]) >= size:
                chunks.append([])

    return [chunk for chunk in chunks if chunk]


def _blocks(groups: Sequence[MessageGroup], free: list[MessageGroup]) -> list[list[MessageGroup]]:
    blocks: list[list[MessageGroup]] = [[]]
    loose = {g.entries[0].position for g in free}

    for g in groups:
        if g.kind == "system":
            blocks.append([])
        elif g.entries[0].position in loose:
            blocks[-1].append(g)

    # A block that is one TL;DR already has nothing to gain.
    return [b for b in blocks if b and not all(isinstance(g.entries[0].message, SummaryMessage) for g in b)]
