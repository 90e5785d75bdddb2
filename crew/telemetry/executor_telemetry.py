"""`Telemetry` holds the OpenTelemetry providers; `ExecutorTelemetry` observes the runs of one executor."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from crew.agents.crew import Crew
from crew.engine.concurrency import run_in_daemon_thread
from crew.errors import DefinitionError, describe
from crew.runs.state import RunState
from crew.secrets.patterns import redact
from crew.secrets.scrubbing import Scrubber
from crew.settings import value_problems
from crew.telemetry import names
from crew.telemetry.environment import content_capture_enabled
from crew.telemetry.logs import add_null_handler, bind_logger, has_listeners
from crew.telemetry.metrics import MetricRecorder, MetricTotals, MetricValue, OTelInstruments
from crew.telemetry.otel_writer import OTelSpanWriter, to_nanoseconds
from crew.telemetry.run_metrics import RunMetrics
from crew.telemetry.run_telemetry import RunTelemetry
from crew.telemetry.span_builder import SpanBuilder

if TYPE_CHECKING:  # imported with the first traced run, not with this package
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Link, Span, Tracer, TracerProvider

FLUSH_SECONDS = 5.0

log = logging.getLogger("crew")

_INSTRUMENTS: WeakKeyDictionary[MeterProvider, OTelInstruments] = WeakKeyDictionary()


class Telemetry:
    """Where spans and metrics go: to these providers, or else to the global ones, if the application set them.

    `capture_content` decides whether message content is exported; None leaves it to the environment.
    """

    def __init__(
        self,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        capture_content: bool | None = None,
    ) -> None:
        # A string such as "false" is truthy, and would export message contents.
        if problems := value_problems(bool | None, {"capture_content": capture_content}):
            raise DefinitionError("Telemetry", problems)

        self._tracer_provider, self._meter_provider = tracer_provider, meter_provider
        self.capture_content = content_capture_enabled() if capture_content is None else capture_content

    def tracer(self) -> Tracer | None:
        """The tracer for new runs; None if no provider records spans."""
        provider = self._tracer_provider

        if provider is None:
            # An application that set a global provider has imported this module; importing it here costs time.
            api = sys.modules.get("opentelemetry.trace")
            provider = api.get_tracer_provider() if api is not None else None

            if api is None or isinstance(provider, api.ProxyTracerProvider | api.NoOpTracerProvider):
                return None

        return None if provider is None else provider.get_tracer(names.SCOPE, _version())

    def instruments(self) -> OTelInstruments | None:
        """The instruments for new runs; None if no provider records metrics."""
        provider = self._meter_provider

        if provider is None:
            api = sys.modules.get("opentelemetry.metrics")
            provider = api.get_meter_provider() if api is not None else None

            if api is None or isinstance(provider, api.NoOpMeterProvider) or "Proxy" in type(provider).__name__:
                return None

        if provider is None:
            return None

        # One set per provider: of several instruments with one name, a provider reads only the first.
        if provider not in _INSTRUMENTS:
            _INSTRUMENTS[provider] = OTelInstruments(provider.get_meter(names.SCOPE, _version()))

        return _INSTRUMENTS[provider]

    async def flush(self, seconds: float = FLUSH_SECONDS) -> None:
        """Send what is queued; after `seconds` the exporter continues in the background, with one warning."""
        await self._call_providers("force_flush", "was not flushed", seconds, int(seconds * 1000))

    async def shutdown(self, seconds: float = FLUSH_SECONDS) -> None:
        """Flush and stop the exporters' threads. For providers that `configure` made, not for the application's."""
        await self.flush(seconds)
        await self._call_providers("shutdown", "did not shut down", seconds)

    async def _call_providers(self, method: str, failure: str, seconds: float, *arguments: int) -> None:
        """Call this method of both providers at the same time, so that the timeout covers both."""

        async def call(function: Callable[..., object]) -> None:
            try:
                async with asyncio.timeout(seconds):
                    await run_in_daemon_thread(lambda: function(*arguments), name=f"crew-telemetry-{method}")
            except Exception as error:  # the observer boundary: exporters are user code, and closing goes on
                log.warning("Telemetry %s within %g s: %s", failure, seconds, redact(describe(error)))

        async with asyncio.TaskGroup() as group:
            for provider in (self._tracer_provider, self._meter_provider):
                if hasattr(provider, method):
                    group.create_task(call(getattr(provider, method)))


@cache
def _version() -> str | None:
    """The version of the installed distribution; None if it is not installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("crew-executor")
    except PackageNotFoundError:
        return None


