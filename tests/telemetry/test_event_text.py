"""Every event has one line of text and a level, which logs and terminal share."""

from typing import get_args

from crew.cli.terminal import event_line
from crew.messages import AssistantMessage, ToolCall, ToolResult, Usage
from crew.runs import event_text, events
from crew.runs.events import BranchFinished, Event, Replied, RunFailed, ToolReturned, Warned

SILENT = {"TextDelta", "ToolProgress", "UsageChanged"}


def test_every_event_class_has_a_text() -> None:
    """A class that the texts do not name would be missing in logs and terminal."""
    union, _ = get_args(Event)
    named = {name for name in vars(event_text) if name in vars(events)}
    assert {kind.__name__ for kind in get_args(union)} - SILENT <= named


def test_the_outcome_of_an_event_can_change_its_severity() -> None:
    """The level of the class is what most of its events have."""
    failed = ToolReturned(result=ToolResult(call_id="1", text="no", outcome="error"), tokens=1)
    assert (failed.level, failed.severity) == ("info", "warning")
    assert BranchFinished(branch="r/a", outcome="failed").severity == "warning"
    assert BranchFinished(branch="r/a", outcome="completed").severity == "info"
    assert RunFailed(run_id="r", error="no").severity == "error"
    assert RunFailed(run_id="r/a", error="no").severity == "warning"


def test_texts_hold_no_message_content() -> None:
    """Content is shown by the terminal alone: logs go elsewhere."""
    calls = (ToolCall(id="1", name="look", arguments='{"q": "inside"}'),)
    replied = Replied(agent="a", message=AssistantMessage("inside", calls=calls), usage=Usage(), tokens=1)
    returned = ToolReturned(result=ToolResult(call_id="1", text="inside", name="look"), tokens=1)
    assert event_text.event_text(replied) == "a replied: 0 tokens, 1 tool call"
    assert event_text.event_text(returned) == "tool look returned"
    assert event_line(replied) == "  a: inside"
    assert event_line(returned) == "  ✓ look: inside"
    assert event_line(Warned(text="Take care.")) == "! Take care."
