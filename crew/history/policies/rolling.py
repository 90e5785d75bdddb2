"""`rolling`: oldest first, in blocks. The default."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from crew.doors import Budget, Group, Pruned
from crew.history.legal import evict
from crew.history.policies.verdict import whole_numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Rolling:
    """Oldest first, at a legal boundary, down to the target in one block, so that the front then holds still."""

    limit: int = 50
    prune_to: int | None = None
    name: str = "rolling"

    def __post_init__(self) -> None:
        given = {} if self.prune_to is None else {"prune_to": self.prune_to}
        whole_numbers("rolling", 1, limit=self.limit, **given)

    def prune(self, history: Sequence[Group], budget: Budget) -> Pruned:
        """Nothing while the limit holds; else everything above the target."""
        size = sum(g.size for g in history)

        if budget.limit is None or size <= budget.limit:
            return Pruned(kept=tuple(history))

        gone = evict(history, set(), target=budget.target, limit=budget.limit)
        return Pruned(
            kept=tuple(g for i, g in enumerate(history) if i not in gone),
            evicted=tuple(g for i, g in enumerate(history) if i in gone),
            reason=f"{size} messages are more than the limit of {budget.limit}",
        )
