"""The bounded working set that a crew's agents share: `append`, then prune, in one place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from crew.errors import ContextOverflow
from crew.history.eviction import enforce_bounds, group_entries, protect
from crew.interfaces import HistoryBudget, HistoryEntry, MessageGroup, Policy, PruneDecision
from crew.messages import Message, SummaryMessage, message_size


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """A value: `append` returns a new one, which never holds more than the budget's limit.

    `goal` is the id of the message that this run shall answer; with system messages and the newest group it is
    never evicted.
    """

    entries: tuple[HistoryEntry, ...] = ()
    size: int = 0
    goal: str = ""

    @property
    def messages(self) -> tuple[Message, ...]:
        return tuple(entry.message for entry in self.entries)

    def append(
        self, *entries: HistoryEntry, policy: Policy, budget: HistoryBudget
    ) -> tuple[History, PruneDecision | None]:
        """This history with these at its end, pruned once if it outgrew its limit, and what the pruning did."""
        size = self.size + sum(message_size(entry.message) for entry in entries)
        grown = History(entries=self.entries + entries, size=size, goal=self.goal)
        over = budget.limit is not None and size > budget.limit

        if not over and not budget.eager:
            return grown, None

        groups = group_entries(grown.entries, self.goal)

        if budget.limit is not None:
            _check_mandatory_fits(groups, budget.limit)

        pruned = enforce_bounds(groups, policy.prune(groups, budget), budget.limit)
        return (grown._keep(pruned), pruned) if pruned.evicted else (grown, None)

    def insert_summary(
        self, summary: HistoryEntry, *, budget: HistoryBudget
    ) -> tuple[History, PruneDecision | None] | None:
        """This history with a summary at its place, instead of what it covers; None where there is no room for it.

        Where it takes the last room from something older, that leaves.
        """
        covered = {summary.message.id, *(summary.message.covers if isinstance(summary.message, SummaryMessage) else ())}
        rest = [entry for entry in self.entries if entry.message.id not in covered]
        place = next((i for i, entry in enumerate(rest) if entry.position > summary.position), len(rest))
        entries = (*rest[:place], summary, *rest[place:])
        grown = replace(self, entries=entries, size=sum(message_size(entry.message) for entry in entries))

        if budget.limit is None or grown.size <= budget.limit:
            return grown, None

        groups = group_entries(entries, self.goal)
        groups = protect(groups, {i for i, g in enumerate(groups) if g.entries[0] is summary})
        reason = f"a summary makes it {grown.size} messages, more than the limit of {budget.limit}"
        pruned = enforce_bounds(groups, PruneDecision(kept=groups, reason=reason), budget.limit)
        fits = sum(g.size for g in pruned.kept) <= budget.limit
        return (grown._keep(pruned), pruned) if fits else None

    def _keep(self, pruned: PruneDecision) -> History:
        kept = tuple(entry for g in pruned.kept for entry in g.entries)
        return replace(self, entries=kept, size=sum(g.size for g in pruned.kept))

    def append_final(
        self, reply: HistoryEntry, *, policy: Policy, budget: HistoryBudget
    ) -> tuple[History, PruneDecision | None]:
        """Append the reply that ends the run: where goal and reply don't both fit, it replaces the goal."""
        history = self

        if budget.limit is not None and self.size + message_size(reply.message) > budget.limit:
            groups = group_entries((*self.entries, reply), self.goal)
            mandatory = sum(g.size for g in groups if g.mandatory)
            history = self if mandatory <= budget.limit else replace(self, goal="")

        return history.append(reply, policy=policy, budget=budget)


def _check_mandatory_fits(groups: Sequence[MessageGroup], limit: int) -> None:
    mandatory = [g for g in groups if g.mandatory]
    size = sum(g.size for g in mandatory)

    if size > limit:
        raise ContextOverflow(
            f"The part of the history that must stay holds {size} messages, more than the limit of {limit}: "
            "raise max_messages_per_request, or hand in fewer system messages.",
            limit=limit,
            items=[(f"{g.kind} {g.entries[0].message.id!r}", g.size) for g in mandatory],
        )
