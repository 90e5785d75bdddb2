"""`chain`: several policies, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from crew.doors import Budget, Group, Policy, Pruned
from crew.errors import DefinitionError
from crew.history.legal import settle
from crew.history.policies.verdict import Summarizer, a_policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Each policy sees what the one before it left. Its bound is the smallest of theirs."""

    policies: tuple[Policy, ...]
    name: str = "chain"

    def __post_init__(self) -> None:
        if not self.policies:
            raise DefinitionError("History policy 'chain'", "it has no members; give at least one policy")

        for member in self.policies:
            a_policy(member, "one such as Rolling()")

    @property
    def limit(self) -> int | None:
        own = [getattr(policy, "limit", 50) for policy in self.policies]
        return min((limit for limit in own if limit is not None), default=None)

    @property
    def prune_to(self) -> int | None:
        own = [getattr(policy, "prune_to", None) for policy in self.policies]
        least = min((target for target in own if target is not None), default=None)
        return least if least is None or self.limit is None else min(least, self.limit)

    @property
    def summarizes(self) -> bool:
        return any(getattr(policy, "summarizes", False) for policy in self.policies)

    @property
    def eager(self) -> bool:
        return any(getattr(policy, "eager", False) for policy in self.policies)

    @property
    def summarizer(self) -> Summarizer:
        found = (getattr(policy, "summarizer", None) for policy in self.policies)
        return next((summarizer for summarizer in found if summarizer is not None), None)

    def prune(self, history: Sequence[Group], budget: Budget) -> Pruned:
        """What all of them together decide."""
        total = Pruned(kept=tuple(history))

        for policy in self.policies:
            # A policy decides by its own bound where that is smaller than the history's.
            one = settle(total.kept, policy.prune(total.kept, replace(budget, **_own(policy, budget))), None)
            total = Pruned(
                kept=one.kept,
                evicted=(*total.evicted, *one.evicted),
                masked=(*total.masked, *one.masked),
                to_summarise=(*total.to_summarise, *one.to_summarise),
                reason="; ".join(filter(None, (total.reason, one.reason))),
            )

        return total


def _own(policy: Policy, budget: Budget) -> dict[str, Any]:
    limit = getattr(policy, "limit", None)

    if limit is None or budget.limit is None or limit >= budget.limit:
        return {}

    return {"limit": limit, "target": min(budget.target, limit)}


def chain(*policies: Policy) -> Chain:
    """Several policies, applied in this order."""
    return Chain(policies=policies)
