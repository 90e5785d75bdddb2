"""Views: the messages that cross to the next agent, fixed at the handoff."""

from __future__ import annotations

from dataclasses import replace

import pytest

from crew.errors import DefinitionError
from crew.history import History, RequestView, View, apply_handoff
from crew.history.eviction import group_entries
from crew.history.policies import Rolling, Unbounded, create_policy
from crew.history.view_summaries import last_request
from crew.interfaces import HistoryEntry
from crew.messages import Message, SystemMessage, ToolMessage, ToolResult
from tests.support.strategies import MessageFactory

maker = MessageFactory(seed=3)
RULE = SystemMessage("rule", id="rule")
EARLIER = [maker.user(), *maker.exchange(2), maker.reply()]
EARLIER[1] = replace(EARLIER[1], text="")  # type: ignore[call-arg]
GOAL = maker.user()
SPOKEN = maker.exchange(1)
SPOKEN[0] = replace(SPOKEN[0], text="let me see")  # type: ignore[call-arg]
HANDOFF = maker.exchange(1)
EVERYTHING: list[Message] = [RULE, *EARLIER, GOAL, *SPOKEN, *HANDOFF]
AT = EVERYTHING.index(HANDOFF[0])


def history() -> History:
    entries = tuple(HistoryEntry(message=m, position=i) for i, m in enumerate(EVERYTHING))
    return History(entries=entries, size=len(EVERYTHING) + 1, goal=GOAL.id)


def ids(view: View) -> list[str]:
    return [message.id for message in RequestView.of(history(), view).messages]


@pytest.mark.parametrize(
    ("what", "crossed"),
    [
        ("full", EVERYTHING),
        ("none", [RULE, GOAL, *HANDOFF]),
        ("last", [RULE, GOAL, *SPOKEN, *HANDOFF]),
        ("text_only", [RULE, EARLIER[0], EARLIER[3], GOAL, SPOKEN[0], *HANDOFF]),
        (lambda messages: [m for m in messages if m.id == EARLIER[3].id], [RULE, EARLIER[3], GOAL, *HANDOFF]),
    ],
)
def test_goal_system_messages_and_handoff_always_cross(what: object, crossed: list[Message]) -> None:
    """The filter selects from the earlier messages only."""
    assert ids(apply_handoff(View(), history(), AT, what)) == [m.id for m in crossed]  # type: ignore[arg-type]


def test_text_only_shows_text_without_calls() -> None:
    """A reply with text and calls crosses as text, as the same value each time."""
    view = apply_handoff(View(), history(), AT, "text_only")
    shown = next(m for m in RequestView.of(history(), view).messages if m.id == SPOKEN[0].id)
    assert (shown.text, shown.calls) == ("let me see", ())  # type: ignore[union-attr]
    assert next(m for m in RequestView.of(history(), view).messages if m.id == SPOKEN[0].id) is shown


def test_last_of_an_empty_history_is_empty() -> None:
    """An empty history has no last group."""
    assert apply_handoff(View(), History(), 0, "last").handoff_visible == ()


def test_policy_is_found_by_name() -> None:
    """A wrong name is an error that suggests similar ones."""
    assert create_policy("rolling") == Rolling()
    assert create_policy("unbounded") == Unbounded()

    with pytest.raises(DefinitionError, match="rolling"):
        create_policy("roling")


def test_results_without_their_call_are_a_separate_group() -> None:
    """A history that was not repaired can be grouped."""
    entry = HistoryEntry(message=ToolMessage((ToolResult(call_id="a", text="1"),), id="t"), position=0)
    assert [(g.kind, g.size) for g in group_entries((entry,), "")] == [("results", 1)]


def test_last_request_is_rebuilt_from_its_codes() -> None:
    """Whole, text only, masked, and behind a marker: the same messages; None if one of them is no longer known."""
    view = replace(apply_handoff(View(), history(), AT, "text_only"), masked_before=len(EVERYTHING), truncated_count=3)
    sent = RequestView.of(history(), view)
    rebuilt = last_request(replace(view, last_request=sent.codes), history())
    assert rebuilt is not None
    assert (rebuilt.messages, rebuilt.codes, rebuilt.size) == (sent.messages, sent.codes, sent.size)
    assert last_request(replace(view, last_request=(*sent.codes, 400)), history()) is None
