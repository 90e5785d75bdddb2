"""Every event has one line of text and a level, which logs and terminal share."""

import logging
from typing import get_args

import pytest

from crew import Agent, CrewExecutor, ScriptedProvider
from crew.cli.terminal import event_line
from crew.messages import AssistantMessage, ToolCall, ToolResult, Usage
from crew.runs import event_text, events
from crew.runs.events import AgentStarted, BranchFinished, Event, Replied, RunFailed, ToolReturned, Warned
from crew.telemetry.event_table import LOG_ENTRIES

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


async def test_an_event_without_a_log_entry_is_logged_under_its_kind(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """So a new event needs a class and a text, and no change in telemetry."""
    monkeypatch.delitem(LOG_ENTRIES, AgentStarted)
    caplog.set_level(logging.INFO, logger="crew")
    await CrewExecutor(Agent("a", model=ScriptedProvider("Hello."))).execute("Go", run_id="r")
    (fields,) = [record.msg.fields for record in caplog.records if record.msg.fields["event"] == "agent_started"]
    assert fields == {"event": "agent_started", "run_id": "r", "agent": "a", "text": "a starts"}
