"""Invariant 8: observers are harmless."""

from __future__ import annotations

import logging

import pytest

from crew import call
from crew.runs import Event
from tests.support.providers import RecordingProvider
from tests.support.runs import collect, executor_for
from tests.support.tools import look

LINES = [call("look", n=1), "the answer"]


async def test_failing_observer_is_disabled_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    """The other observers, the stream and the result are the same as without it."""
    seen: list[Event] = []
    failures: list[Event] = []

    def failing(event: Event) -> None:
        failures.append(event)
        raise RuntimeError("no disk")

    plain = await executor_for(RecordingProvider(*LINES), look).execute("go", run_id="r")
    executor = executor_for(RecordingProvider(*LINES), look, observers=[failing, seen.append])
    events, result = await collect(executor.execute_stream("go", run_id="r"))
    assert (result.output, result.history, result.usage) == (plain.output, plain.history, plain.usage)
    assert seen == events
    assert len(failures) == 1
    warnings = [r for r in caplog.records if r.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert "no disk" in warnings[0].getMessage()
    assert "failing failed and is disabled for run r" in warnings[0].getMessage()
    await executor.execute("go", run_id="s")
    assert len(failures) == 2


async def test_observers_get_all_events_without_a_stream() -> None:
    """`execute` notifies the same observers; text deltas are emitted only to a stream."""
    seen: list[Event] = []
    await executor_for(RecordingProvider(*LINES), look, observers=[seen.append]).execute("go")
    assert [e.kind for e in seen if e.kind in ("run_started", "replied", "tool_returned", "run_finished")] == [
        "run_started",
        "replied",
        "tool_returned",
        "replied",
        "run_finished",
    ]
    assert not any(e.kind == "text_delta" for e in seen)
