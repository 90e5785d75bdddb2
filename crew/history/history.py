"""The bounded working set that a crew's agents share: `append`, then prune, in one place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from crew.doors import Budget, Entry, Group, Policy, Pruned
from crew.errors import ContextOverflow
from crew.history.legal import settle, survey
from crew.messages import Message, weight


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """A value: `append` returns a new one, which never holds more than the budget's limit.

    `goal` is the id of the message that this run shall answer; with system messages and the newest group it is
    never evicted.
    """

    entries: tuple[Entry, ...] = ()
    size: int = 0
    goal: str = ""

    @property
    def messages(self) -> tuple[Message, ...]:
        return tuple(entry.message for entry in self.entries)

    def append(self, *entries: Entry, policy: Policy, budget: Budget) -> tuple[History, Pruned | None]:
        """This history with these at its end, pruned once if it outgrew its limit, and what the pruning did."""
        size = self.size + sum(weight(entry.message) for entry in entries)
        grown = replace(self, entries=self.entries + entries, size=size)

        if budget.limit is None or size <= budget.limit:
            return grown, None

        groups = survey(grown.entries, self.goal)
        _must_fit(groups, budget.limit)
        pruned = settle(groups, policy.prune(groups, budget), budget.limit)
        kept = tuple(entry for g in pruned.kept for entry in g.entries)
        return replace(grown, entries=kept, size=sum(g.size for g in pruned.kept)), pruned

    def conclude(self, reply: Entry, *, policy: Policy, budget: Budget) -> tuple[History, Pruned | None]:
        """Append the reply that ends the run: where goal and reply don't both fit, it replaces the goal."""
        groups = survey((*self.entries, reply), self.goal)
        mandatory = sum(g.size for g in groups if g.mandatory)
        fits = budget.limit is None or mandatory <= budget.limit
        return (self if fits else replace(self, goal="")).append(reply, policy=policy, budget=budget)


def _must_fit(groups: Sequence[Group], limit: int) -> None:
    mandatory = [g for g in groups if g.mandatory]
    size = sum(g.size for g in mandatory)

    if size > limit:
        raise ContextOverflow(
            f"The part of the history that must stay holds {size} messages, more than the limit of {limit}: "
            "raise max_messages_per_request, or hand in fewer system messages.",
            limit=limit,
            items=[(f"{g.kind} {g.entries[0].message.id!r}", g.size) for g in mandatory],
        )
