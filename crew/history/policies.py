"""The policies that decide what of a history stays: by name in configuration, as classes in Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from crew.doors import Budget, Group, Policy, Pruned
from crew.errors import DefinitionError, nearest
from crew.history.legal import evict


@dataclass(frozen=True, slots=True, kw_only=True)
class Rolling:
    """Oldest first, at a legal boundary, down to the target in one block, so that the front then holds still."""

    limit: int = 50
    name: str = "rolling"

    def prune(self, history: Sequence[Group], budget: Budget) -> Pruned:
        """Nothing while the limit holds; else everything above the target."""
        size = sum(g.size for g in history)

        if budget.limit is None or size <= budget.limit:
            return Pruned(kept=tuple(history))

        gone = evict(history, set(), target=budget.target, limit=budget.limit)
        return Pruned(
            kept=tuple(g for i, g in enumerate(history) if i not in gone),
            evicted=tuple(g for i, g in enumerate(history) if i in gone),
            reason=f"{size} messages are more than the limit of {budget.limit}",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Unbounded:
    """Keeps everything, for ever: the run grows slower and dearer with each step, and breaks at the model's window."""

    limit: None = None
    name: str = "unbounded"

    def prune(self, history: Sequence[Group], budget: Budget) -> Pruned:
        """Nothing."""
        return Pruned(kept=tuple(history))


POLICIES: dict[str, Callable[..., Policy]] = {"rolling": Rolling, "unbounded": Unbounded}


def policy_named(name: str, **options: Any) -> Policy:
    """The policy of this name, with its defaults or these options."""
    if name not in POLICIES:
        raise DefinitionError("History policy", f"there is no policy {name!r}. {nearest(name, POLICIES)}")

    try:
        return POLICIES[name](**options)
    except TypeError as error:
        raise DefinitionError(f"History policy {name!r}", f"{error}") from error
