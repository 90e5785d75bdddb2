"""`rolling`, the default policy, and `unbounded`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from crew.errors import DefinitionError
from crew.history.eviction import evict, groups_size
from crew.interfaces import DEFAULT_LIMIT, HistoryBudget, MessageGroup, PolicyOptions, PruneDecision


def whole_numbers(policy: str, least: int, **values: object) -> None:
    """Raise unless every value is an integer of at least `least`."""
    problems = [
        f"{name} must be an integer of at least {least}, not {value!r}"
        for name, value in values.items()
        if not isinstance(value, int) or isinstance(value, bool) or value < least
    ]

    if problems:
        raise DefinitionError(f"History policy {policy!r}", problems)


def check_thresholds(policy: str, *, target: object, threshold: object) -> None:
    """Raise unless both values are shares of the window, `target` the smaller one."""
    numbers = [v for v in (target, threshold) if isinstance(v, int | float) and not isinstance(v, bool)]

    if len(numbers) < 2 or not 0 < numbers[0] < numbers[1] <= 1:
        raise DefinitionError(
            f"History policy {policy!r}",
            "target and threshold must be shares of the window with 0 < target < threshold <= 1, not "
            f"target={target!r} and threshold={threshold!r}",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rolling:
    """Evicts the oldest groups as one block, down to `prune_to`, so that later requests share their prefix."""

    limit: int = DEFAULT_LIMIT
    prune_to: int | None = None
    name: str = "rolling"

    def __post_init__(self) -> None:
        given = {} if self.prune_to is None else {"prune_to": self.prune_to}
        whole_numbers("rolling", 1, limit=self.limit, **given)

    @property
    def options(self) -> PolicyOptions:
        return PolicyOptions(limit=self.limit, prune_to=self.prune_to)

    def prune(self, history: Sequence[MessageGroup], budget: HistoryBudget) -> PruneDecision:
        """Above the limit, evict the oldest groups down to `budget.prune_to`."""
        size = groups_size(history)

        if budget.limit is None or size <= budget.limit:
            return PruneDecision(kept=tuple(history))

        gone = evict(history, target=budget.prune_to, limit=budget.limit)
        return PruneDecision(
            kept=tuple(g for i, g in enumerate(history) if i not in gone),
            evicted=tuple(g for i, g in enumerate(history) if i in gone),
            reason=f"{size} messages are more than the limit of {budget.limit}",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Unbounded:
    """Keeps everything: requests get slower and more expensive with each step, until the model's window is full."""

    limit: None = None
    name: str = "unbounded"

    @property
    def options(self) -> PolicyOptions:
        return PolicyOptions(limit=None)

    def prune(self, history: Sequence[MessageGroup], budget: HistoryBudget) -> PruneDecision:
        """Keep everything."""
        return PruneDecision(kept=tuple(history))
