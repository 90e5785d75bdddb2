"""`checkpoint` and `summarize`: policies that replace older messages by summaries."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from crew.errors import DefinitionError
from crew.history.eviction import evict, groups_size, is_summary, protect, prune_decision
from crew.interfaces import HistoryBudget, MessageGroup, PolicyOptions, PruneDecision, Summarizer
from crew.messages import AssistantMessage, UserMessage
from crew.settings import LimitOrDefault, NonNegativeInt, PositiveInt, PositiveRatio, check_settings

MIN_BLOCK = 10
"""The fewest messages that a further checkpoint covers."""


def check_below_threshold(policy: str, target: float, threshold: float) -> None:
    """Raise unless a pruning cuts below the threshold that starts it."""
    if target >= threshold:
        raise DefinitionError(
            f"History policy {policy!r}", f"target={target} must be below threshold={threshold} (shares of the window)"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """At `trigger_at` messages, summarizes all but the newest `keep_recent`; again after every 10 further messages.

    Mandatory groups count as recent. All checkpoints stay, in order; the oldest are evicted once they take half of the
    limit.
    """

    trigger_at: PositiveInt = 100
    keep_recent: PositiveInt = 10
    summarizer: Summarizer = None
    name: str = "checkpoint"

    def __post_init__(self) -> None:
        check_settings(self, "History policy 'checkpoint'")

        if self.keep_recent >= self.trigger_at:
            raise DefinitionError(
                "History policy 'checkpoint'",
                f"keep_recent={self.keep_recent} must be below trigger_at={self.trigger_at}",
            )

    @property
    def options(self) -> PolicyOptions:
        return PolicyOptions(
            limit=self.trigger_at, eager=True, summarizes=True, summarizer=self.summarizer, keeps_summaries=True
        )

    def prune(self, history: Sequence[MessageGroup], budget: HistoryBudget) -> PruneDecision:
        """Evict and summarize all but the recent messages, once there are enough of them."""
        checkpoints = [i for i, g in enumerate(history) if is_summary(g)]
        size = groups_size(history)
        verbatim = size - len(checkpoints)
        full = budget.limit is not None and size > budget.limit

        if not full and verbatim < (self.keep_recent + MIN_BLOCK if checkpoints else self.trigger_at):
            return PruneDecision(kept=tuple(history))

        gone = evict(protect(history, checkpoints), target=len(checkpoints) + self.keep_recent, limit=size)

        # A smaller block is not worth a request, and without a summary it would only be missing.
        if not gone or (sum(history[i].size for i in gone) < MIN_BLOCK and not full):
            return PruneDecision(kept=tuple(history))

        most = verbatim if budget.limit is None else max(1, budget.limit // 2)
        retired = checkpoints[: max(0, len(checkpoints) + 1 - most)]
        cause = f"{verbatim} messages since the last checkpoint" if checkpoints else f"{size} messages"
        return prune_decision(history, gone.union(retired), f"{cause}: checkpoint", gone)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summarize:
    """At `threshold` of the window, or at the limit, replaces the older messages by one summary.

    It keeps the first user message, the goal, the recent tail, and the newest results for the last `keep_files` files
    that tools accessed (`@tool(touches=…)`). A new summary covers the previous one. By default the limit is 50
    messages; `limit=None`: no limit on messages.
    """

    threshold: PositiveRatio = 0.8
    target: PositiveRatio = 0.5
    keep_files: NonNegativeInt = 10
    limit: LimitOrDefault = "default"
    prune_to: PositiveInt | None = None
    window: PositiveInt | None = None
    summarizer: Summarizer = None
    name: str = "summarize"

    def __post_init__(self) -> None:
        check_settings(self, "History policy 'summarize'")
        check_below_threshold(self.name, self.target, self.threshold)

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
        """Evict and summarize the older messages, down to `target` of the window or to `budget.prune_to`."""
        size, tokens = groups_size(history), budget.overhead_tokens + sum(g.tokens for g in history)
        window = self.window if self.window is not None else budget.window
        too_many = budget.limit is not None and size > budget.limit
        too_long = window is not None and tokens >= self.threshold * window

        if not too_many and not too_long:
            return PruneDecision(kept=tuple(history))

        summaries = {i for i, g in enumerate(history) if is_summary(g)}
        protected = protect(history, summaries | self._protected(history, budget))
        limit = size if budget.limit is None else budget.limit - 1
        target = min(limit, budget.prune_to if too_many else size)
        gone = evict(protected, target=target, limit=limit)
        reason = f"{size} messages are more than the limit of {budget.limit}"

        if too_long and window is not None:
            gone = self._evict_tokens(protected, gone, self.target * window - budget.overhead_tokens)
            # The first message and the files stay only while the request is below the threshold with them.
            unprotected = protect(history, summaries)
            gone = self._evict_tokens(unprotected, gone, self.threshold * window - budget.overhead_tokens)
            reason = f"about {tokens} tokens reach {self.threshold:.0%} of the window of {window}"

        return prune_decision(history, gone, reason, gone | summaries)

    def _evict_tokens(self, history: Sequence[MessageGroup], gone: set[int], target: float) -> set[int]:
        return evict(history, gone, target=target, limit=math.inf, by="tokens")

    def _protected(self, history: Sequence[MessageGroup], budget: HistoryBudget) -> set[int]:
        """The first user message, and the newest results for recent files."""
        first = next((i for i, g in enumerate(history) if isinstance(g.entries[0].message, UserMessage)), None)
        protected = set() if first is None else {first}
        # Files take at most half of the space after a pruning, so that the recent tail has the other half.
        space = groups_size(history) if budget.limit is None else max(1, budget.prune_to // 2)

        for index in self._recent_files(history, budget.touches):
            space -= history[index].size

            if space < 0:
                break

            protected.add(index)

        return protected

    def _recent_files(self, history: Sequence[MessageGroup], touches: Mapping[str, str]) -> Iterator[int]:
        """The indexes of the groups with the newest result for each of the last files, newest first."""
        files: set[str] = set()

        for index in range(len(history) - 1, -1, -1):
            new = {file for file in _touched_resources(history[index], touches) if file not in files}

            if new and len(files) < self.keep_files:
                files |= new
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
