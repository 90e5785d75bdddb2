"""Validation reports every rule violation that a provider would refuse."""

from __future__ import annotations

from dataclasses import replace

import pytest

from crew.errors import DefinitionError
from crew.message_rules import PROFILES, get_profile, group_spans, validate
from crew.messages import (
    AssistantMessage,
    Image,
    Message,
    SummaryMessage,
    SystemMessage,
    ToolCall,
    ToolMessage,
    ToolResult,
    UserMessage,
)

USER = UserMessage("hi")
ASKED = AssistantMessage(calls=(ToolCall(id="a", name="look"), ToolCall(id="b", name="look")))
A, B = ToolResult(call_id="a", text="1"), ToolResult(call_id="b", text="2")
FOUND = ToolMessage((A, B))
LONG = ToolCall(id="x" * 41, name="look")
LONGER = ToolCall(id="x" * 65, name="look")


def asked(call: ToolCall) -> list[Message]:
    return [USER, AssistantMessage(calls=(call,)), ToolMessage((ToolResult(call_id=call.id, text="1"),))]


CLAUDE = {"anthropic", "anthropic-4.7", "anthropic-classic"}
LOCAL = {"alternating", "compatible"}


@pytest.mark.parametrize(
    ("messages", "rules"),
    [
        ([], ["empty"]),
        ([USER], []),
        ([SystemMessage("rule"), USER], []),
        ([SummaryMessage("so far"), AssistantMessage("hi"), USER], []),
        ([UserMessage("", images=(Image(url="https://example.com/a.png"),))], []),
        ([SystemMessage("rule")], ["opening"]),
        ([AssistantMessage("hi"), USER], ["opening"]),
        ([USER, AssistantMessage("hi")], ["ending"]),
        ([USER, AssistantMessage("hi"), SystemMessage("rule")], ["ending"]),
        ([USER, ASKED, FOUND], []),
        ([USER, ASKED], ["unanswered_call"]),
        ([USER, ASKED, USER], ["unanswered_call"]),
        ([USER, ASKED, ToolMessage((A,))], ["unanswered_call"]),
        ([USER, ASKED, ToolMessage((B, A))], ["result_order"]),
        ([USER, ASKED, ToolMessage((A, B, B))], ["duplicate_result"]),
        ([USER, ASKED, ToolMessage((A, B, replace(A, call_id="c")))], ["orphan_result"]),
        ([USER, ASKED, ToolMessage((A,)), ToolMessage((B,))], ["unanswered_call", "orphan_result"]),
        ([USER, FOUND], ["orphan_result"]),
        ([FOUND], ["opening", "orphan_result"]),
        ([USER, AssistantMessage("hi"), FOUND], ["orphan_result"]),
        ([USER, ASKED, FOUND, ASKED, FOUND], ["duplicate_call", "duplicate_call"]),
        ([UserMessage(" \n")], ["empty_text"]),
        ([USER, AssistantMessage(""), USER], ["empty_text"]),
        ([SystemMessage(""), USER], ["empty_text"]),
        ([SummaryMessage(" ")], ["empty_text"]),
        (asked(LONG), ["call_id"]),
        (asked(ToolCall(id="", name="look")), ["call_id"]),
        (asked(ToolCall(id="a b", name="look")), ["call_id"]),
        (asked(ToolCall(id="a", name="no name")), ["tool_name"]),
        (asked(ToolCall(id="a", name="")), ["tool_name"]),
        (asked(ToolCall(id="a", name="n" * 65)), ["tool_name"]),
    ],
)
def test_strictest_profile_reports_every_violation(messages: list[Message], rules: list[str]) -> None:
    """Each broken rule once, with its place."""
    found = validate(messages)
    assert [violation.rule for violation in found] == rules
    assert all(violation.index is not None or violation.rule == "empty" for violation in found)
    assert all(str(violation) == violation.text for violation in found)


@pytest.mark.parametrize(
    ("messages", "refusing"),
    [
        ([AssistantMessage("hi"), USER], {"strictest", *CLAUDE, *LOCAL}),
        ([USER, AssistantMessage("hi")], {"strictest", *CLAUDE, *LOCAL} - {"anthropic-classic"}),
        (asked(LONG), {"strictest", "openai-chat", "openai-chat-classic", *LOCAL}),
        (asked(LONGER), set(PROFILES)),
        (asked(ToolCall(id="a", name="n" * 128)), set(PROFILES) - CLAUDE),
        ([USER, ASKED], set(PROFILES)),
    ],
)
def test_each_profile_has_the_rules_of_its_service(messages: list[Message], refusing: set[str]) -> None:
    """Rules differ by provider and era; the strictest profile has all of them."""
    assert {name for name, profile in PROFILES.items() if validate(messages, profile)} == refusing
    assert not refusing or "strictest" in refusing


def test_unknown_profile_error_suggests_similar_names() -> None:
    """The error lists the available profiles."""
    assert get_profile("anthropic") is PROFILES["anthropic"]

    with pytest.raises(DefinitionError, match="openai-chat"):
        get_profile("openai-chart")


def test_groups_keep_calls_and_results_together() -> None:
    """Every other message is a group alone."""
    messages = [SystemMessage("rule"), USER, ASKED, FOUND, ToolMessage((A,)), AssistantMessage("hi"), ASKED]
    assert [range(*span.indices(99)) for span in group_spans(messages)] == [
        range(1),
        range(1, 2),
        range(2, 5),
        range(5, 6),
        range(6, 7),
    ]
    assert group_spans([]) == []
