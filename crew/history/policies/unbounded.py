"""`unbounded`: no pruning at all, by a name of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from crew.doors import Budget, Group, Pruned


@dataclass(frozen=True, slots=True, kw_only=True)
class Unbounded:
    """Keeps everything, for ever: the run grows slower and dearer with each step, and breaks at the model's window."""

    limit: None = None
    name: str = "unbounded"

    def prune(self, history: Sequence[Group], budget: Budget) -> Pruned:
        """Nothing."""
        return Pruned(kept=tuple(history))
