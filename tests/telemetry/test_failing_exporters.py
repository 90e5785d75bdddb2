"""Whoever watches, and however badly: the run is the same."""

import asyncio
import itertools
import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult

from crew import Agent, Crew, CrewExecutor, ScriptedProvider
from crew.telemetry import Telemetry, configure, reset
from crew.telemetry.environment import Signal
from crew.telemetry.export import PAUSE_SECONDS, ExportGuard, create_tracer_provider

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def nothing_configured() -> Iterator[None]:
    """Each test begins and ends with nothing configured."""
    reset()
    yield
    reset()


class Raising(SpanProcessor):
    """Raises where it can."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.open = 0

    def on_start(self, span: object, parent_context: object = None) -> None:
        self.open += 1

        if self.where == "start":
            raise OSError("no")

    def on_end(self, span: ReadableSpan) -> None:
        self.open -= 1

        if self.where == "end":
            raise OSError("no")


@pytest.mark.parametrize("where", ["start", "end"])
async def test_a_processor_that_raises_changes_nothing(
    where: str, support: Callable[..., Crew], caplog: pytest.LogCaptureFixture
) -> None:
    """One warning, no trace for that run, and what was open is ended."""
    expected = await CrewExecutor(support()).execute("Go")
    processor = Raising(where)
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(processor)
    result = await CrewExecutor(support(), telemetry=Telemetry(tracer_provider=provider)).execute("Go")
    assert (result.output, result.usage) == (expected.output, expected.usage)
    told = [
        record
        for record in caplog.records
        if record.levelno == logging.WARNING and "run" in record.getMessage().lower()
    ]
    assert len([r for r in told if "disabled" in r.getMessage() or "not traced" in r.getMessage()]) == 1

    if where == "end":
        assert processor.open == 0


class _Refusing:
    """A meter provider of somebody else: whose meters can't be had, or whose instruments raise."""

    def __init__(self, *, from_the_start: bool) -> None:
        self._from_the_start = from_the_start

    def get_meter(self, name: str, version: str) -> "_Refusing":
        if self._from_the_start:
            raise RuntimeError("no meter today")

        return self

    def create_counter(self, name: str, **facts: object) -> "_Refusing":
        return self

    create_histogram = create_up_down_counter = create_observable_counter = create_counter

    def add(self, value: float, attributes: object, context: object) -> None:
        raise RuntimeError("no measurement today")

    record = add


@pytest.mark.parametrize("from_the_start", [True, False])
async def test_a_meter_that_raises_costs_one_warning(from_the_start: bool, caplog: pytest.LogCaptureFixture) -> None:
    """The run is the same, its figures in the process too."""
    telemetry = Telemetry(meter_provider=_Refusing(from_the_start=from_the_start))
    agent = Agent("a", instructions="Answer.", model=ScriptedProvider("Done."))
    executor = CrewExecutor(agent, telemetry=telemetry)

    with caplog.at_level(logging.WARNING, logger="crew"):
        result = await executor.execute("Go")

    assert result.output == "Done."
    assert executor.metrics()["gen_ai.client.token.usage"].count == 2
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1


