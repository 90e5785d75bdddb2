"""`checkpoint`: now and then all but the recent becomes a checkpoint, and checkpoints stay."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from crew.errors import DefinitionError
from crew.history.eviction import evict, groups_size, is_summary, protect, prune_decision
from crew.history.policies.rolling import check_thresholds, whole_numbers
from crew.interfaces import DEFAULT_LIMIT, HistoryBudget, MessageGroup, PolicyOptions, PruneDecision, Summarizer
from crew.messages import AssistantMessage, UserMessage

MIN_BLOCK = 10
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
    def options(self) -> PolicyOptions:
        return PolicyOptions(limit=self.trigger_at, eager=True, summarizes=True, summarizer=self.summarizer)

    def prune(self, history: Sequence[MessageGroup], budget: HistoryBudget) -> PruneDecision:
        """All but the recent, once enough has come."""
        older = [i for i, g in enumerate(history) if is_summary(g)]
        size = groups_size(history)
        live = size - len(older)
        full = budget.limit is not None and size > budget.limit

        if not full and live < (self.keep_recent + MIN_BLOCK if older else self.trigger_at):
            return PruneDecision(kept=tuple(history))

        most = live if budget.limit is None else max(1, budget.limit // 2)
        left = older[max(0, len(older) + 1 - most) :]
        retired = set(older) - set(left)
        shielded = protect(history, set(older))
        gone = evict(shielded, set(), target=len(older) + self.keep_recent, limit=size)
        # Fewer than a block would bring no checkpoint, only a gap.
        small = sum(history[i].size for i in gone) < MIN_BLOCK and not full
        gone = set() if small else gone
        why = f"{live} messages since the last checkpoint" if older else f"{size} messages"
        return prune_decision(history, gone | (retired if gone else set()), f"{why}: checkpoint", gone)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summarize:
    """At `threshold` of the window, or at the bound, the older part leaves, and one summary stands for it.

    The first user message, the goal, the recent tail and the newest results of the last `keep_files` files that tools
    touched (`@tool(touches=…)`) stay. A new summary covers the one before it. `limit=None`: the window alone counts.
    """

    threshold: float = 0.8
    target: float = 0.5
    keep_files: int = 10
    limit: int | None = DEFAULT_LIMIT
    prune_to: int | None = None
    window: int | None = None
    summarizer: Summarizer = None
    name: str = "summarize"

    def __post_init__(self) -> None:
        whole_numbers("summarize", 0, keep_files=self.keep_files)
        given = {"limit": self.limit, "prune_to": self.prune_to, "window": self.window}
        whole_numbers("summarize", 1, **{name: value for name, value in given.items() if value is not None})
        check_thresholds("summarize", target=self.target, threshold=self.threshold)

    @property
    def options(self) -> PolicyOptions:
        return PolicyOptions(
            limit=self.limit,
            prune_to=self.prune_to,
            eager=True,
            threshold=self.threshold,
            summarizes=True,
            summarizer=self.summarizer,
        )

    def prune(self, history: Sequence[MessageGroup], budget: HistoryBudget) -> PruneDecision:
        """Nothing below the threshold; else the older part."""
        size, tokens = groups_size(history), sum(g.tokens for g in history)
        window = self.window if self.window is not None else budget.window
        too_many = budget.limit is not None and size > budget.limit
        too_long = window is not None and budget.overhead_tokens + tokens >= self.threshold * window

        if not too_many and not too_long:
            return PruneDecision(kept=tuple(history))

        older = {i for i, g in enumerate(history) if is_summary(g)}
        spared = older | self._protected(history, budget)
        limit = size if budget.limit is None else budget.limit - 1
        target = min(limit, budget.prune_to if too_many else size)
        gone = evict(protect(history, spared), set(), target=target, limit=limit)

        if too_long and window is not None:
            gone = self._lighter(protect(history, spared), gone, self.target * window - budget.overhead_tokens)
            gone = self._lighter(protect(history, older), gone, self.threshold * window - budget.overhead_tokens)

        why = f"{size} messages are more than the limit of {budget.limit}"
        why = (
            f"about {budget.overhead_tokens + tokens} tokens reach {self.threshold:.0%} of the window of {window}"
            if too_long
            else why
        )
        return prune_decision(history, gone, why, gone | older)

    def _lighter(self, history: Sequence[MessageGroup], gone: set[int], tokens: float) -> set[int]:
        """Let more leave, oldest first, until what stays has at most so many tokens."""
        size = sum(g.size for i, g in enumerate(history) if i not in gone)

        while size > 0 and sum(g.tokens for i, g in enumerate(history) if i not in gone) > tokens:
            more = evict(history, gone, target=size - 1, limit=len(history) + size)

            if more == gone:
                break

            gone, size = more, sum(g.size for i, g in enumerate(history) if i not in more)

        return gone

    def _protected(self, history: Sequence[MessageGroup], budget: HistoryBudget) -> set[int]:
        first = next((i for i, g in enumerate(history) if isinstance(g.entries[0].message, UserMessage)), None)
        spared = set() if first is None else {first}
        # Files may fill half of what is left after a pruning, so that the recent tail has the other half.
        room = groups_size(history) if budget.limit is None else max(1, budget.prune_to // 2)

        for index in self._recent_files(history, budget.touches):
            room -= history[index].size

            if room < 0:
                break

            spared.add(index)

        return spared

    def _recent_files(self, history: Sequence[MessageGroup], touches: Mapping[str, str]) -> Iterator[int]:
        """The groups with the newest result for each of the last files, newest first."""
        seen: set[str] = set()

        for index in range(len(history) - 1, -1, -1):
            fresh = {file for file in _touched_resources(history[index], touches) if file not in seen}

            if fresh and len(seen) < self.keep_files:
                seen |= fresh
                yield index


def _touched_resources(group: MessageGroup, touches: Mapping[str, str]) -> Iterator[str]:
    first = group.entries[0].message

    if not isinstance(first, AssistantMessage):
        return

    for call in first.calls:
        if call.name not in touches:
            continue

        try:
            arguments = json.loads(call.arguments or "{}")
        except ValueError:
            continue

        if isinstance(arguments, dict) and (file := arguments.get(touches[call.name])):
            yield str(file)
