"""Repair: a valid conversation out of any, always the same one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crew.message_rules import PROFILES, STRICTEST, Profile, repair, validate
from crew.message_rules.repair import CONTINUE, MISSING_OPENING, MISSING_RESULT
from crew.messages import (
    AssistantMessage,
    Message,
    ProviderData,
    SystemMessage,
    ToolCall,
    ToolMessage,
    ToolResult,
    UserMessage,
    opens_conversation,
)
from tests.support.messages import total_size
from tests.support.strategies import broken_conversations, conversations

profiles = st.sampled_from(list(PROFILES.values()))


def rules(messages: list[Message] | tuple[Message, ...], profile: Profile = STRICTEST) -> list[str]:
    return [violation.rule for violation in validate(messages, profile)]


@given(broken_conversations(), profiles)
def test_a_repaired_conversation_is_valid(messages: list[Message], profile: Profile) -> None:
    """At the door, whatever comes in leaves as a conversation that the provider accepts."""
    assert validate(repair(messages, profile).messages, profile) == []


@given(broken_conversations())
def test_what_is_repaired_at_the_door_is_valid_everywhere(messages: list[Message]) -> None:
    """The strictest profile is as strict as each of the others."""
    mended = repair(messages).messages
    assert all(validate(mended, profile) == [] for profile in PROFILES.values())


@given(broken_conversations(), profiles)
def test_a_repaired_view_is_valid_or_empty(messages: list[Message], profile: Profile) -> None:
    """In a view too; only where no user's message is left, and nothing may be added, nothing is left."""
    shown = repair(messages, profile, where="view").messages
    assert validate(shown, profile) == [] or (not any(map(opens_conversation, shown)) and len(shown) <= len(messages))

    with_goal = [*messages, UserMessage("the goal", id="goal")]
    shown = repair(with_goal, profile, where="view").messages
    assert validate(shown, profile) == []
    assert shown[-1].id == "goal"


@given(broken_conversations(), profiles, st.sampled_from(["input", "view"]))
def test_repairing_twice_is_repairing_once(messages: list[Message], profile: Profile, where: str) -> None:
    """A valid conversation is left alone, and nothing is reported for it."""
    once = repair(messages, profile, where=where)  # type: ignore[arg-type]
    again = repair(once.messages, profile, where=where)  # type: ignore[arg-type]
    assert again.messages == once.messages
    assert again.changes == () or not once.messages


@given(broken_conversations(), profiles, st.sampled_from(["input", "view"]))
def test_repair_is_deterministic_and_leaves_its_input_alone(
    messages: list[Message], profile: Profile, where: str
) -> None:
    """The same out of the same, and what was handed in is as it was."""
    copy = list(messages)
    first = repair(messages, profile, where=where)  # type: ignore[arg-type]
    assert repair(list(messages), profile, where=where) == first  # type: ignore[arg-type]
    assert messages == copy


@given(broken_conversations(), profiles)
def test_a_view_is_never_made_larger(messages: list[Message], profile: Profile) -> None:
    """In a view a repair only removes: no message is added, none counts for more, and the order stays."""
    shown = repair(messages, profile, where="view").messages
    assert total_size(shown) <= total_size(messages)
    ids = iter([message.id for message in messages])
    assert all(any(message.id == id for id in ids) for message in shown if not isinstance(message, ToolMessage))


@given(broken_conversations())
def test_what_was_said_stays(messages: list[Message]) -> None:
    """A repair at the door takes no words away: every text that is not blank is still there, in order."""
    said = [m.text for m in messages if not isinstance(m, ToolMessage) and m.text.strip()]
    kept = [m.text for m in repair(messages).messages if not isinstance(m, ToolMessage) and m.text.strip()]
    assert [text for text in kept if text not in (MISSING_OPENING, CONTINUE)] == said


@given(conversations())
def test_a_whole_conversation_is_left_alone(messages: list[Message]) -> None:
    """What is valid is handed back as the same values."""
    asked = [*messages, UserMessage("and now?", id="now")]
    mended = repair(asked)
    assert mended.changes == ()
    assert all(ours is given for ours, given in zip(mended.messages, asked, strict=True))


CALL = AssistantMessage(calls=(ToolCall(id="a", name="look"), ToolCall(id="b", name="look")), id="m2")
USER = UserMessage("hi", id="m1")


def result(id: str, text: str = "found") -> ToolResult:
    return ToolResult(call_id=id, name="look", text=text)


