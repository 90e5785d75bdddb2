"""Explicit compression: which messages each strategy replaces by a TL;DR."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from typing import assert_never

from crew.history.eviction import groups_size, is_summary
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
    groups: Sequence[MessageGroup],
    strategy: CompressionStrategy,
    verbatim: Collection[str] = (),
    *,
    evicted: Collection[str] = (),
    limit: int | None = None,
) -> tuple[Span, ...]:
    """The ids that each TL;DR replaces, oldest first; none if fewer than `MIN_MESSAGES` can be compressed.

    `verbatim` lists messages that an earlier compression did not make smaller. `evicted` lists messages that the bound
    evicted: a TL;DR covers them whatever the strategy selects. With a `limit`, each TL;DR covers at most what one
    request may hold, and nothing is compressed while the mandatory groups leave no space for a TL;DR.
    """
    if limit is not None and sum(g.size for g in groups if g.mandatory) >= limit:
        return ()

    gone = {_position(g) for g in groups if g.entries[0].message.id in evicted}
    free = [g for g in groups if not g.mandatory and g.kind != "system"]
    free = [g for g in free if _position(g) in gone or g.entries[0].message.id not in verbatim]
    spans = _spans_for(groups, free, gone, strategy)

    if sum(g.size for span in spans for g in span if _is_uncompressed(g, gone)) < MIN_MESSAGES:
        return ()

    parts = (part for span in spans for part in _split(span, limit))
    return tuple(tuple(entry.message.id for g in part for entry in g.entries) for part in parts)


def _position(group: MessageGroup) -> int:
    return group.entries[0].position


def _is_uncompressed(group: MessageGroup, gone: Collection[int]) -> bool:
    """Whether a group still needs a TL;DR: messages, and a summary that the bound evicted."""
    return not is_summary(group) or _position(group) in gone


def _spans_for(
    groups: Sequence[MessageGroup], free: list[MessageGroup], gone: set[int], strategy: CompressionStrategy
) -> list[list[MessageGroup]]:
    """The groups that each TL;DR of the strategy replaces; those at the positions `gone` are always among them."""
    match strategy:
        case WholeHistory():
            return [free]
        case LastNMessages(n=n):
            last = _last_positions(groups, n) - gone
            return [[g for g in free if _position(g) not in last]]
        case FromTimestamp(seconds=seconds):
            return [[g for g in free if g.entries[-1].message.time < seconds or _position(g) in gone]]
        case Chunked(size=size):
            summaries = [g for g in free if is_summary(g) and _position(g) in gone]
            return [summaries, *_chunks(groups, {_position(g) for g in free if not is_summary(g)}, size)]
        case WholeHistoryMultipleSystemMessages():
            # A block that holds only summaries is compressed already.
            return [block for block in _blocks(groups, free) if any(_is_uncompressed(g, gone) for g in block)]
        case _:
            assert_never(strategy)


def _split(span: Sequence[MessageGroup], limit: int | None) -> Iterator[list[MessageGroup]]:
    """The span in parts of about the same size, each small enough for a request beside its introduction."""
    size = groups_size(span)
    available = max(1, size) if limit is None else max(2, limit - 1)
    share = size / max(1, math.ceil(size / available))
    part: list[MessageGroup] = []

    for group in span:
        held = groups_size(part)

        if part and (held >= share or held + group.size > available):
            yield part
            part = []

        part.append(group)

    if part:
        yield part


def _last_positions(groups: Sequence[MessageGroup], n: int) -> set[int]:
    """The positions of the last groups that hold at least `n` messages together."""
    positions: set[int] = set()
    size = 0

    for g in reversed(groups):
        if size >= n:
            break

        if g.kind != "system":
            positions.add(_position(g))
            size += g.size

    return positions


def _chunks(groups: Sequence[MessageGroup], compressible: Collection[int], size: int) -> list[list[MessageGroup]]:
    """Chunks of about `size` neighbouring messages. A message that stays ends a chunk, so that the order holds."""
    chunks: list[list[MessageGroup]] = [[]]

    for g in groups:
        if _position(g) not in compressible:
            chunks.append([])
        else:
            chunks[-1].append(g)

            if groups_size(chunks[-1]) >= size:
                chunks.append([])

    return [chunk for chunk in chunks if chunk]


def _blocks(groups: Sequence[MessageGroup], free: list[MessageGroup]) -> list[list[MessageGroup]]:
    """The groups between system messages."""
    blocks: list[list[MessageGroup]] = [[]]
    compressible = {_position(g) for g in free}

    for g in groups:
        if g.kind == "system":
            blocks.append([])
        elif _position(g) in compressible:
            blocks[-1].append(g)

    return blocks
