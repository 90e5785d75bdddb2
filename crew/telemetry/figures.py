"""What was measured, kept in this process: the numbers behind `executor.metrics()`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from crew.telemetry.names import METRICS

MOST_SERIES = 2_000

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One metric: how often it was measured, the sum, the least, the most, and the same for each set of labels."""

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


class Figures:
    """Adds up what it is told; at most 2,000 sets of labels, what is beyond them counts without labels."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, Labels], list[float]] = {}

    def record(self, name: str, value: float, labels: Labels) -> None:
        """One measurement."""
        key = (name, labels)
        sums = self._sums.get(key)

        if sums is None:
            if len(self._sums) >= MOST_SERIES:
                key = (name, ())

            sums = self._sums.setdefault(key, [0, 0.0, value, value])

        sums[0] += 1
        sums[1] += value

        if value < sums[2]:
            sums[2] = value
        elif value > sums[3]:
            sums[3] = value

    def read(self) -> dict[str, Figure]:
        """Everything so far, by metric."""
        found: dict[str, dict[Labels, Figure]] = {}

        for (name, labels), (count, total, least, most) in list(self._sums.items()):
            unit = METRICS[name].unit
            figure = Figure(unit=unit, count=int(count), total=total, least=least, most=most)
            found.setdefault(name, {})[labels] = figure

        return {name: _summed(parts) for name, parts in found.items()}


def _summed(parts: dict[Labels, Figure]) -> Figure:
    all_ = list(parts.values())
    return Figure(
        unit=all_[0].unit,
        count=sum(f.count for f in all_),
        total=sum(f.total for f in all_),
        least=min(f.least for f in all_),
        most=max(f.most for f in all_),
        by=parts,
    )
