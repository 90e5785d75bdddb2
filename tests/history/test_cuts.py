"""Cuts: a view shows long messages without the middle of their texts; codes and rebuilt requests show the cut."""

from __future__ import annotations

import pytest

from crew.history import History, View
from crew.history.cuts import MIN_CUT_CHARS, cut_message, cuts
from crew.history.view import RequestView, code_position, cut_messages, is_cut, rebuild_entry
from crew.interfaces import HistoryBudget, HistoryEntry
from crew.messages import AssistantMessage, Message, ProviderData, ToolCall, ToolMessage, ToolResult, UserMessage

LONG = "word " * 2_000


def entries_of(*messages: Message) -> tuple[HistoryEntry, ...]:
    return tuple(HistoryEntry(message=message, position=n, tokens=2_500) for n, message in enumerate(messages))


@pytest.mark.parametrize(
    "message",
    [
        UserMessage(LONG, origin="join", id="m"),
        AssistantMessage(LONG, id="m", provider_data=ProviderData(provider="p", model="m")),
        ToolMessage((ToolResult(call_id="1", text=LONG), ToolResult(call_id="2", text="short")), id="m"),
    ],
    ids=lambda message: message.role,
)
def test_cut_of_each_kind_of_message(message: Message) -> None:
    """Each level keeps twice as much as the one below; the message stays the same, and the cut is made once."""
    levels = [(level, [entry.message.id for entry in cut]) for level, cut in cuts(entries_of(message))]
    assert levels == [(2, ["m"]), (1, ["m"]), (0, ["m"])]

    for level, _ in levels:
        cut = cut_message(message, level)
        assert cut is cut_message(message, level)
        text = cut.results[0].text if isinstance(cut, ToolMessage) else cut.text
        assert len(text) == MIN_CUT_CHARS << level
        assert text.startswith("word word")
        assert text.endswith("word ")
        assert "of 10000 characters cut" in text

    assert LONG in str(message)


def test_calls_summaries_and_short_texts_are_not_cut() -> None:
    """A call must stay as the model wrote it."""
    call = AssistantMessage(LONG, calls=(ToolCall(id="1", name="f"),), id="a")
    assert [*cuts(entries_of(call, ToolMessage((), id="t"), UserMessage("short", id="u")))] == []


def test_codes_of_cut_messages_show_position_and_level() -> None:
    """Another cut is another code, and a request can be rebuilt from its codes."""
    history = History(entries=entries_of(UserMessage("Goal.", id="g"), UserMessage(LONG, id="m")), size=2, goal="g")
    known = {(entry.position, False): entry for entry in history.entries}
    seen = set()

    for level in (2, 1, 0):
        view = cut_messages(View(), history.entries[1:], level)
        content = RequestView.of(history, view)
        assert [code_position(code) for code in content.codes] == [0, 1]
        assert [is_cut(code) for code in content.codes] == [False, True]
        assert [rebuild_entry(code, known) for code in content.codes] == [*content.sent]
        assert content.sent[1].tokens < 2_500
        seen.add(content.codes)

    assert len(seen) == 3
    assert code_position(-3) < 0


@pytest.mark.parametrize("limit", [None, 5])
def test_append_after_a_failed_policy_keeps_what_fits(limit: int | None) -> None:
    """Only above the limit does the oldest leave."""
    history = History(entries=entries_of(UserMessage("Goal.", id="g")), size=1, goal="g")
    more = HistoryEntry(message=AssistantMessage("Well.", id="a"), position=1)
    grown, decision = history.append_oldest_first(more, budget=HistoryBudget(limit=limit), summarizes=False)
    assert ([message.id for message in grown.messages], decision) == (["g", "a"], None)
