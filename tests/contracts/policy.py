"""The contract of every history policy: derive a class and provide a `policy`."""

from __future__ import annotations

from hypothesis import given

from crew.history import History
from crew.history.eviction import group_entries
from crew.interfaces import HistoryBudget, HistoryEntry, Policy, policy_options
from crew.message_rules import validate
from tests.support.strategies import Growth, budgets, growths


class PolicyContract:
    """A policy is pure, decides on whole groups, and no decision breaks an invariant."""

    policy: Policy

    def budget(self, limit: int, target: int) -> HistoryBudget:
        """The budget that an executor gives this policy."""
        return HistoryBudget(limit=limit, prune_to=target, eager=policy_options(self.policy).eager)

    @given(growths(), budgets())
    def test_decision_is_an_ordered_partition(self, growth: Growth, size: tuple[int, int]) -> None:
        """Every group is kept or evicted, none twice, none added, in order; the same each time."""
        everything = [*growth.before, growth.goal, *(m for step in growth.steps for m in step)]
        entries = tuple(HistoryEntry(message=m, position=i, tokens=3) for i, m in enumerate(everything))
        groups = group_entries(entries, growth.goal.id)
        budget = self.budget(*size)
        decision = self.policy.prune(groups, budget)
        kept, evicted = ([g.entries[0].position for g in part] for part in (decision.kept, decision.evicted))
        assert sorted(kept + evicted) == [g.entries[0].position for g in groups]
        assert kept == sorted(kept)
        assert self.policy.prune(groups, budget) == decision
        assert group_entries(entries, growth.goal.id) == groups

    @given(growths(), budgets(least=12))
    def test_history_with_this_policy_keeps_the_invariants(self, growth: Growth, size: tuple[int, int]) -> None:
        """Bounded, valid, with the goal, after every step."""
        budget = self.budget(*size)
        messages = [*growth.before, growth.goal, *(m for step in growth.steps for m in step)]
        first = len(growth.before) + 1
        history = History(goal=growth.goal.id)
        entries = [HistoryEntry(message=m, position=i, tokens=3) for i, m in enumerate(messages)]
        history, _ = history.append(*entries[:first], policy=self.policy, budget=budget)

        for entry in entries[first:]:
            history, _ = history.append(entry, policy=self.policy, budget=budget)
            assert budget.limit is None or history.size <= budget.limit
            assert growth.goal in history.messages
            assert history.messages[-1] is entry.message

            if entry.message.role in ("user", "tool"):
                assert validate(history.messages) == []

    def test_policy_has_a_name(self) -> None:
        """Configuration and events use it."""
        assert self.policy.name
