"""What becomes of the history."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from crew.runs.events.stamp import Stamp


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryPruned(Stamp):
    """Messages left the history, or one agent's view of it, or are masked there; they stay in the transcript."""

    policy: str
    reason: str
    before: int
    after: int
    limit: int
    evicted: tuple[str, ...]
    tokens_before: int
    tokens_after: int
    where: Literal["history", "view"] = "history"
    masked: tuple[str, ...] = ()
    kind: Literal["history_pruned"] = "history_pruned"


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryRepaired(Stamp):
    """A history that came in broken was mended."""

    changes: tuple[str, ...]
    where: Literal["door", "view"] = "door"
    kind: Literal["history_repaired"] = "history_repaired"
