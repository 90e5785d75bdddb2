"""`head_tail`: the beginning and the end stay, the oldest of the middle leaves."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

from crew.history.eviction import evict, groups_size, is_summary, protect, prune_decision
from crew.history.policies.rolling import whole_numbers
from crew.interfaces import HistoryBudget, MessageGroup, PolicyOptions, PruneDecision, Summarizer


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadTail:
    """Keeps the first and the last messages; system messages stand outside both. `max_messages=0`: no bound.

    Head and tail shrink to whole groups, and where both don't fit beside what must stay, the head gives way.
    `summarize_on_trim` puts one summary between them, inside the bound.
    """

    max_messages: int = 100
    preserve_first_n: int = 1
    preserve_last_n: int = 20
    prune_to: int | None = None
    summarize_on_trim: bool = False
    summarizer: Summarizer = None
    name: str = "head_tail"

    def __post_init__(self) -> None:
        whole_numbers(
            "head_tail",
            0,
            max_messages=self.max_messages,
            preserve_first_n=self.preserve_first_n,
            preserve_last_n=self.preserve_last_n,
        )
        ends = self.preserve_first_n + self.preserve_last_n

        if 0 < self.max_messages <= ends:
            warnings.warn(
                f"head_tail keeps the first {self.preserve_first_n} and the last {self.preserve_last_n} messages; that "
                f"leaves no middle within max_messages={self.max_messages}: the bound is {ends}, and every message "
                "beyond it moves the front of the tail, which defeats prompt caching.",
                stacklevel=3,
            )

    @property
    def options(self) -> PolicyOptions:
        ends = self.preserve_first_n + self.preserve_last_n
        return PolicyOptions(
            limit=max(self.max_messages, ends) if self.max_messages else None,
            prune_to=self.prune_to,
            summarizes=self.summarize_on_trim,
            summarizer=self.summarizer,
        )

    def prune(self, history: Sequence[MessageGroup], budget: HistoryBudget) -> PruneDecision:
        """The oldest of the middle, down to the target."""
        size = groups_size(history)

        if budget.limit is None or size <= budget.limit:
            return PruneDecision(kept=tuple(history))

        ends = self._head(history) | self._tail(history)
        older = {i for i, g in enumerate(history) if is_summary(g)} if self.summarize_on_trim else set()
        # The head gives way before the tail does, and the older summary stays until the new one replaces it.
        room = budget.limit - self.summarize_on_trim
        gone = evict(protect(history, ends | older), set(), target=min(budget.prune_to, room), limit=room)
        tail = protect(history, self._tail(history) | older)
        gone = evict(tail, gone, target=room, limit=room)
        named = (gone | older) if self.summarize_on_trim else set()
        return prune_decision(history, gone, f"{size} messages are more than the limit of {budget.limit}", named)

    def _head(self, history: Sequence[MessageGroup]) -> set[int]:
        found: set[int] = set()
        taken, after = 0, None

        for index, g in enumerate(history):
            if g.kind == "system":
                # A system message in between takes no part, and leaves no gap.
                after = g.entries[-1].position + 1 if after == g.entries[0].position else after
                continue

            # A gap means that the head ended here when the middle left: what follows was never part of it.
            if is_summary(g) or (after is not None and g.entries[0].position != after):
                break

            if taken + g.size > self.preserve_first_n:
                break

            found.add(index)
            taken, after = taken + g.size, g.entries[-1].position + 1

        return found

    def _tail(self, history: Sequence[MessageGroup]) -> set[int]:
        found: set[int] = set()
        taken = 0

        for index in range(len(history) - 1, -1, -1):
            if history[index].kind == "system" or is_summary(history[index]):
                continue

            if taken + history[index].size > self.preserve_last_n:
                break

            found.add(index)
            taken += history[index].size

        return found