class ExecutorTelemetry:
    """Observes the runs of one executor and sums up their metrics."""

    def __init__(
        self,
        crew: Crew,
        max_messages: int | None,
        clock: Callable[[], float],
        telemetry: Callable[[], Telemetry],
    ) -> None:
        self._crew, self._max_messages, self._clock, self._telemetry = crew, max_messages, clock, telemetry
        self._totals = MetricTotals()
        self._recorder = MetricRecorder(self._totals, None)
        add_null_handler()

    def start_run(self, state: RunState, scrub: Scrubber | None = None, *, resumes: bool) -> RunTelemetry:
        """Observe a run; an error while starting spans leaves the run without a trace and changes nothing else."""
        telemetry = self._telemetry()
        writer = self._span_writer(telemetry, state, resumes=resumes)
        spans = None if writer is None else self._span_builder(telemetry, state, writer, resumes=resumes)
        traceparent = "" if writer is None or spans is None else writer.traceparent
        ids = {"run_id": state.run_id} | ({"trace_id": traceparent[3:35]} if traceparent else {})
        return RunTelemetry(
            state.run_id,
            traceparent,
            writer=writer,
            spans=spans,
            logger=bind_logger(**ids) if has_listeners() else None,
            scrub=scrub,
            metrics=RunMetrics(
                self._metric_recorder(telemetry), self._crew.name, state, self._max_messages, resumes=resumes
            ),
        )

    def metrics(self) -> dict[str, MetricValue]:
        """Every metric of this executor's runs so far, by name."""
        return self._totals.values()

    def _metric_recorder(self, telemetry: Telemetry) -> MetricRecorder:
        try:
            instruments = telemetry.instruments()
        except Exception as error:  # the observer boundary: meter providers are user code
            log.warning("Metrics are recorded only in this process: %s", redact(describe(error)))
            return self._recorder

        if self._recorder.instruments is not instruments:
            self._recorder = MetricRecorder(self._totals, instruments)

        return self._recorder

    def _span_writer(self, telemetry: Telemetry, state: RunState, *, resumes: bool) -> OTelSpanWriter | None:
        """A writer whose root span has started; None if spans are turned off or the tracer failed."""
        try:
            tracer = telemetry.tracer()

            if tracer is not None:
                began = self._clock()
                return OTelSpanWriter(tracer, self._root_span(tracer, state, began, resumes=resumes), began)
        except Exception as error:  # the observer boundary: tracer providers are user code
            log.warning("Run %s is not traced: %s", state.run_id, redact(describe(error)))

        return None

    def _span_builder(
        self, telemetry: Telemetry, state: RunState, writer: OTelSpanWriter, *, resumes: bool
    ) -> SpanBuilder | None:
        try:
            if writer.root.is_recording():
                return SpanBuilder(writer, self._crew, state, capture=telemetry.capture_content, resumes=resumes)
        except Exception as error:  # the observer boundary: tracer providers are user code
            log.warning("Run %s is not traced: %s", state.run_id, redact(describe(error)))

        return None

    def _root_span(self, tracer: Tracer, state: RunState, began: float, *, resumes: bool) -> Span:
        attributes = {
            names.OPERATION: names.INVOKE_WORKFLOW,
            names.WORKFLOW_NAME: self._crew.name,
            names.CONVERSATION_ID: state.conversation_id,
            names.RUN_ID: state.run_id,
        }
        links = _link_to_paused_run(state.traceparent) if resumes and state.traceparent else ()
        name = f"{names.INVOKE_WORKFLOW} {self._crew.name}"
        return tracer.start_span(name, attributes=attributes, links=links, start_time=to_nanoseconds(began))


def _link_to_paused_run(traceparent: str) -> tuple[Link, ...]:
    from opentelemetry.trace import Link, SpanContext, TraceFlags

    _, trace_id, span_id, flags = traceparent.split("-")
    context = SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=TraceFlags(int(flags, 16)))
    return (Link(context, {names.LINK_TYPE: "resumed"}),)
