"""`rolling`: oldest first, in blocks. The default."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from crew.errors import DefinitionError
from crew.history.eviction import evict
from crew.interfaces import DEFAULT_LIMIT, HistoryBudget, MessageGroup, PolicyOptions, PruneDecision


def whole_numbers(policy: str, least: int, **values: object) -> None:
    """Refuse what is not a whole number from `least` on."""
    problems = [
        f"{name} must be a whole number from {least} on, not {value!r}"
        for name, value in values.items()
        if not isinstance(value, int) or isinstance(value, bool) or value < least
    ]

    if problems:
        raise DefinitionError(f"History policy {policy!r}", problems)


def check_thresholds(policy: str, *, target: object, threshold: object) -> None:
    """Refuse what are not two shares of the window, the smaller one first."""
    numbers = [v for v in (target, threshold) if isinstance(v, int | float) and not isinstance(v, bool)]

    if len(numbers) < 2 or not 0 < numbers[0] < numbers[1] <= 1:
        raise DefinitionError(
            f"History policy {policy!r}",
            f"target and threshold are shares of the window with 0 < target < threshold <= 1, not "
            f"target={target!r} and threshold={threshold!r}",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rolling:
    """Oldest first, at a legal boundary, down to the target in one block, so that the front then holds still."""

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
        """Nothing while the limit holds; else everything above the target."""
        size = sum(g.size for g in history)

        if budget.limit is None or size <= budget.limit:
            return PruneDecision(kept=tuple(history))

        gone = evict(history, set(), target=budget.prune_to, limit=budget.limit)
        return PruneDecision(
            kept=tuple(g for i, g in enumerate(history) if i not in gone),
            evicted=tuple(g for i, g in enumerate(history) if i in gone),
            reason=f"{size} messages are more than the limit of {budget.limit}",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Unbounded:
    """Keeps everything, for ever: the run grows slower and dearer with each step, and breaks at the model's window."""

    limit: None = None
    name: str = "unbounded"

    @property
    def options(self) -> PolicyOptions:
        return PolicyOptions(limit=None)

    def prune(self, history: Sequence[MessageGroup], budget: HistoryBudget) -> PruneDecision:
        """Nothing."""
        return PruneDecision(kept=tuple(history))
