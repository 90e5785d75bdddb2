"""Bounds a view by tokens, and says to the model that something is missing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from crew.doors import Budget, Group, Pruned
from crew.history.fit import drop
from crew.history.gauge import DEFAULT_WINDOW
from crew.history.policies.verdict import shares
from crew.history.view import MARKER_TOKENS


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncate:
    """At `threshold` of the model's window, cut to `target` of it; the first user message stays while it fits.

    Between that and the tail stands a marker with the number of messages that were left out.
    """

    threshold: float = 0.8
    target: float = 0.5
    name: str = "truncate"
    stage: Literal["view"] = "view"
    marks: Literal[True] = True

    def __post_init__(self) -> None:
        shares("truncate", target=self.target, threshold=self.threshold)

    def prune(self, history: Sequence[Group], budget: Budget) -> Pruned:
        """Nothing below the threshold; else the oldest, down to the target."""
        window = budget.window or DEFAULT_WINDOW
        used = budget.fixed + MARKER_TOKENS
        total = used + sum(g.tokens for g in history)

        if total <= self.threshold * window:
            return Pruned(kept=tuple(history))

        target, ceiling = self.target * window - used, self.threshold * window - used
        gone = drop(_with_first(history), target=target, ceiling=ceiling)

        if sum(g.tokens for i, g in enumerate(history) if i not in gone) > ceiling:
            gone = drop(history, target=target, ceiling=ceiling)

        return Pruned(
            kept=tuple(g for i, g in enumerate(history) if i not in gone),
            evicted=tuple(g for i, g in enumerate(history) if i in gone),
            reason=f"{total} tokens are more than {self.threshold:.0%} of the window of {window}",
        )


def _with_first(history: Sequence[Group]) -> list[Group]:
    """The history with its first user message marked as one that stays."""
    first = next((i for i, g in enumerate(history) if g.opens), None)
    return [replace(g, mandatory=True) if i == first else g for i, g in enumerate(history)]
