"""Explicit compression: which messages each strategy replaces by a TL;DR."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import assert_never

from crew.history.eviction import is_summary
from crew.interfaces import (
    Chunked,
    CompressionStrategy,
    FromTimestamp,
    LastNMessages,
    MessageGroup,
    WholeHistory,
    WholeHistoryMultipleSystemMessages,
)

MIN_MESSAGES = 10
"""Fewer messages than this are not compressed: the summary request would cost more than it saves."""

Span = tuple[str, ...]


def spans_to_compress(
    groups: Sequence[MessageGroup], strategy: CompressionStrategy, verbatim: Collection[str] = ()
) -> tuple[Span, ...]:
    """The ids that each TL;DR replaces; none if fewer than `MIN_MESSAGES` can be compressed.

    `verbatim` lists messages that an earlier compression did not make smaller.
    """
    free = [g for g in groups if not g.mandatory and g.kind != "system" and g.entries[0].message.id not in verbatim]
    spans = _spans_for(groups, free, strategy)
    uncompressed = sum(g.size for span in spans for g in span if not is_summary(g))
    return tuple(_ids(span) for span in spans if span) if uncompressed >= MIN_MESSAGES else ()


def _ids(groups: Iterable[MessageGroup]) -> Span:
    return tuple(entry.message.id for g in groups for entry in g.entries)


def _spans_for(
    groups: Sequence[MessageGroup], free: list[MessageGroup], strategy: CompressionStrategy
) -> list[list[MessageGroup]]:
    match strategy:
        case WholeHistory():
            return [free]
        case LastNMessages(n=n):
            last = _last_positions(groups, n)
            return [[g for g in free if g.entries[0].position not in last]]
        case FromTimestamp(seconds=seconds):
            return [[g for g in free if g.entries[-1].message.time < seconds]]
        case Chunked(size=size):
            return _chunks(groups, free, size)
        case WholeHistoryMultipleSystemMessages():
            return _blocks(groups, free)
        case _:
            assert_never(strategy)


def _last_positions(groups: Sequence[MessageGroup], n: int) -> set[int]:
    """The positions of the last groups that hold at least `n` messages together."""
    positions: set[int] = set()
    size = 0

    for g in reversed(groups):
        if size >= n:
            break

        if g.kind != "system":
            positions.add(g.entries[0].position)
            size += g.size

    return positions


def _chunks(groups: Sequence[MessageGroup], free: list[MessageGroup], size: int) -> list[list[MessageGroup]]:
    """Chunks of about `size` neighbouring messages. A message that stays ends a chunk, so that the order holds."""
    chunks: list[list[MessageGroup]] = [[]]
    compressible = {g.entries[0].position for g in free if not is_summary(g)}

    for g in groups:
        if g.entries[0].position not in compressible:
            chunks.append([])
        else:
            chunks[-1].append(g)

            if sum(member.size for member in chunks[-1]) >= size:
                chunks.append([])

    return [chunk for chunk in chunks if chunk]


def _blocks(groups: Sequence[MessageGroup], free: list[MessageGroup]) -> list[list[MessageGroup]]:
    """The groups between system messages."""
    blocks: list[list[MessageGroup]] = [[]]
    compressible = {g.entries[0].position for g in free}

    for g in groups:
        if g.kind == "system":
            blocks.append([])
        elif g.entries[0].position in compressible:
            blocks[-1].append(g)

    # A block that holds only summaries is compressed already.
    return [block for block in blocks if not all(is_summary(g) for g in block)]
