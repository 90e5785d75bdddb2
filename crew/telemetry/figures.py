"""What was measured, kept in this process: the numbers behind `executor.metrics()`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from crew.telemetry.names import METRICS

MOST_SERIES = 2_000

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One metric: how often it was measured, the sum, the least, the most, and the same for each set of labels.

    What was not measured yet is 0 throughout.
    """

    unit: str
    count: int
    total: float
    least: float
    most: float
    by: Mapping[Labels, Figure] = field(default_factory=dict, repr=False)

    @property
    def mean(self) -> float:
        """The sum by the count."""
        return self.total / self.count if self.count else 0.0


class Series:
    """One metric under one set of labels."""

    __slots__ = ("count", "least", "most", "total")

    def __init__(self) -> None:
        self.count, self.total, self.least, self.most = 0, 0.0, math.inf, -math.inf

    def add(self, value: float) -> None:
        """One measurement."""
        self.count += 1
        self.total += value

        if value < self.least:
            self.least = value

        if value > self.most:
            self.most = value


class Figures:
    """Adds up what it is told; at most 2,000 sets of labels, what is beyond them counts without labels."""

    def __init__(self) -> None:
        self._series: dict[tuple[str, Labels], Series] = {}

    def of(self, name: str, labels: Labels) -> Series:
        """Where the measurements of this kind are added up."""
        key = (name, labels)

        if key not in self._series and len(self._series) >= MOST_SERIES:
            key = (name, ())

        return self._series.setdefault(key, Series())

    def read(self) -> dict[str, Figure]:
        """Every metric that there is, with what it came to so far."""
        found: dict[str, dict[Labels, Figure]] = {name: {} for name in METRICS}

        for (name, labels), of in list(self._series.items()):
            if of.count:
                unit = METRICS[name].unit
                figure = Figure(unit=unit, count=of.count, total=of.total, least=of.least, most=of.most)
                found[name][labels] = figure

        return {name: _summed(METRICS[name].unit, parts) for name, parts in found.items()}


def _summed(unit: str, parts: dict[Labels, Figure]) -> Figure:
    all_ = list(parts.values())
    return Figure(
        unit=unit,
        count=sum(f.count for f in all_),
        total=sum(f.total for f in all_),
        least=min((f.least for f in all_), default=0.0),
        most=max((f.most for f in all_), default=0.0),
        by=parts,
    )
