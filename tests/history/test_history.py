"""The bounded history: append, then prune, with every invariant after every append."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crew.errors import ContextOverflow
from crew.history import History
from crew.history.eviction import enforce_bounds, group_entries
from crew.history.policies import Rolling, Unbounded
from crew.interfaces import HistoryBudget, HistoryEntry, MessageGroup, Policy, PruneDecision
from crew.message_rules import PROFILES, validate
from crew.messages import AssistantMessage, Message, SystemMessage, ToolMessage, UserMessage, message_size
from tests.support.messages import total_size
from tests.support.strategies import Growth, MessageFactory, budgets, growths

ADDED_TO_A_REPLY = ("then", "route", "answer", "output", "branch")


def mandatory(messages: Sequence[Message], goal: str) -> set[int]:
    """Invariant 3, computed independently: goal, system messages (identical ones once), newest group."""
    must = {i for i, m in enumerate(messages) if m.id == goal}
    texts: set[str] = set()

    for index, message in enumerate(messages):
        if isinstance(message, SystemMessage) and message.text not in texts:
            texts.add(message.text)
            must.add(index)

    last = len(messages) - 1
    newest = messages[last]
    must.add(last)

    if isinstance(newest, ToolMessage):
        must.add(last - 1)

    if isinstance(newest, UserMessage) and newest.origin in ADDED_TO_A_REPLY:
        before = messages[last - 1]

        if isinstance(before, AssistantMessage) and not before.calls:
            must.add(last - 1)

    return must


@dataclass
class CheckedHistory:
    """A history that grows and is checked after every append."""

    limit: int | None
    target: int
    policy: Policy = field(default_factory=Rolling)
    history: History = field(default_factory=History)
    everything: list[Message] = field(default_factory=list)

    def append(self, *messages: Message) -> PruneDecision | None:
        """Append, and check the invariants."""
        before = self.history
        copy = before.entries
        entries = [HistoryEntry(message=m, position=len(self.everything) + i, tokens=1) for i, m in enumerate(messages)]
        self.everything.extend(messages)
        wanted = [*before.messages, *messages]
        least = sum(message_size(wanted[i]) for i in mandatory(wanted, before.goal))
        budget = HistoryBudget(limit=self.limit, prune_to=self.target)

        if self.limit is not None and least > self.limit:
            with pytest.raises(ContextOverflow) as caught:
                before.append(*entries, policy=self.policy, budget=budget)

            assert sum(size for _, size in caught.value.items) == least
            assert caught.value.limit == self.limit
            raise MandatoryTooLarge

        self.history, pruned = before.append(*entries, policy=self.policy, budget=budget)
        self._check(before, copy, wanted, pruned)
        return pruned

    def _check(
        self, before: History, copy: tuple[HistoryEntry, ...], wanted: list[Message], pruned: PruneDecision | None
    ) -> None:
        now = list(self.history.messages)
        assert self.history.size == total_size(now)
        assert self.limit is None or self.history.size <= self.limit
        assert before.entries == copy
        assert {wanted[i].id for i in mandatory(wanted, self.history.goal)} <= {m.id for m in now}
        order = [m.id for m in self.everything]
        assert [m.id for m in now] == [id for id in order if id in {m.id for m in now}]
        assert all(self.everything[e.position] is e.message for e in self.history.entries)

        if pruned is None:
            assert now == wanted
        else:
            both = {e.message.id for g in (*pruned.kept, *pruned.evicted) for e in g.entries}
            assert both == {m.id for m in wanted}


class MandatoryTooLarge(Exception):
    """The mandatory part exceeds the limit; nothing can be appended."""


def grow(growth: Growth, watched: CheckedHistory) -> Iterator[tuple[History, bool]]:
    """After each step: the history of the next request, and whether it was pruned."""
    watched.history = History(goal=growth.goal.id)

    try:
        began = watched.append(*growth.before, growth.goal)
        yield watched.history, began is not None

        for step in growth.steps:
            pruned = [watched.append(message) for message in step]
            yield watched.history, any(pruned)
    except MandatoryTooLarge:
        return


@given(growths(), budgets())
def test_invariants_hold_after_every_append(growth: Growth, budget: tuple[int, int]) -> None:
    """Invariants 1, 3, 4: bounded, or an overflow exactly if the mandatory part is larger; goal, newest messages and
    order stay."""
    watched = CheckedHistory(*budget)

    for history, _ in grow(growth, watched):
        assert growth.goal in history.messages


@given(growths(), budgets())
def test_every_request_is_valid_on_every_profile(growth: Growth, budget: tuple[int, int]) -> None:
    """Invariant 2: the history is valid before every request."""
    for history, _ in grow(growth, CheckedHistory(*budget)):
        for profile in PROFILES.values():
            assert validate(history.messages, profile) == []


@given(growths(), budgets())
def test_prefix_is_stable_between_two_prunings(growth: Growth, budget: tuple[int, int]) -> None:
    """Invariant 5: without a pruning, the previous request is the prefix of the next one."""
    before: tuple[Message, ...] = ()

    for history, pruned in grow(growth, CheckedHistory(*budget)):
        if before and not pruned:
            assert all(a is b for a, b in zip(before, history.messages, strict=False))
            assert len(history.messages) > len(before)

        before = history.messages


@given(growths(), budgets())
def test_pruning_cuts_to_its_target_if_possible(growth: Growth, budget: tuple[int, int]) -> None:
    """Invariant 5: above the target only mandatory messages and the openers of kept turns remain."""
    watched = CheckedHistory(*budget)

    for history, pruned in grow(growth, watched):
        groups = group_entries(history.entries, history.goal)

        if pruned and history.size > budget[1]:
            newest = groups[-1].size + (groups[-2].size if len(groups) > 1 else 0)
            openers = sum(1 for g in groups if g.opens_turn and not g.mandatory)
            must = sum(g.size for g in groups if g.mandatory)
            assert history.size <= max(must, budget[1]) + openers + newest


@given(growths(), budgets())
def test_pruning_is_idempotent(growth: Growth, budget: tuple[int, int]) -> None:
    """A second pruning changes nothing, and decisions are deterministic."""
    everything = [*growth.before, growth.goal, *(m for step in growth.steps for m in step)]
    entries = tuple(HistoryEntry(message=m, position=i, tokens=1) for i, m in enumerate(everything))
    groups = group_entries(entries, growth.goal.id)
    limit, target = budget
    policy = Rolling()

    if sum(g.size for g in groups if g.mandatory) > limit:
        return

    once = enforce_bounds(groups, policy.prune(groups, HistoryBudget(limit=limit, prune_to=target)), limit)
    assert enforce_bounds(groups, policy.prune(groups, HistoryBudget(limit=limit, prune_to=target)), limit) == once
    again = enforce_bounds(once.kept, policy.prune(once.kept, HistoryBudget(limit=limit, prune_to=target)), limit)
    assert again.kept == once.kept
    assert again.evicted == ()


@dataclass(frozen=True)
class RandomPolicy:
    """A policy that decides at random."""

    seed: int
    name: str = "careless"

    def prune(self, history: Sequence[MessageGroup], budget: HistoryBudget) -> PruneDecision:
        random = MessageFactory(self.seed).random
        kept = tuple(g for g in history if random.random() < 0.5)
        return PruneDecision(kept=kept, evicted=tuple(g for g in history if g not in kept), reason="chance")


@given(growths(), budgets(), st.integers(0, 2**16))
def test_random_policy_cannot_break_an_invariant(growth: Growth, budget: tuple[int, int], seed: int) -> None:
    """Bound, goal, newest group, order and validity hold for any decision."""
    for history, _ in grow(growth, CheckedHistory(*budget, policy=RandomPolicy(seed))):
        assert validate(history.messages) == []


@given(growths())
def test_unbounded_keeps_everything(growth: Growth) -> None:
    """Without a limit no message leaves."""
    watched = CheckedHistory(None, 0, policy=Unbounded())

    for history, pruned in grow(growth, watched):
        assert not pruned
        assert list(history.messages) == watched.everything


@given(growths(), budgets())
def test_final_reply_never_overflows(growth: Growth, budget: tuple[int, int]) -> None:
    """Invariant 3: if goal and reply don't both fit beside the system messages, the reply replaces the goal."""
    watched = CheckedHistory(*budget)
    limit = budget[0]

    for history, _ in grow(growth, watched):
        position = history.entries[-1].position + 1
        reply = HistoryEntry(message=MessageFactory(prefix="end").reply(), position=position)
        ended, _ = history.append_final(reply, policy=Rolling(), budget=HistoryBudget(limit=limit, prune_to=budget[1]))
        systems = {m.text for m in history.messages if isinstance(m, SystemMessage)}
        assert ended.size <= limit
        assert ended.messages[-1] is reply.message
        assert (growth.goal in ended.messages) == (len(systems) + 2 <= limit)


