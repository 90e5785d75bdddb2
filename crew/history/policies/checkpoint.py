"""`checkpoint`: now and then all but the recent becomes a checkpoint, and checkpoints stay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from crew.doors import Budget, Group, Pruned
from crew.errors import DefinitionError
from crew.history.legal import evict, shield
from crew.history.policies.verdict import Summarizer, is_summary, size_of, verdict, whole_numbers

BLOCK = 10
"""How many more messages bring the next checkpoint; a summary is made for no fewer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """At `trigger_at` messages all but at most `keep_recent` become a checkpoint; the next when 10 more have come.

    What must stay counts among the recent. Checkpoints stay in order; when they fill half the bound, the oldest leave.
    """

    trigger_at: int = 100
    keep_recent: int = 10
    summarizer: Summarizer = None
    name: str = "checkpoint"

    def __post_init__(self) -> None:
        whole_numbers("checkpoint", 1, trigger_at=self.trigger_at, keep_recent=self.keep_recent)

        if self.keep_recent >= self.trigger_at:
            raise DefinitionError(
                "History policy 'checkpoint'",
                f"keep_recent={self.keep_recent} must be below trigger_at={self.trigger_at}",
            )

    @property
    def limit(self) -> int:
        return self.trigger_at

    @property
    def summarizes(self) -> bool:
        return True

    @property
    def eager(self) -> bool:
        return True

    def prune(self, history: Sequence[Group], budget: Budget) -> Pruned:
        """All but the recent, once enough has come."""
        older = [i for i, g in enumerate(history) if is_summary(g)]
        size = size_of(history)
        live = size - len(older)
        full = budget.limit is not None and size > budget.limit

        if not full and live < (self.keep_recent + BLOCK if older else self.trigger_at):
            return Pruned(kept=tuple(history))

        most = live if budget.limit is None else max(1, budget.limit // 2)
        left = older[max(0, len(older) + 1 - most) :]
        retired = set(older) - set(left)
        shielded = shield(history, set(older))
        gone = evict(shielded, set(), target=len(older) + self.keep_recent, limit=size)
        # Fewer than a block would bring no checkpoint, only a gap.
        small = sum(history[i].size for i in gone) < BLOCK and not full
        gone = set() if small else gone
        why = f"{live} messages since the last checkpoint" if older else f"{size} messages"
        return verdict(history, gone | (retired if gone else set()), f"{why}: checkpoint", gone)
