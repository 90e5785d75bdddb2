"""What a handoff filter lets its target read of the transcript."""

from __future__ import annotations

from crew.agents.agent import HandoffFilter
from crew.history import History, View, apply_handoff
from crew.history.handoff_filters import messages_within_filter
from crew.interfaces import HistoryEntry
from crew.messages import (
    AssistantMessage,
    Message,
    SummaryMessage,
    ToolCall,
    ToolMessage,
    ToolResult,
    Transcript,
    UserMessage,
)

CALL = ToolCall(id="c", name="read", arguments='{"path": "secret"}')
TRANSCRIPT: tuple[Message, ...] = (
    UserMessage("Goal.", id="goal"),
    AssistantMessage("Looking.", calls=(CALL,), id="call"),
    ToolMessage((ToolResult(call_id="c", text="secret"),), id="result"),
    AssistantMessage("", calls=(CALL,), id="silent"),
    ToolMessage((ToolResult(call_id="c", text="secret"),), id="again"),
    AssistantMessage("Found.", id="text"),
    SummaryMessage("Of texts.", covers=("text",), id="plain"),
    SummaryMessage("Of results.", covers=("call", "result"), id="telling"),
    AssistantMessage("", calls=(ToolCall(id="h", name="transfer_to_b"),), id="handoff"),
    ToolMessage((ToolResult(call_id="h", text="Control passes."),), id="passed"),
    SummaryMessage("Of the handoff.", covers=("handoff", "passed"), id="later"),
    SummaryMessage("Of a summary.", covers=("telling", "passed"), id="nested"),
)
CROSSING = 8


def readable(passed: HandoffFilter, view: View | None = None, held: tuple[int, ...] = (0, 5)) -> list[str]:
    """The ids of the messages that may be read after a handoff; the history held those at these positions."""
    entries = tuple(HistoryEntry(message=TRANSCRIPT[position], position=position) for position in held)
    view = apply_handoff(view or View(), History(entries=entries, goal="goal"), CROSSING, passed)
    return [message.id for message in messages_within_filter(Transcript(TRANSCRIPT), view, "goal")]


def test_summary_that_covers_a_hidden_message_cannot_be_read() -> None:
    """Also one that was made after the handoff, and one that covers such a summary."""
    assert readable("full") == [message.id for message in TRANSCRIPT]
    assert readable("none") == ["goal", "handoff", "passed", "later"]
    assert readable("last") == ["goal", "text", "handoff", "passed", "later"]
    assert readable("text_only") == ["goal", "call", "text", "plain", "handoff", "passed", "later"]


def test_summary_that_crossed_can_be_read_but_not_opened() -> None:
    """Its position in the history is that of a message that it covers, which did not cross."""
    summary = HistoryEntry(message=TRANSCRIPT[7], position=2)
    goal = HistoryEntry(message=TRANSCRIPT[0], position=0)
    history = History(entries=(goal, summary), goal="goal")
    view = apply_handoff(View(), history, CROSSING, lambda messages: messages[-1:])
    ids = [message.id for message in messages_within_filter(Transcript(TRANSCRIPT), view, "goal")]
    assert ids == ["goal", "telling", "handoff", "passed", "later", "nested"]


def test_full_handoff_removes_an_earlier_filter() -> None:
    """From then on everything can be read again."""
    filtered = View(handoff_position=CROSSING, handoff_mode="text_only")
    assert readable("full", filtered) == [message.id for message in TRANSCRIPT]
