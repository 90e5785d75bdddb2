"""The bounded history that all agents of a crew share; every append prunes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from crew.errors import ContextOverflow
from crew.history.eviction import (
    call_policy,
    enforce_bounds,
    evict,
    group_entries,
    groups_size,
    prepare_newest_group,
    protect,
    prune_decision,
)
from crew.interfaces import HistoryBudget, HistoryEntry, MessageGroup, Policy, PruneDecision
from crew.messages import Message, SummaryMessage, ToolMessage, message_size


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """An immutable history; `append` returns a new one within the budget's limit.

    `size` counts messages, a tool message one for each result. `goal` is the id of this run's input message. The goal,
    system messages and the newest group are never evicted.
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
        """Append and prune once if the limit is exceeded or the policy is eager; None: nothing was evicted."""
        grown = self._grow(entries)
        exceeded = budget.limit is not None and grown.size > budget.limit

        if not exceeded and not budget.eager:
            if self.entries and entries and not isinstance(entries[0].message, ToolMessage):
                prepare_newest_group(self.entries)

            return grown, None

        groups = group_entries(grown.entries, self.goal)

        if budget.limit is not None:
            _check_mandatory_fits(groups, budget.limit)

        decision = enforce_bounds(groups, call_policy(policy, groups, budget), budget.limit)
        return (grown._keep(decision), decision) if decision.evicted else (grown, None)

    def append_oldest_first(
        self, *entries: HistoryEntry, budget: HistoryBudget, summarizes: bool
    ) -> tuple[History, PruneDecision | None]:
        """Append where the policy failed: the oldest groups leave. `summarizes`: a summary has to cover them."""
        grown = self._grow(entries)

        if budget.limit is None or grown.size <= budget.limit:
            return grown, None

        groups = group_entries(grown.entries, self.goal)
        gone = evict(groups, target=budget.prune_to, limit=budget.limit)
        reason = f"{grown.size} messages are more than the limit of {budget.limit}, and the policy failed"
        decision = prune_decision(groups, gone, reason, gone if summarizes else ())
        decision = enforce_bounds(groups, decision, budget.limit)
        return grown._keep(decision), decision

    def _grow(self, entries: tuple[HistoryEntry, ...]) -> History:
        size = self.size + sum(message_size(entry.message) for entry in entries)
        return History(entries=self.entries + entries, size=size, goal=self.goal)

    def insert_summary(
        self, *summaries: HistoryEntry, budget: HistoryBudget
    ) -> tuple[History, PruneDecision | None] | None:
        """Replace the messages that summaries cover by the summaries, each at its position; None if none of them fits.

        Other groups are evicted where the summaries need their space; of many summaries, the newest stay.
        """
        messages = [entry.message for entry in summaries]
        covered = {m.id for m in messages}.union(*(m.covers for m in messages if isinstance(m, SummaryMessage)))
        rest = [entry for entry in self.entries if entry.message.id not in covered]
        entries = tuple(sorted((*rest, *summaries), key=lambda entry: entry.position))
        grown = replace(self, entries=entries, size=sum(message_size(entry.message) for entry in entries))

        if budget.limit is None or grown.size <= budget.limit:
            return grown, None

        groups = group_entries(entries, self.goal)
        space = budget.limit - sum(g.size for g in groups if g.mandatory)
        new = {entry.message.id for entry in summaries}
        inserted = [i for i, g in enumerate(groups) if g.entries[0].message.id in new and not g.mandatory]

        if space < 1:
            return None

        groups = protect(groups, inserted[-space:])
        reason = f"{grown.size} messages with the new summary are more than the limit of {budget.limit}"
        decision = enforce_bounds(groups, PruneDecision(kept=groups, reason=reason), budget.limit)
        return grown._keep(decision), decision

    def _keep(self, decision: PruneDecision) -> History:
        entries = tuple([entry for g in decision.kept for entry in g.entries])
        return replace(self, entries=entries, size=groups_size(decision.kept))

    def append_final(
        self, reply: HistoryEntry, *, policy: Policy, budget: HistoryBudget
    ) -> tuple[History, PruneDecision | None]:
        """Append the reply that ends the run; it never overflows."""
        return self.before_final(reply, budget).append(reply, policy=policy, budget=budget)

    def before_final(self, reply: HistoryEntry, budget: HistoryBudget) -> History:
        """This history for the reply that ends the run: if the goal does not fit beside it, the goal may be evicted."""
        if budget.limit is None or self.size + message_size(reply.message) <= budget.limit:
            return self

        groups = group_entries((*self.entries, reply), self.goal)
        mandatory = sum(g.size for g in groups if g.mandatory)
        return self if mandatory <= budget.limit else replace(self, goal="")


def _check_mandatory_fits(groups: Sequence[MessageGroup], limit: int) -> None:
    mandatory = [g for g in groups if g.mandatory]
    size = sum(g.size for g in mandatory)

    if size > limit:
        raise ContextOverflow(
            f"Goal, system messages and newest messages together are {size} messages, more than the limit of {limit}. "
            "Raise max_messages_per_request, or pass fewer system messages.",
            limit=limit,
            items=[(f"{g.kind} {g.entries[0].message.id!r}", g.size) for g in mandatory],
        )
