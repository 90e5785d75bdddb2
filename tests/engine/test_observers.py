"""Law 8: watching is harmless."""

from __future__ import annotations

import logging

import pytest

from crew import call
from crew.runs import Event
from tests.support.providers import RecordingProvider
from tests.support.runs import collect, executor_for
from tests.support.tools import look

LINES = [call("look", n=1), "the answer"]


async def test_a_failing_observer_is_switched_off_and_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """One warning for the run; the other observers, the stream and the result are as without it."""
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


async def test_an_observer_is_told_of_everything_also_where_nobody_reads_the_stream() -> None:
    """`execute` feeds the same observers; pieces of text come only where somebody streams."""
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
