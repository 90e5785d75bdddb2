"""Leaves the text of old tool results out, and keeps the calls: free, and most of what a summary would save."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from crew.doors import Budget, Group, Pruned
from crew.errors import DefinitionError
from crew.messages import OMITTED, ToolMessage, weight


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskToolResults:
    """Results older than the newest `keep_recent` read `[Omitted]`; 0 keeps all.

    In batches: once twice as many are readable, so that the front of the requests holds still in between.
    """

    keep_recent: int = 10
    name: str = "mask_tool_results"
    stage: Literal["view"] = "view"

    def __post_init__(self) -> None:
        if not isinstance(self.keep_recent, int) or isinstance(self.keep_recent, bool) or self.keep_recent < 0:
            raise DefinitionError(
                "MaskToolResults", f"keep_recent must be 0 or a positive integer, not {self.keep_recent!r}"
            )

    def prune(self, history: Sequence[Group], budget: Budget) -> Pruned:
        """Nothing evicted; the oldest readable results masked, down to `keep_recent`."""
        readable = [
            (entry.message, g.mandatory)
            for g in history
            for entry in g.entries
            if isinstance(entry.message, ToolMessage) and any(r.text != OMITTED for r in entry.message.results)
        ]
        left = sum(weight(message) for message, _ in readable)

        if not self.keep_recent or left < 2 * self.keep_recent:
            return Pruned(kept=tuple(history))

        older: list[ToolMessage] = []

        while not readable[0][1] and left - weight(readable[0][0]) >= self.keep_recent:
            older.append(readable.pop(0)[0])
            left -= weight(older[-1])

        reason = f"more than {self.keep_recent} tool results can be read"
        return Pruned(kept=tuple(history), masked=tuple(message.id for message in older), reason=reason)
