"""Turning it on: by one call, by the standard variables, or by joining what the application has."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from opentelemetry import metrics, trace
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from crew import Agent, CrewExecutor, ScriptedProvider
from crew.errors import ConfigError
from crew.telemetry import configure, environment, reset

ROOT = Path(__file__).parents[2]


class Receiver(ThreadingHTTPServer):
    """An OTLP receiver that keeps what it got, by path."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.got: dict[str, list[bytes]] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def spans(self) -> list:
        found = [ExportTraceServiceRequest.FromString(body) for body in self.got.get("/v1/traces", [])]
        return [span for r in found for rs in r.resource_spans for ss in rs.scope_spans for span in ss.spans]

    @property
    def services(self) -> set[str]:
        found = [ExportTraceServiceRequest.FromString(body) for body in self.got.get("/v1/traces", [])]
        resources = [rs.resource for r in found for rs in r.resource_spans]
        return {a.value.string_value for r in resources for a in r.attributes if a.key == "service.name"}

    @property
    def metrics(self) -> set[str]:
        found = [ExportMetricsServiceRequest.FromString(body) for body in self.got.get("/v1/metrics", [])]
        return {m.name for r in found for rm in r.resource_metrics for sm in rm.scope_metrics for m in sm.metrics}


class Handler(BaseHTTPRequestHandler):
    """Takes everything."""

    server: Receiver

    def do_POST(self) -> None:
        import gzip

        body = self.rfile.read(int(self.headers["Content-Length"]))
        body = gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body
        self.server.got.setdefault(self.path, []).append(body)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """Up for the length of a test."""
    reset()

    with Receiver() as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()

    reset()


async def test_one_call_turns_exporting_on_and_touches_nothing_global(receiver: Receiver) -> None:
    """Spans and metrics arrive as bytes at the address; OpenTelemetry's global providers are as they were."""
    before = trace.get_tracer_provider(), metrics.get_meter_provider()
    telemetry = configure(otlp_endpoint=receiver.url, service_name="shop")
    result = await CrewExecutor(Agent("a", model=ScriptedProvider("Hello."))).execute("Go")
    await telemetry.shutdown()
    assert sorted(span.name for span in receiver.spans) == ["chat scripted", "invoke_agent a", "invoke_workflow a"]
    assert {span.trace_id.hex() for span in receiver.spans} == {result.trace_id}
    assert receiver.services == {"shop"}
    assert {"gen_ai.client.token.usage", "gen_ai.invoke_workflow.duration", "crew.runs.active"} <= receiver.metrics
    assert (trace.get_tracer_provider(), metrics.get_meter_provider()) == before


async def test_aclose_sends_what_is_waiting(receiver: Receiver) -> None:
    """Leaving `async with` is enough for a script."""
    telemetry = configure(otlp_endpoint=receiver.url, metrics="off")

    async with CrewExecutor(Agent("a", model=ScriptedProvider("Hello."))) as executor:
        await executor.execute("Go")

    assert len(receiver.spans) == 3
    await telemetry.shutdown()


async def test_a_sample_ratio_of_zero_sends_nothing(receiver: Receiver) -> None:
    """And the run is as it was."""
    telemetry = configure(otlp_endpoint=receiver.url, sample_ratio=0.0, metrics="off")
    assert (await CrewExecutor(Agent("a", model=ScriptedProvider("Hello."))).execute("Go")).trace_id == ""
    await telemetry.shutdown()
    assert receiver.got == {}


async def test_the_standard_variables_alone_turn_it_on(receiver: Receiver) -> None:
    """No line of code: OTEL_EXPORTER_OTLP_ENDPOINT and OTEL_SERVICE_NAME, and content by its own variable."""
    code = """
import crew
print(crew.CrewExecutor(crew.Agent("a", model=crew.ScriptedProvider("Hello."))).execute_sync("Go").trace_id)
"""
    variables = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url,
        "OTEL_SERVICE_NAME": "by-variable",
        "OTEL_METRICS_EXPORTER": "none",
        "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "true",
        "PYTHONPATH": str(ROOT),
    }
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", code],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert {span.trace_id.hex() for span in receiver.spans} == {done.stdout.strip()}
    assert receiver.services == {"by-variable"}
    keys = {a.key for span in receiver.spans for a in span.attributes}
    assert {"gen_ai.input.messages", "gen_ai.output.messages", "gen_ai.system_instructions"} <= keys
    assert "/v1/metrics" not in receiver.got


async def test_an_application_s_global_provider_is_joined() -> None:
    """Whoever set one up gets our spans in it, without a word to us."""
    code = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
import crew
executor = crew.CrewExecutor(crew.Agent("a", model=crew.ScriptedProvider(lambda request: "Hello.")))
assert executor.execute_sync("Go").trace_id == ""
kept, provider = InMemorySpanExporter(), TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(kept))
trace.set_tracer_provider(provider)
assert executor.execute_sync("Go").trace_id
assert len(kept.get_finished_spans()) == 3
"""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", code],
        env=environment | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_what_is_wrong_is_said_all_at_once() -> None:
    """Address, ratio and level."""
    with pytest.raises(ConfigError) as raised:
        configure(otlp_endpoint="localhost:4318", sample_ratio=2.0, log_level="LOUD")

    assert len(raised.value.problems) == 3


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://h:4318/v1/traces"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h:4318", "OTEL_SDK_DISABLED": "true"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h:4318", "OTEL_TRACES_EXPORTER": "none"}, False),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
    ],
)
def test_the_variables_mean_what_the_standard_says(variables: dict[str, str], expected: bool) -> None:
    """An address turns it on; a switch turns it off."""
    assert environment.exports(variables) is expected


@pytest.mark.parametrize(
    ("given", "expected"), [("", False), ("false", False), ("NO_CONTENT", False), ("true", True), ("span_only", True)]
)
def test_content_is_captured_only_when_the_variable_says_so(given: str, expected: bool) -> None:
    """The conventions' values, and the older true and false."""
    assert environment.captures_content({"OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": given}) is expected


async def test_a_configuration_files_block_turns_it_on(receiver: Receiver, tmp_path: Path) -> None:
    """`telemetry:` in config.yaml, read twice, is one set of exporters."""
    (tmp_path / "config.yaml").write_text(
        f"telemetry: {{otlp_endpoint: {receiver.url}, service_name: by-file, capture_content: true}}\n"
    )
    agent = Agent("a", model=ScriptedProvider(lambda request: "Hello."))
    executors = [CrewExecutor.from_config(tmp_path / "config.yaml", agent) for _ in range(2)]
    results = [await executor.execute("Go") for executor in executors]
    assert executors[0]._telemetry is executors[1]._telemetry
    await executors[0]._telemetry.shutdown()
    assert {span.trace_id.hex() for span in receiver.spans} == {result.trace_id for result in results}
    assert receiver.services == {"by-file"}
    assert "gen_ai.input.messages" in {a.key for span in receiver.spans for a in span.attributes}