async def test_an_exporter_that_is_down_costs_one_warning_and_a_bounded_time(
    support: Callable[..., Crew], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody listens there; the run returns, `aclose` too, and it is said once."""
    monkeypatch.setattr("crew.telemetry.export.TIMEOUT_SECONDS", 2.0)  # the test waits until it stops retrying
    others = set(threading.enumerate())

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

    telemetry = configure(otlp_endpoint=f"http://127.0.0.1:{port}", metrics="off")
    executor = CrewExecutor(support())

    for _ in range(3):
        assert (await executor.execute("Go")).output == "The end."
        await telemetry.flush(0.2)

    await telemetry.shutdown(0.2)
    ours = [r for r in caplog.records if r.name == "crew" and "Can't export" in r.getMessage()]
    assert len(ours) <= 1
    assert len([r for r in caplog.records if r.name.startswith("opentelemetry.exporter")]) <= 1

    # The exporter draws its waits from the global `random`, which must hold still while other tests draw examples.
    async with asyncio.timeout(60):
        for thread in set(threading.enumerate()) - others:
            while thread.is_alive() and thread.name != "crew-idle":  # an idle thread ends after ten seconds
                await asyncio.sleep(0.02)


async def test_a_slow_exporter_does_not_hold_aclose_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    """Closing waits for its bound, says so, and goes on."""
    release = threading.Event()

    class Slow:
        def force_flush(self, timeout_millis: int) -> bool:
            return release.wait(60)

    try:
        await Telemetry(tracer_provider=Slow()).flush(0.05)
    finally:
        release.set()

    assert "was not flushed within 0.05 s" in caplog.text


async def test_traces_and_metrics_are_flushed_within_one_bound() -> None:
    """Each waits for the other to have begun, which would never be if they went one after the other."""
    both = threading.Barrier(2)

    class Met:
        flushed = False

        def force_flush(self, timeout_millis: int) -> bool:
            both.wait(60)
            self.flushed = True
            return True

    traces, metrics = Met(), Met()
    await Telemetry(tracer_provider=traces, meter_provider=metrics).flush(30)
    assert (traces.flushed, metrics.flushed) == (True, True)


@dataclass
class Receiving:
    """An exporter's `export` whose receiver is away, or answers after so many seconds of a clock that only it moves."""

    takes: float = 0.0
    away: bool = True
    now: float = 0.0
    calls: int = 0

    def __call__(self, batch: object, **options: object) -> SpanExportResult:
        self.calls += 1
        self.now += self.takes
        return SpanExportResult.FAILURE if self.away else SpanExportResult.SUCCESS

    def guarded(self, signal: Signal = "traces") -> ExportGuard:
        return ExportGuard(self, SpanExportResult, signal, f"http://127.0.0.1:9/v1/{signal}", clock=lambda: self.now)


@pytest.mark.parametrize("signal", ["traces", "metrics"])
def test_an_exporter_that_has_just_been_waited_for_in_vain_is_left_alone(signal: Signal) -> None:
    """So closing and the exit of the process don't both wait for it; later it is tried again."""
    receiving = Receiving(takes=4.0)
    export = receiving.guarded(signal)
    assert {export((), timeout_millis=1), export(())} == {SpanExportResult.FAILURE}
    assert receiving.calls == 1
    receiving.now += PAUSE_SECONDS
    export(())
    assert receiving.calls == 2


def test_an_exporter_that_is_refused_at_once_is_not_left_alone() -> None:
    """One batch that a receiver does not like must not cost the next ones."""
    receiving = Receiving()
    export = receiving.guarded()
    export(())
    receiving.away = False
    assert export(()) is SpanExportResult.SUCCESS


def test_what_is_lost_is_said_when_it_begins_and_when_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    """With the address and what to check; batches that were never tried count."""
    receiving = Receiving(takes=4.0)
    export = receiving.guarded()

    for batch in ("abc", "de", "f"):
        export(batch)

    receiving.away = False
    receiving.now += PAUSE_SECONDS

    for batch in ("gh", "i"):
        export(batch)

    began, ended = [record.getMessage() for record in caplog.records]
    assert "Can't export traces to http://127.0.0.1:9/v1/traces" in began
    assert "Spans lost so far: 3" in began
    assert "Check that an OTLP receiver listens there" in began
    assert ended == "Exporting traces to http://127.0.0.1:9/v1/traces works again; spans lost: 6"


def test_an_exporter_that_raises_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """And never ends the thread that it runs on; a password in the address is not told at all."""

    def bad(batch: object) -> SpanExportResult:
        raise OSError("no")

    export = ExportGuard(bad, SpanExportResult, "traces", "https://me:hunter2hunter2@example.com/v1/traces")
    assert {export(()), export(())} == {SpanExportResult.FAILURE}
    (told,) = [record.getMessage() for record in caplog.records]
    assert "Can't export traces" in told
    assert "OSError: no" in told
    assert "hunter2" not in told


def test_what_an_application_s_own_exporter_says_passes(caplog: pytest.LogCaptureFixture) -> None:
    """Only what is said while we call ours is taken into our line."""
    create_tracer_provider(["otlp"], "http://127.0.0.1:1", None, None).shutdown()
    logging.getLogger("opentelemetry.exporter.otlp.proto.http.trace_exporter").error("theirs")
    assert caplog.messages == ["theirs"]


async def test_a_burst_of_ten_thousand_spans_is_not_dropped() -> None:
    """The queue holds it while the exporter is at work."""
    gate, got = threading.Event(), []

    def held(spans: tuple[ReadableSpan, ...]) -> SpanExportResult:
        gate.wait(60)
        got.extend(spans)
        return SpanExportResult.SUCCESS

    provider = create_tracer_provider(["otlp"], "http://127.0.0.1:1", None, None)
    (processor,) = provider._active_span_processor._span_processors
    processor._batch_processor._exporter.export = held
    tracer = provider.get_tracer("t")

    for number in range(10_000):
        tracer.start_span(str(number)).end()

    gate.set()
    await asyncio.to_thread(provider.shutdown)
    assert len(got) == 10_000


def test_import_crew_loads_neither_opentelemetry_nor_structlog() -> None:
    """And a run that nobody watches does not load them either."""
    code = """
import logging, os, sys, threading
before = dict(os.environ)
import crew
assert not [m for m in sys.modules if m.split(".")[0] in ("opentelemetry", "structlog", "openai", "anthropic")]
assert threading.active_count() == 1 and not logging.getLogger("crew").handlers and before == dict(os.environ)
result = crew.CrewExecutor(crew.Agent("a", model=crew.ScriptedProvider("Hello."))).execute_sync("Go")
assert result.trace_id == ""
assert not [m for m in sys.modules if m.split(".")[0] in ("opentelemetry", "structlog")]
assert threading.active_count() == 1
"""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (done.stdout, done.stderr) == ("", "")


async def test_a_run_that_is_not_sampled_is_not_traced() -> None:
    """And costs no spans."""
    from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

    provider = TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False)
    executor = CrewExecutor(Agent("a", model=ScriptedProvider("Hi.")), telemetry=Telemetry(tracer_provider=provider))
    assert (await executor.execute("Go")).trace_id == ""


async def test_a_run_reads_its_clock_as_often_whether_it_is_measured_or_not() -> None:
    """A clock that counts its readings shows that nobody else reads it; the root span's start is the one exception."""

    async def times(telemetry: Telemetry) -> list[float]:
        ticks = itertools.count(1)
        agent = Agent("a", model=ScriptedProvider("Hi."))
        executor = CrewExecutor(agent, clock=lambda: float(next(ticks)), monotonic=lambda: 0.0, telemetry=telemetry)
        return [message.time for message in (await executor.execute("Go")).transcript]

    plain = await times(Telemetry())
    traced = await times(Telemetry(tracer_provider=TracerProvider(shutdown_on_exit=False)))
    assert plain[0] == 1.0
    assert traced == [time + 1 for time in plain]
