"""What leaves a view so that it fits: by tokens or by messages, oldest first, at legal cuts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Literal

from crew.doors import Group
from crew.history.legal import departures, last_resort

Measure = Literal["tokens", "size"]


def drop(groups: Sequence[Group], *, target: float, ceiling: float, by: Measure = "tokens") -> set[int]:
    """The indexes that leave, so that no more than `target` stays; of what should stay, only down to `ceiling`."""
    total = sum(_of(g, by) for g in groups)
    gone: set[int] = set()
    steps = chain(((target, unit) for unit in departures(groups)), ((ceiling, (i,)) for i in last_resort(groups)))

    for floor, unit in steps:
        if total <= floor:
            continue

        gone.update(unit)
        total -= sum(_of(groups[index], by) for index in unit)

    return gone


def _of(group: Group, by: Measure) -> int:
    return group.tokens if by == "tokens" else group.size
