"""`chain`: several policies, one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from crew.errors import DefinitionError
from crew.history.eviction import Summarizer, enforce_bounds
from crew.history.policies.rolling import Rolling
from crew.interfaces import HistoryBudget, MessageGroup, Policy, PruneDecision


def check_policy(spec: Any, instead: str) -> Policy:
    """This, if it is one; else the error says what to give instead."""
    if isinstance(spec, type) or not isinstance(getattr(spec, "name", None), str) or not hasattr(spec, "prune"):
        text = f"a policy has a name and a method 'prune'; give {instead}, not {spec!r}"
        raise DefinitionError("History policy", text)

    policy: Policy = spec
    return policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Each policy sees what the one before it left. Its bound is the smallest of theirs."""

    policies: tuple[Policy, ...]
    name: str = "chain"

    def __post_init__(self) -> None:
        if not self.policies:
            raise DefinitionError("History policy 'chain'", "it has no members; give at least one policy")

        for member in self.policies:
            check_policy(member, "one such as Rolling()")

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

    def prune(self, history: Sequence[MessageGroup], budget: HistoryBudget) -> PruneDecision:
        """What all of them together decide."""
        total = PruneDecision(kept=tuple(history))

        for policy in self.policies:
            # A policy decides by its own bound where that is smaller than the history's.
            one = enforce_bounds(
                total.kept, policy.prune(total.kept, replace(budget, **_own_budget(policy, budget))), None
            )
            total = PruneDecision(
                kept=one.kept,
                evicted=(*total.evicted, *one.evicted),
                masked=(*total.masked, *one.masked),
                to_summarize=(*total.to_summarize, *one.to_summarize),
                reason="; ".join(filter(None, (total.reason, one.reason))),
            )

        return total


def _own_budget(policy: Policy, budget: HistoryBudget) -> dict[str, Any]:
    limit = getattr(policy, "limit", None)

    if limit is None or budget.limit is None or limit >= budget.limit:
        return {}

    return {"limit": limit, "prune_to": min(budget.prune_to, limit)}


def chain(*policies: Policy) -> Chain:
    """Several policies, applied in this order."""
    return Chain(policies=policies)


def chain_members(policy: Policy) -> Iterator[Policy]:
    """The policy itself, or where it is a chain those that it is made of."""
    chained = getattr(policy, "policies", None)

    if chained is None:
        yield policy
        return

    for member in chained:
        yield from chain_members(member)


def split_stages(policy: Policy) -> tuple[Policy, tuple[Policy, ...]]:
    """An executor's policy as the one that bounds the shared history, and those that shape every agent's view."""
    views = tuple(member for member in chain_members(policy) if getattr(member, "stage", "history") == "view")

    if not views:
        return policy, ()

    rest = tuple(member for member in chain_members(policy) if member not in views)
    chained: Any = policy
    return (replace(chained, policies=rest) if len(rest) > 1 else rest[0] if rest else Rolling()), views
