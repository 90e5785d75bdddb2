"""`rolling`, the default policy, and `unbounded`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from crew.history.eviction import evict, groups_size, prune_decision
from crew.interfaces import DEFAULT_LIMIT, HistoryBudget, MessageGroup, PolicyOptions, PruneDecision
from crew.settings import MessageLimit, PositiveInt, check_settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Rolling:
    """Evicts the oldest groups as one block, down to `prune_to`, so that later requests share their prefix."""

    limit: MessageLimit = DEFAULT_LIMIT
    prune_to: PositiveInt | None = None
    name: str = "rolling"

    def __post_init__(self) -> None:
        check_settings(self, "History policy 'rolling'")

    @property
    def options(self) -> PolicyOptions:
        return PolicyOptions(limit=self.limit, prune_to=self.prune_to)

    def prune(self, history: Sequence[MessageGroup], budget: HistoryBudget) -> PruneDecision:
        """Above the limit, evict the oldest groups down to `budget.prune_to`."""
        size = groups_size(history)

        if budget.limit is None or size <= budget.limit:
            return PruneDecision(kept=tuple(history))

        gone = evict(history, target=budget.prune_to, limit=budget.limit)
        return prune_decision(history, gone, f"{size} messages are more than the limit of {budget.limit}")


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
