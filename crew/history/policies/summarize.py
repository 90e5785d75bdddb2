"""`summarize`: what is too much for the model's window becomes one summary."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from crew.doors import Budget, Group, Pruned
from crew.history.legal import evict, shield
from crew.history.policies.verdict import Summarizer, is_summary, shares, size_of, verdict, whole_numbers
from crew.messages import AssistantMessage, UserMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class Summarize:
    """At `threshold` of the window, or at the bound, the older part leaves, and one summary stands for it.

    The first user message, the goal, the recent tail and the newest results of the last `keep_files` files that tools
    touched (`@tool(touches=…)`) stay. A new summary covers the one before it. `limit=None`: the window alone counts.
    """

    threshold: float = 0.8
    target: float = 0.5
    keep_files: int = 10
    limit: int | None = 50
    prune_to: int | None = None
    window: int | None = None
    summarizer: Summarizer = None
    name: str = "summarize"

    def __post_init__(self) -> None:
        whole_numbers("summarize", 0, keep_files=self.keep_files)
        given = {"limit": self.limit, "prune_to": self.prune_to, "window": self.window}
        whole_numbers("summarize", 1, **{name: value for name, value in given.items() if value is not None})
        shares("summarize", target=self.target, threshold=self.threshold)

    @property
    def summarizes(self) -> bool:
        return True

    @property
    def eager(self) -> bool:
        return True

    def prune(self, history: Sequence[Group], budget: Budget) -> Pruned:
        """Nothing below the threshold; else the older part."""
        size, tokens = size_of(history), sum(g.tokens for g in history)
        window = self.window if self.window is not None else budget.window
        too_many = budget.limit is not None and size > budget.limit
        too_long = window is not None and budget.fixed + tokens >= self.threshold * window

        if not too_many and not too_long:
            return Pruned(kept=tuple(history))

        older = {i for i, g in enumerate(history) if is_summary(g)}
        spared = older | self._spared(history, budget)
        limit = size if budget.limit is None else budget.limit - 1
        target = min(limit, budget.target if too_many else size)
        gone = evict(shield(history, spared), set(), target=target, limit=limit)

        if too_long and window is not None:
            gone = self._lighter(shield(history, spared), gone, self.target * window - budget.fixed)
            gone = self._lighter(shield(history, older), gone, self.threshold * window - budget.fixed)

        why = f"{size} messages are more than the limit of {budget.limit}"
        why = (
            f"about {budget.fixed + tokens} tokens reach {self.threshold:.0%} of the window of {window}"
            if too_long
            else why
        )
        return verdict(history, gone, why, gone | older)

    def _lighter(self, history: Sequence[Group], gone: set[int], tokens: float) -> set[int]:
        """Let more leave, oldest first, until what stays has at most so many tokens."""
        size = sum(g.size for i, g in enumerate(history) if i not in gone)

        while size > 0 and sum(g.tokens for i, g in enumerate(history) if i not in gone) > tokens:
            more = evict(history, gone, target=size - 1, limit=len(history) + size)

            if more == gone:
                break

            gone, size = more, sum(g.size for i, g in enumerate(history) if i not in more)

        return gone

    def _spared(self, history: Sequence[Group], budget: Budget) -> set[int]:
        first = next((i for i, g in enumerate(history) if isinstance(g.entries[0].message, UserMessage)), None)
        spared = set() if first is None else {first}
        # Files may fill half of what is left after a pruning, so that the recent tail has the other half.
        room = size_of(history) if budget.limit is None else max(1, budget.target // 2)

        for index in self._files(history, budget.touches):
            room -= history[index].size

            if room < 0:
                break

            spared.add(index)

        return spared

    def _files(self, history: Sequence[Group], touches: Mapping[str, str]) -> Iterator[int]:
        """The groups with the newest result for each of the last files, newest first."""
        seen: set[str] = set()

        for index in range(len(history) - 1, -1, -1):
            fresh = {file for file in _touched(history[index], touches) if file not in seen}

            if fresh and len(seen) < self.keep_files:
                seen |= fresh
                yield index


def _touched(group: Group, touches: Mapping[str, str]) -> Iterator[str]:
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
