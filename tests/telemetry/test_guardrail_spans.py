"""Guardrails and preparations are visible as events of spans, in logs, and as events of the run."""

from __future__ import annotations

from typing import Any

import pytest

from crew import Agent, Context, CrewExecutor, ScriptedProvider, call, tool, toolset
from crew.agents import GuardedCall, Refused, guardrail
from crew.telemetry import Telemetry
from tests.support.spans import RecordedSpans


@guardrail("input")
def polite(context: Context[Any], text: str) -> None:
    """Passes."""


@guardrail("tool")
def reads_only(context: Context[Any], made: GuardedCall) -> Any:
    return Refused("Only reads.") if made.name == "write" else None


@tool
def write(key: str) -> str:
    """Write."""
    return key


async def test_decisions_of_guardrails_are_events_of_spans() -> None:
    """On the span of the agent; before an agent is active, on the span of the run. No text is in them."""
    spans = RecordedSpans()
    agent = Agent(
        "clerk",
        instructions=lambda context: "Help.",
        description="Helps.",
        model=ScriptedProvider(call("write", key="secret words"), "Done."),
        tools=[toolset("kv", [write])],
        guardrails=[polite, reads_only],
    )
    await CrewExecutor(agent, telemetry=Telemetry(tracer_provider=spans.provider)).execute("Hello")
    found = [(span.name, event.name, dict(event.attributes or {})) for span in spans.spans for event in span.events]
    checks = [
        (name, fields["guardrail"], fields["outcome"]) for name, event, fields in found if event == "crew.guardrail"
    ]
    assert checks == [("invoke_workflow clerk", "polite", "passed"), ("invoke_agent clerk", "reads_only", "refused")]
    assert [fields["tools"] for _, event, fields in found if event == "crew.agent_prepared"] == [1]
    assert "secret words" not in repr(found)


async def test_a_refusal_is_logged_as_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    agent = Agent("a", model=ScriptedProvider(call("write", key="a"), "Done."), tools=[write], guardrails=[reads_only])
    await CrewExecutor(agent).execute("Go")
    assert any("guardrail.checked" in record.getMessage() for record in caplog.records if record.levelname == "WARNING")
