"""Repair turns any conversation into a valid one, deterministically."""

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
def test_repaired_conversation_is_valid(messages: list[Message], profile: Profile) -> None:
    """The provider accepts any repaired input."""
    assert validate(repair(messages, profile).messages, profile) == []


@given(broken_conversations())
def test_repaired_input_is_valid_on_every_profile(messages: list[Message]) -> None:
    """The strictest profile includes the rules of the others."""
    repaired = repair(messages).messages
    assert all(validate(repaired, profile) == [] for profile in PROFILES.values())


@given(broken_conversations(), profiles)
def test_repaired_view_is_valid_or_empty(messages: list[Message], profile: Profile) -> None:
    """It is empty only if no user message is left."""
    shown = repair(messages, profile, where="view").messages
    assert validate(shown, profile) == [] or (not any(map(opens_conversation, shown)) and len(shown) <= len(messages))

    with_goal = [*messages, UserMessage("the goal", id="goal")]
    shown = repair(with_goal, profile, where="view").messages
    assert validate(shown, profile) == []
    assert shown[-1].id == "goal"


@given(broken_conversations(), profiles, st.sampled_from(["input", "view"]))
def test_repair_is_idempotent(messages: list[Message], profile: Profile, where: str) -> None:
    """A valid conversation is unchanged, and nothing is reported."""
    once = repair(messages, profile, where=where)  # type: ignore[arg-type]
    again = repair(once.messages, profile, where=where)  # type: ignore[arg-type]
    assert again.messages == once.messages
    assert again.changes == () or not once.messages


@given(broken_conversations(), profiles, st.sampled_from(["input", "view"]))
def test_repair_is_deterministic_and_pure(messages: list[Message], profile: Profile, where: str) -> None:
    """Equal input gives equal output, and the input is not modified."""
    copy = list(messages)
    first = repair(messages, profile, where=where)  # type: ignore[arg-type]
    assert repair(list(messages), profile, where=where) == first  # type: ignore[arg-type]
    assert messages == copy


@given(broken_conversations(), profiles)
def test_repair_never_enlarges_a_view(messages: list[Message], profile: Profile) -> None:
    """In a view a repair only removes, and keeps the order."""
    shown = repair(messages, profile, where="view").messages
    assert total_size(shown) <= total_size(messages)
    ids = iter([message.id for message in messages])
    assert all(any(message.id == id for id in ids) for message in shown if not isinstance(message, ToolMessage))


@given(broken_conversations())
def test_repair_of_the_input_keeps_all_text(messages: list[Message]) -> None:
    """Every text that is not blank stays, in order."""
    texts = [m.text for m in messages if not isinstance(m, ToolMessage) and m.text.strip()]
    kept = [m.text for m in repair(messages).messages if not isinstance(m, ToolMessage) and m.text.strip()]
    assert [text for text in kept if text not in (MISSING_OPENING, CONTINUE)] == texts


@given(conversations())
def test_valid_conversation_is_returned_unchanged(messages: list[Message]) -> None:
    """The messages are the same objects."""
    asked = [*messages, UserMessage("and now?", id="now")]
    repaired = repair(asked)
    assert repaired.changes == ()
    assert all(ours is given for ours, given in zip(repaired.messages, asked, strict=True))


CALL = AssistantMessage(calls=(ToolCall(id="a", name="look"), ToolCall(id="b", name="look")), id="m2")
USER = UserMessage("hi", id="m1")


def result(id: str, text: str = "found") -> ToolResult:
    return ToolResult(call_id=id, name="look", text=text)


def test_missing_results_are_added_to_the_input() -> None:
    """A crash between call and result can be repaired: the added result says that there is none."""
    repaired = repair([USER, CALL, ToolMessage((result("b"),), id="m3"), UserMessage("go on", id="m4")])
    answered = repaired.messages[2]
    assert isinstance(answered, ToolMessage)
    assert [r.call_id for r in answered.results] == ["a", "b"]
    assert answered.results[0].text == MISSING_RESULT
    assert answered.results[0].outcome == "error"
    assert repaired.changes == ("added a result for the call 'a', which had none",)