def test_final_reply_is_appended_without_a_limit() -> None:
    """`conclude` without a limit is an append."""
    maker = MessageFactory()
    goal, reply = maker.user(), maker.reply()
    history, _ = History(goal=goal.id).append(
        HistoryEntry(message=goal, position=0), policy=Unbounded(), budget=HistoryBudget(limit=None)
    )
    ended, pruned = history.append_final(
        HistoryEntry(message=reply, position=1), policy=Unbounded(), budget=HistoryBudget(limit=None)
    )
    assert ended.messages == (goal, reply)
    assert pruned is None


def test_empty_history_has_no_groups() -> None:
    """No messages, no groups."""
    assert group_entries((), "") == ()
    assert History().messages == ()


def test_cut_inside_a_turn_keeps_its_user_message() -> None:
    """It stays until the whole turn is evicted."""
    maker = MessageFactory()
    first = [maker.user(), *maker.exchange(1), *maker.exchange(1), *maker.exchange(1), maker.reply()]
    goal = maker.user()
    watched = CheckedHistory(8, 6)
    watched.history = History(goal=goal.id)
    watched.append(*first, goal)
    assert watched.history.messages == (first[0], *first[5:], goal)


def test_user_message_of_the_newest_turn_leaves_last() -> None:
    """At a tiny limit the answer to a pause is evicted for the calls after it; the goal stays."""
    maker = MessageFactory()
    goal, asked, answer, exchange = maker.user(), maker.reply(), maker.user("answer"), maker.exchange(1)
    watched = CheckedHistory(3, 1)
    watched.history = History(goal=goal.id)

    for message in (goal, asked, answer, *exchange):
        watched.append(message)

    assert watched.history.messages == (goal, *exchange)


