"""`head_tail`: keep the first and the last messages, evict the middle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from crew.history.eviction import evict, groups_size, is_summary, protect, prune_decision
from crew.interfaces import HistoryBudget, MessageGroup, PolicyOptions, PruneDecision, Summarizer
from crew.settings import NonNegativeInt, PositiveInt, check_settings, warn_about


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadTail:
    """Keeps the first and the last messages, system messages not counted. `max_messages=0`: no limit.

    Head and tail are cut to whole groups. If both do not fit beside the mandatory groups, the head is evicted first.
    `summarize_on_trim` replaces the middle by one summary, within the limit.
    """

    max_messages: NonNegativeInt = 100
    preserve_first_n: NonNegativeInt = 1
    preserve_last_n: NonNegativeInt = 20
    prune_to: PositiveInt | None = None
    summarize_on_trim: bool = False
    summarizer: Summarizer = None
    name: str = "head_tail"

    def __post_init__(self) -> None:
        check_settings(self, "History policy 'head_tail'")
        ends = self.preserve_first_n + self.preserve_last_n

        if 0 < self.max_messages <= ends:
            warn_about(
                f"head_tail keeps the first {self.preserve_first_n} and the last {self.preserve_last_n} messages. That "
                f"leaves no middle within max_messages={self.max_messages}: the limit becomes {ends}, and every "
                "message beyond it evicts another one, which defeats prompt caching."
            )

        if self.summarizer is not None and not self.summarize_on_trim:
            warn_about("The summarizer of head_tail has no effect without summarize_on_trim.", "summarizer")

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
        """Evict the oldest groups of the middle, down to `budget.prune_to`."""
        size = groups_size(history)

        if budget.limit is None or size <= budget.limit:
            return PruneDecision(kept=tuple(history))

        tail = self._tail(history)
        # The older summary stays until the new one replaces it.
        summaries = {i for i, g in enumerate(history) if is_summary(g)} if self.summarize_on_trim else set()
        limit = budget.limit - self.summarize_on_trim
        ends = protect(history, self._head(history) | tail | summaries)
        gone = evict(ends, target=min(budget.prune_to, limit), limit=limit)
        # If the middle was not enough, the head is evicted before the tail.
        gone = evict(protect(history, tail | summaries), gone, target=limit, limit=limit)
        to_summarize = gone | summaries if self.summarize_on_trim else set()
        reason = f"{size} messages are more than the limit of {budget.limit}"
        return prune_decision(history, gone, reason, to_summarize)

    def _head(self, history: Sequence[MessageGroup]) -> set[int]:
        head: set[int] = set()
        size = 0
        next_position: int | None = None

        for index, g in enumerate(history):
            start, end = g.entries[0].position, g.entries[-1].position + 1

            if g.kind == "system":
                # A system message does not count, and does not interrupt the head.
                next_position = end if next_position == start else next_position
                continue

            # A gap in the positions marks the end of the head: an earlier pruning evicted the middle there.
            if is_summary(g) or (next_position is not None and start != next_position):
                break

            if size + g.size > self.preserve_first_n:
                break

            head.add(index)
            size, next_position = size + g.size, end

        return head

    def _tail(self, history: Sequence[MessageGroup]) -> set[int]:
        tail: set[int] = set()
        size = 0

        for index in range(len(history) - 1, -1, -1):
            if history[index].kind == "system" or is_summary(history[index]):
                continue

            if size + history[index].size > self.preserve_last_n:
                break

            tail.add(index)
            size += history[index].size

        return tail