def test_calls_without_results_are_answered_at_the_door() -> None:
    """A crash between call and result leaves a conversation that goes on: the result says that there is none."""
    mended = repair([USER, CALL, ToolMessage((result("b"),), id="m3"), UserMessage("go on", id="m4")])
    answered = mended.messages[2]
    assert isinstance(answered, ToolMessage)
    assert [r.call_id for r in answered.results] == ["a", "b"]
    assert answered.results[0].text == MISSING_RESULT
    assert answered.results[0].outcome == "error"
    assert mended.changes == ("added a result for the call 'a', which had none",)


def test_calls_without_results_leave_a_view() -> None:
    """In a view nothing may be added: the call goes, its neighbour stays."""
    mended = repair([USER, CALL, ToolMessage((result("b"),), id="m3")], where="view")
    asked = mended.messages[1]
    assert isinstance(asked, AssistantMessage)
    assert [call.id for call in asked.calls] == ["b"]


def test_a_reply_that_loses_all_its_calls_keeps_its_words_in_a_view() -> None:
    """Words without calls are still a reply; no words and no calls are nothing."""
    asked = replace(CALL, text="let me look")
    last = UserMessage("well?", id="m9")
    assert repair([USER, asked, last], where="view").messages[1].id == asked.id
    assert repair([USER, CALL, last], where="view").messages == (USER, last)


def test_results_that_come_late_find_their_call() -> None:
    """Results are put right behind the call that they answer, in call order."""
    late = [USER, CALL, UserMessage("still there?", id="m3"), ToolMessage((result("b"), result("a")), id="m4")]
    mended = repair(late)
    assert [message.id for message in mended.messages] == ["m1", "m2", "m4", "m3"]
    assert rules(mended.messages) == []


def test_a_reused_call_id_is_renamed_with_its_result() -> None:
    """Two calls under one id would be refused; the newer one gets a name of its own, and what it wrote is dropped."""
    data = ProviderData(provider="p", model="m", items=({"signature": "s"},))
    first = AssistantMessage(calls=(ToolCall(id="a", name="look"),), id="m2")
    second = replace(first, id="m4", provider_data=data)
    messages = [USER, first, ToolMessage((result("a", "1"),), id="m3"), second, ToolMessage((result("a", "2"),))]
    mended = repair(messages)
    again = mended.messages[3]
    assert isinstance(again, AssistantMessage)
    assert again.calls[0].id != "a"
    assert again.provider_data is None
    answered = mended.messages[4]
    assert isinstance(answered, ToolMessage)
    assert answered.results[0] == replace(result("a", "2"), call_id=again.calls[0].id)


def test_a_new_call_id_is_never_one_that_is_taken() -> None:
    """The name that is made up avoids those that are used already."""
    calls = tuple(ToolCall(id=id, name="look") for id in ("call_2", "x" * 41))
    mended = repair([USER, AssistantMessage(calls=calls, id="m2"), ToolMessage((result("call_2"), result("x" * 41)))])
    asked = mended.messages[1]
    assert isinstance(asked, AssistantMessage)
    assert len({call.id for call in asked.calls}) == 2


def test_nothing_becomes_an_opening() -> None:
    """An empty history, or one of which nothing can stay, becomes the shortest valid one under every profile."""
    for profile in PROFILES.values():
        for nothing in ([], [ToolMessage((result("a"),), id="m1")], [UserMessage("  ", id="m1")]):
            mended = repair(nothing, profile)
            assert [m.text for m in mended.messages if isinstance(m, UserMessage)] == [MISSING_OPENING]
            assert mended.changes


def test_system_messages_stay_before_the_opening() -> None:
    """A missing opening is put behind the system messages that stand first."""
    mended = repair([SystemMessage("rule", id="s"), AssistantMessage("hello", id="a")])
    assert [m.role for m in mended.messages] == ["system", "user", "assistant", "user"]


def test_a_view_that_opens_with_replies_loses_them_and_keeps_its_rules() -> None:
    """System messages are never removed; replies before the first user's message are."""
    messages = [AssistantMessage("hello", id="a"), SystemMessage("rule", id="s"), USER]
    assert [m.id for m in repair(messages, where="view").messages] == ["s", "m1"]


def test_a_view_that_ends_with_replies_loses_them() -> None:
    """The request must end with a user's message or results, whatever rules stand behind them."""
    messages = [USER, AssistantMessage("a", id="a"), AssistantMessage("b", id="b"), SystemMessage("rule", id="s")]
    assert [m.id for m in repair(messages, where="view").messages] == ["m1", "s"]
    assert [m.role for m in repair(messages).messages][-1] == "user"


@pytest.mark.soak
@given(broken_conversations(max_turns=20), profiles)
def test_long_broken_conversations_are_mended_too(messages: list[Message], profile: Profile) -> None:
    """The same law on twenty turns."""
    assert validate(repair(messages, profile).messages, profile) == []