def test_identical_system_messages_are_kept_once() -> None:
    """The second of two identical messages may leave."""
    maker = MessageFactory()
    rules = [SystemMessage("rule", id=f"s{n}") for n in range(3)]
    goal = maker.user()
    watched = CheckedHistory(2, 1)
    watched.history = History(goal=goal.id)
    watched.append(*rules, goal)
    assert watched.history.messages == (rules[0], goal)


@dataclass(frozen=True)
class KeepOnly:
    """A policy that keeps the given messages."""

    ids: tuple[str, ...]
    name: str = "only"

    def prune(self, history: Sequence[MessageGroup], budget: HistoryBudget) -> PruneDecision:
        return PruneDecision(kept=tuple(g for g in history if g.entries[0].message.id in self.ids), reason="fixed")


@pytest.mark.parametrize(("limit", "opener_back"), [(8, True), (6, False)])
def test_turn_without_its_user_message_is_repaired(limit: int, opener_back: bool) -> None:
    """The user message is kept too if it fits; else the turn is evicted."""
    maker = MessageFactory()
    first = [maker.user(), *maker.exchange(4), *maker.exchange(1)]
    goal = maker.user()
    watched = CheckedHistory(limit, 1, policy=KeepOnly((first[1].id,)))
    watched.history = History(goal=goal.id)
    watched.append(*first, goal)
    kept = watched.history.messages
    assert validate(kept) == []
    assert kept == ((*first[:3], goal) if opener_back else (goal,))


@dataclass
class RecordingPolicy:
    """Prunes as `Rolling` does, and keeps the groups that it got."""

    name: str = "recording"
    seen: list[Sequence[MessageGroup]] = field(default_factory=list)

    def prune(self, history: Sequence[MessageGroup], budget: HistoryBudget) -> PruneDecision:
        self.seen.append(history)
        return Rolling().prune(history, budget)


def test_groups_that_stay_are_not_built_again_by_the_next_pruning() -> None:
    """At limit 1,000, building all groups again took most of a pruning."""
    policy, history = RecordingPolicy(), History(goal="u0")

    for number in range(60):
        for message in (UserMessage("q", id=f"u{number}"), AssistantMessage("a", id=f"a{number}")):
            entry = HistoryEntry(message=message, position=2 * number, tokens=5)
            history, _ = history.append(entry, policy=policy, budget=HistoryBudget(limit=50, prune_to=25))

    first, second = policy.seen[0], policy.seen[1]
    stayed = {id(group) for group in first if not group.mandatory}.intersection(map(id, second))
    assert len(stayed) >= 20


def test_a_group_has_the_tokens_of_its_entries_after_a_correction() -> None:
    """A bill corrects the tokens of entries; groups that were built before it are built again."""
    factory = MessageFactory()
    reply, results = factory.exchange(1)
    entries = tuple(HistoryEntry(message=m, position=i, tokens=5) for i, m in enumerate([reply, results]))
    corrected = (entries[0], replace(entries[1], tokens=90))

    assert [group.tokens for group in group_entries(entries, "")] == [10]
    assert [group.tokens for group in group_entries(corrected, "")] == [95]
    assert [group.tokens for group in group_entries(entries[:1], "")] == [5]
