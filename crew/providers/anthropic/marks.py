"""Cache breakpoints: marks that are set while a request is joined, so that the rendered bytes stay as they are."""

from __future__ import annotations

from collections.abc import Sequence

from crew.providers.anthropic.turns import Turn

MARK = b',"cache_control":{"type":"ephemeral"}}'
ROLLING = 3
APART = 15
"""The service looks back 20 blocks from a mark for what it has; marks this far apart can't miss it."""

_UNMARKED = (b'{"type":"thinking"', b'{"type":"redacted_thinking"')


def marked(block: bytes) -> bytes:
    """A block with a mark."""
    return block[:-1] + MARK


def joined(turns: Sequence[Turn]) -> bytes:
    """The turns, with a mark on the newest block and two more behind it, each at most 15 blocks apart."""
    rendered = [turn.whole for turn in turns]
    left, since = ROLLING, APART

    for index in range(len(turns) - 1, -1, -1):
        blocks = turns[index].blocks

        if since + len(blocks) < APART:
            since += len(blocks)
            continue

        chosen: list[int] = []

        for place in range(len(blocks) - 1, -1, -1):
            if since >= APART and left and not blocks[place].startswith(_UNMARKED):
                chosen.append(place)
                since, left = 0, left - 1

            since += 1

        if chosen:
            with_marks = [marked(block) if place in chosen else block for place, block in enumerate(blocks)]
            head = b'{"role":"' + turns[index].role.encode() + b'","content":['
            rendered[index] = head + b",".join(with_marks) + b"]}"

        if not left:
            break

    return b",".join(rendered)
