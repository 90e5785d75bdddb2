"""Leaves the text of old tool results out, and keeps the calls: free, and most of what a summary would save."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from crew.errors import DefinitionError
from crew.history.eviction import drop
from crew.history.policies.rolling import check_thresholds
from crew.history.token_budget import DEFAULT_WINDOW
from crew.history.view import MARKER_TOKENS
from crew.interfaces import HistoryBudget, MessageGroup, PolicyOptions, PruneDecision
from crew.messages import OMITTED, ToolMessage, message_size


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskToolResults:
    """Results older than the newest `keep_recent` read `[Omitted]`; 0 keeps all.

    In batches: once twice as many are readable, so that the front of the requests holds still in between.
    """

    keep_recent: int = 10
    name: str = "mask_tool_results"

    def __post_init__(self) -> None:
        if not isinstance(self.keep_recent, int) or isinstance(self.keep_recent, bool) or self.keep_recent < 0:
            raise DefinitionError(
                "MaskToolResults", f"keep_recent must be 0 or a positive integer, not {self.keep_recent!r}"
            )

    @property
    def options(self) -> PolicyOptions:
        return PolicyOptions(stage="view")

    def prune(self, history: Sequence[MessageGroup], budget: HistoryBudget) -> PruneDecision:
        """Nothing evicted; the oldest readable results masked, down to `keep_recent`."""
        readable = [
            (entry.message, g.mandatory)
            for g in history
            for entry in g.entries
            if isinstance(entry.message, ToolMessage) and any(r.text != OMITTED for r in entry.message.results)
        ]
        left = sum(message_size(message) for message, _ in readable)

        if not self.keep_recent or left < 2 * self.keep_recent:
            return PruneDecision(kept=tuple(history))

        older: list[ToolMessage] = []

        while not readable[0][1] and left - message_size(readable[0][0]) >= self.keep_recent:
            older.append(readable.pop(0)[0])
            left -= message_size(older[-1])

        reason = f"more than {self.keep_recent} tool results can be read"
        return PruneDecision(kept=tuple(history), masked=tuple(message.id for message in older), reason=reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncate:
    """At `threshold` of the model's window, cut to `target` of it; the first user message stays while it fits.

    Between that and the tail stands a marker with the number of messages that were left out.
    """

    threshold: float = 0.8
    target: float = 0.5
    name: str = "truncate"

    def __post_init__(self) -> None:
        check_thresholds("truncate", target=self.target, threshold=self.threshold)

    @property
    def options(self) -> PolicyOptions:
        return PolicyOptions(stage="view", threshold=self.threshold, insert_marker=True)

    def prune(self, history: Sequence[MessageGroup], budget: HistoryBudget) -> PruneDecision:
        """Nothing below the threshold; else the oldest, down to the target."""
        window = budget.window or DEFAULT_WINDOW
        used = budget.overhead_tokens + MARKER_TOKENS
        total = used + sum(g.tokens for g in history)

        if total <= self.threshold * window:
            return PruneDecision(kept=tuple(history))

        target, ceiling = self.target * window - used, self.threshold * window - used
        gone = drop(_protect_first(history), target=target, ceiling=ceiling)

        if sum(g.tokens for i, g in enumerate(history) if i not in gone) > ceiling:
            gone = drop(history, target=target, ceiling=ceiling)

        return PruneDecision(
            kept=tuple(g for i, g in enumerate(history) if i not in gone),
            evicted=tuple(g for i, g in enumerate(history) if i in gone),
            reason=f"{total} tokens are more than {self.threshold:.0%} of the window of {window}",
        )


def _protect_first(history: Sequence[MessageGroup]) -> list[MessageGroup]:
    """The history with its first user message marked as one that stays."""
    first = next((i for i, g in enumerate(history) if g.opens_turn), None)
    return [replace(g, mandatory=True) if i == first else g for i, g in enumerate(history)]
