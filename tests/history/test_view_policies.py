"""The policies that shape views."""

from __future__ import annotations

from typing import Any

import pytest

from crew.errors import DefinitionError
from crew.history import History
from crew.history.eviction import evict, group_entries
from crew.history.handoff_filters import apply_handoff
from crew.history.policies import MaskToolResults, Rolling, Truncate, Unbounded, create_policy, split_stages
from crew.history.view import RequestView, View, hide_positions, visible_entries
from crew.interfaces import HistoryBudget, HistoryEntry
from crew.messages import AssistantMessage, ToolCall, ToolMessage, ToolResult, UserMessage


def exchange(name: str, results: int = 1, text: str = "found") -> list[Any]:
    calls = tuple(ToolCall(id=f"{name}{n}", name="read") for n in range(results))
    answers = tuple(ToolResult(call_id=call.id, text=text) for call in calls)
    return [AssistantMessage("I look.", calls=calls, id=f"c{name}"), ToolMessage(answers, id=f"r{name}")]


def history(*messages: Any, goal: str = "", tokens: int = 100) -> History:
    entries = tuple(HistoryEntry(message=m, position=i, tokens=tokens) for i, m in enumerate(messages))
    return History(entries=entries, size=len(entries), goal=goal)


def groups(made: History) -> Any:
    return group_entries(made.entries, made.goal)


TALK = history(
    UserMessage("first", id="u1"),
    *exchange("a"),
    UserMessage("goal", id="g"),
    *exchange("b"),
    *exchange("c"),
    goal="g",
)


def test_truncate_does_nothing_below_its_threshold() -> None:
    """The overhead and the marker count."""
    kept = Truncate().prune(groups(TALK), HistoryBudget(limit=None, window=1_100, overhead_tokens=50))
    assert not kept.evicted
    assert Truncate().prune(groups(TALK), HistoryBudget(limit=None)).evicted == ()


def test_truncate_drops_the_first_message_if_too_large() -> None:
    """It stays only while it fits."""
    with_it = Truncate().prune(groups(TALK), HistoryBudget(limit=None, window=900))
    assert with_it.kept[0].entries[0].message.id == "u1"
    without = Truncate().prune(groups(TALK), HistoryBudget(limit=None, window=480))
    assert [g.entries[0].message.id for g in without.kept] == ["g", "cc"]


def test_masking_starts_at_twice_the_number_to_keep() -> None:
    """Whole messages are masked, down to the number to keep, but never the newest group."""
    policy = MaskToolResults(keep_recent=2)
    assert policy.prune(groups(TALK), HistoryBudget(limit=None)).masked == ()
    made = history(UserMessage("goal", id="g"), *exchange("a", 2), *exchange("b", 3), goal="g")
    assert policy.prune(groups(made), HistoryBudget(limit=None)).masked == ("ra",)
    alone = history(UserMessage("goal", id="g"), *exchange("a", 5), goal="g")
    assert policy.prune(groups(alone), HistoryBudget(limit=None)).masked == ()
    many = history(UserMessage("goal", id="g"), *exchange("a"), *exchange("b", 3), *exchange("c"), goal="g")
    assert policy.prune(groups(many), HistoryBudget(limit=None)).masked == ("ra",)
    assert MaskToolResults(keep_recent=0).prune(groups(many), HistoryBudget(limit=None)).masked == ()


def test_masked_results_do_not_count() -> None:
    """Only readable results count."""
    made = history(UserMessage("goal", id="g"), *exchange("a", text="[Omitted]"), *exchange("b"), goal="g")
    assert MaskToolResults(keep_recent=1).prune(groups(made), HistoryBudget(limit=None)).masked == ()


def test_preferred_messages_leave_only_for_the_limit() -> None:
    """The opener of the newest turn leaves last."""
    made = groups(
        history(UserMessage("goal", id="g"), *exchange("a"), UserMessage("u", id="u"), *exchange("b"), goal="g")
    )
    assert evict(made, target=100, limit=400, by="tokens") == {1}
    assert evict(made, target=100, limit=300, by="tokens") == {1, 2}
    assert evict(made, target=3, limit=3, by="size") == {1, 2}
    assert evict(made, target=1_000, limit=1_000, by="tokens") == set()


def test_view_policy_leaves_the_history_to_rolling() -> None:
    """The shared history always has a policy that bounds it."""
    assert split_stages(Rolling(limit=9)) == (Rolling(limit=9), ())
    assert split_stages(Truncate()) == (Rolling(), (Truncate(),))
    assert create_policy("mask_tool_results") == MaskToolResults()
    assert create_policy("truncate") == Truncate()
    assert not Unbounded().prune(groups(TALK), HistoryBudget(limit=1)).evicted
    assert not Rolling().prune(groups(TALK), HistoryBudget(limit=50)).evicted

    with pytest.raises(DefinitionError, match="unknown policy 'truncat'"):
        create_policy("truncat")


# ---------------------------------------------------------------------------------------------------- the view


def ids(made: History, view: View) -> list[str]:
    return [message.id for message in RequestView.of(made, view).messages]


def test_view_without_changes_keeps_its_prefix() -> None:
    """The view is the same value."""
    view = View()
    assert hide_positions(view, TALK.entries, ()) is view
    assert visible_entries(TALK, view) is TALK.entries


def test_messages_kept_before_a_cut_stay_until_the_next() -> None:
    """The opener of the turn, and the goal of a finished run."""
    view = hide_positions(View(), TALK.entries, {1, 2, 4, 5})
    assert ids(TALK, view) == ["u1", "g", "cc", "rc"]
    later = History(entries=TALK.entries, size=TALK.size, goal="another")
    assert ids(later, view) == ["u1", "g", "cc", "rc"]


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("full", ["u1", "ca", "ra", "g", "cb", "rb", "cc", "rc"]),
        ("none", ["g", "cc", "rc"]),
        ("last", ["g", "cb", "rb", "cc", "rc"]),
        ("text_only", ["u1", "ca", "g", "cb", "cc", "rc"]),
        (lambda messages: messages[:1], ["u1", "g", "cc", "rc"]),
    ],
)
def test_messages_that_cross_are_fixed_at_the_handoff(what: Any, expected: list[str]) -> None:
    """The goal and the group of the handoff always cross."""
    assert ids(TALK, apply_handoff(View(), TALK, 6, what)) == expected


def test_handoff_without_earlier_messages() -> None:
    """No group crosses."""
    assert ids(TALK, apply_handoff(View(), TALK, 0, "last")) == ids(TALK, View())


def test_second_handoff_is_named_as_the_reason() -> None:
    """The agent sees another prefix, and the manifest names the handoff."""
    before = View(last_request=(0,), handoff_position=3, handoff_visible=(0,))
    assert apply_handoff(before, TALK, 6, "full") == View(last_request=(0,), moved_by="handoff")
    assert apply_handoff(before, TALK, 6, "none").moved_by == "handoff"