def test_calls_without_results_are_removed_from_a_view() -> None:
    """Nothing may be added to a view; the other calls stay."""
    repaired = repair([USER, CALL, ToolMessage((result("b"),), id="m3")], where="view")
    asked = repaired.messages[1]
    assert isinstance(asked, AssistantMessage)
    assert [call.id for call in asked.calls] == ["b"]


def test_reply_without_its_calls_keeps_its_text_in_a_view() -> None:
    """A reply without calls and text is removed."""
    asked = replace(CALL, text="let me look")
    last = UserMessage("well?", id="m9")
    assert repair([USER, asked, last], where="view").messages[1].id == asked.id
    assert repair([USER, CALL, last], where="view").messages == (USER, last)


def test_late_results_are_moved_to_their_call() -> None:
    """Results follow their call, in call order."""
    late = [USER, CALL, UserMessage("still there?", id="m3"), ToolMessage((result("b"), result("a")), id="m4")]
    repaired = repair(late)
    assert [message.id for message in repaired.messages] == ["m1", "m2", "m4", "m3"]
    assert rules(repaired.messages) == []


def test_reused_call_id_is_renamed_with_its_result() -> None:
    """The newer call gets a new id, and its provider data is dropped."""
    data = ProviderData(provider="p", model="m", items=({"signature": "s"},))
    first = AssistantMessage(calls=(ToolCall(id="a", name="look"),), id="m2")
    second = replace(first, id="m4", provider_data=data)
    messages = [USER, first, ToolMessage((result("a", "1"),), id="m3"), second, ToolMessage((result("a", "2"),))]
    repaired = repair(messages)
    again = repaired.messages[3]
    assert isinstance(again, AssistantMessage)
    assert again.calls[0].id != "a"
    assert again.provider_data is None
    answered = repaired.messages[4]
    assert isinstance(answered, ToolMessage)
    assert answered.results[0] == replace(result("a", "2"), call_id=again.calls[0].id)


def test_new_call_id_avoids_ids_in_use() -> None:
    """A generated id differs from all others."""
    calls = tuple(ToolCall(id=id, name="look") for id in ("call_2", "x" * 41))
    repaired = repair([USER, AssistantMessage(calls=calls, id="m2"), ToolMessage((result("call_2"), result("x" * 41)))])
    asked = repaired.messages[1]
    assert isinstance(asked, AssistantMessage)
    assert len({call.id for call in asked.calls}) == 2


def test_empty_history_becomes_an_opening_message() -> None:
    """An empty history becomes the shortest valid one on every profile."""
    for profile in PROFILES.values():
        for nothing in ([], [ToolMessage((result("a"),), id="m1")], [UserMessage("  ", id="m1")]):
            repaired = repair(nothing, profile)
            assert [m.text for m in repaired.messages if isinstance(m, UserMessage)] == [MISSING_OPENING]
            assert repaired.changes


def test_system_messages_stay_before_the_opening() -> None:
    """A missing opening is inserted after the leading system messages."""
    repaired = repair([SystemMessage("rule", id="s"), AssistantMessage("hello", id="a")])
    assert [m.role for m in repaired.messages] == ["system", "user", "assistant", "user"]


def test_leading_replies_are_removed_from_a_view() -> None:
    """System messages are never removed."""
    messages = [AssistantMessage("hello", id="a"), SystemMessage("rule", id="s"), USER]
    assert [m.id for m in repair(messages, where="view").messages] == ["s", "m1"]


def test_trailing_replies_are_removed_from_a_view() -> None:
    """A request ends with a user message or results, apart from system messages."""
    messages = [USER, AssistantMessage("a", id="a"), AssistantMessage("b", id="b"), SystemMessage("rule", id="s")]
    assert [m.id for m in repair(messages, where="view").messages] == ["m1", "s"]
    assert [m.role for m in repair(messages).messages][-1] == "user"


@pytest.mark.soak
@given(broken_conversations(max_turns=20), profiles)
def test_long_broken_conversations_are_repaired(messages: list[Message], profile: Profile) -> None:
    """The same with twenty turns."""
    assert validate(repair(messages, profile).messages, profile) == []


def test_view_of_system_messages_alone_is_unchanged() -> None:
    """There is nothing to remove before a first user message."""
    repaired = repair([SystemMessage("rule", id="s")], where="view")
    assert ([message.id for message in repaired.messages], repaired.changes) == (["s"], ())
