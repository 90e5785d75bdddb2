"""Turning it on: by one call, by the standard variables, or by joining what the application has."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from opentelemetry import metrics, trace
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from crew import Agent, CrewExecutor, ScriptedProvider
from crew.errors import DefinitionError
from crew.telemetry import Telemetry, configure, current_telemetry, environment, reset

ROOT = Path(__file__).parents[2]


class Receiver(ThreadingHTTPServer):
    """An OTLP receiver that keeps what it got, by path."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.got: dict[str, list[bytes]] = {}
        self.refuses: dict[str, int] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def spans(self) -> list:
        found = [ExportTraceServiceRequest.FromString(body) for body in self.got.get("/v1/traces", [])]
        return [span for r in found for rs in r.resource_spans for ss in rs.scope_spans for span in ss.spans]

    @property
    def scopes(self) -> set[tuple[str, str]]:
        traces = [ExportTraceServiceRequest.FromString(body) for body in self.got.get("/v1/traces", [])]
        reports = [ExportMetricsServiceRequest.FromString(body) for body in self.got.get("/v1/metrics", [])]
        found = [ss.scope for r in traces for rs in r.resource_spans for ss in rs.scope_spans]
        found += [sm.scope for r in reports for rm in r.resource_metrics for sm in rm.scope_metrics]
        return {(scope.name, scope.version) for scope in found}

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
    """Takes everything that it is not told to refuse."""

    server: Receiver

    def do_POST(self) -> None:
        import gzip

        body = self.rfile.read(int(self.headers["Content-Length"]))
        body = gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body
        self.server.got.setdefault(self.path, []).append(body)
        self.send_response(self.server.refuses.get(self.path, 200))
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
    assert receiver.scopes == {("crew", version("crew-executor"))}
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


ONE_RUN = """
import crew
print(crew.CrewExecutor(crew.Agent("a", model=crew.ScriptedProvider("Hello."))).execute_sync("Go").trace_id)
"""


async def python(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A process of its own, with these of the OTEL_* variables and no others."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", code],
        env=kept | {"PYTHONPATH": str(ROOT)} | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


async def test_the_standard_variables_alone_turn_it_on(receiver: Receiver) -> None:
    """No line of code: OTEL_EXPORTER_OTLP_ENDPOINT and OTEL_SERVICE_NAME, and content by its own variable."""
    done = await python(
        ONE_RUN,
        OTEL_EXPORTER_OTLP_ENDPOINT=receiver.url,
        OTEL_SERVICE_NAME="by-variable",
        OTEL_METRICS_EXPORTER="none",
        OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT="true",
    )
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
    await python(code)


async def test_a_package_that_is_missing_is_seen_without_any_logging() -> None:
    """Whoever asked for exporting reads once on stderr why there is none, and what to do; the runs are as ever."""
    missing = 'import sys\nsys.modules["opentelemetry.exporter.otlp.proto.http.trace_exporter"] = None\n'
    done = await python(missing + ONE_RUN * 2, OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9")
    assert done.stdout == "\n\n"
    assert done.stderr.count("RuntimeWarning") == 1
    assert "pip install opentelemetry-exporter-otlp-proto-http" in done.stderr


def test_the_package_is_there_after_make() -> None:
    """What the targets that run examples install is enough for the one that exports."""
    command = ["make", "--dry-run", "--always-make", ".venv/.run-stamp"]
    planned = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "--editable '.[otlp,serve]'" in planned.stdout


async def test_the_console_is_an_exporter() -> None:
    """It prints to stdout what would be sent, and needs no address."""
    done = await python(ONE_RUN, OTEL_TRACES_EXPORTER="console", OTEL_METRICS_EXPORTER="console")
    assert '"name": "invoke_workflow a"' in done.stdout
    assert '"name": "gen_ai.client.token.usage"' in done.stdout
    assert done.stderr == ""


async def test_several_exporters_may_be_named(receiver: Receiver) -> None:
    """Separated by commas."""
    names = "otlp, console"
    done = await python(ONE_RUN, OTEL_TRACES_EXPORTER=names, OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=f"{receiver.url}/x")
    assert '"name": "invoke_workflow a"' in done.stdout
    assert list(receiver.got) == ["/x"]


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        (
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "localhost:4318"},
            (
                "Can't export as the OTEL_* variables ask: OTEL_EXPORTER_OTLP_ENDPOINT must be a "
                "URL such as http://127.0.0.1:4318, not 'localhost:4318'"
            ),
        ),
        (
            {"OTEL_TRACES_EXPORTER": "jaeger", "OTEL_METRICS_EXPORTER": "none"},
            ("OTEL_TRACES_EXPORTER names the unknown exporter 'jaeger'. Available: otlp, console, none."),
        ),
        (
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "{url}", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
            (
                "OTEL_EXPORTER_OTLP_PROTOCOL is 'grpc', but only OTLP over HTTP (http/protobuf) is supported: "
                "use the receiver's HTTP port, usually 4318."
            ),
        ),
    ],
)
async def test_variables_that_ask_for_what_can_not_be_are_told(
    variables: dict[str, str],
    told: str,
    receiver: Receiver,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Once, however many runs there are, and the runs are the same."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value.format(url=receiver.url))

    executor = CrewExecutor(Agent("a", model=ScriptedProvider(lambda request: "Hello.")))
    assert [(await executor.execute("Go")).output for _ in range(2)] == ["Hello.", "Hello."]
    await current_telemetry().shutdown()
    assert [record.getMessage() for record in caplog.records] == [told]


async def test_a_receiver_without_metrics_is_told_with_the_way_out(
    receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    """Jaeger answers 404; the exporter's own words are in ours."""
    receiver.refuses["/v1/metrics"] = 404
    telemetry = configure(otlp_endpoint=receiver.url)
    await CrewExecutor(Agent("a", model=ScriptedProvider("Hello."))).execute("Go")
    await telemetry.shutdown()
    (told,) = [record.getMessage() for record in caplog.records]
    assert f"Can't export metrics to {receiver.url}/v1/metrics: 404 Not Found. Reports lost so far: 1." in told
    assert 'metrics="off" or OTEL_METRICS_EXPORTER=none' in told


@pytest.mark.parametrize(
    ("status", "reason", "hint"),
    [
        (401, "401 Unauthorized", "Check the key in OTEL_EXPORTER_OTLP_HEADERS."),
        (404, "404 Not Found", "Check the address: the server there takes no traces at this path."),
        (None, "Connection refused", "Check that an OTLP receiver listens there for HTTP, usually on port 4318."),
    ],
)
async def test_each_kind_of_export_failure_has_its_reason_and_hint(
    status: int | None,
    reason: str,
    hint: str,
    receiver: Receiver,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Taken from the HTTP answer or the connection's error; the exporter's own log lines are not repeated."""
    monkeypatch.setattr("crew.telemetry.export.TIMEOUT_SECONDS", 2.0 if status is None else 4.0)  # it retries so long
    url = receiver.url if status else "http://127.0.0.1:1"
    receiver.refuses["/v1/traces"] = status or 500
    telemetry = configure(otlp_endpoint=url, metrics="off")
    await CrewExecutor(Agent("a", model=ScriptedProvider("Hello."))).execute("Go")
    await telemetry.shutdown()
    (message,) = [record.getMessage() for record in caplog.records]
    assert message == f"Can't export traces to {url}/v1/traces: {reason}. Spans lost so far: 3. {hint}"


def test_what_is_wrong_is_said_all_at_once() -> None:
    """Each with its value, and what would be right; nothing is turned on by halves."""
    wrong: dict[str, Any] = {
        "otlp_endpoint": 4318,
        "service_name": 5,
        "sample_ratio": "0.5",
        "console": "no",
        "capture_content": "false",
        "logs": "jsn",
        "metrics": "on",
        "scope": "all",
        "log_level": 10,
    }

    with pytest.raises(DefinitionError) as raised:
        configure(**wrong)

    assert raised.value.problems == (
        "otlp_endpoint must be a URL such as http://127.0.0.1:4318, not 4318",
        "service_name must be a string, not 5",
        "console must be true or false, not 'no'",
        "sample_ratio must be a number from 0 to 1, not '0.5'",
        "capture_content must be true or false, not 'false'",
        "logs must be 'off', 'console' or 'json', not 'jsn'",
        "log_level must be DEBUG, INFO, WARNING or ERROR, not 10",
        "metrics must be 'otlp' or 'off', not 'on'",
        "scope must be 'crew' or 'global', not 'all'",
    )


@pytest.mark.parametrize(
    "given", ["localhost:4318", "http://", "ftp://h", "http://h:port", "http://h:0", "http://[::1"]
)
def test_what_is_no_address_is_refused(given: str) -> None:
    """Before the first batch is lost."""
    with pytest.raises(DefinitionError, match="otlp_endpoint must be a URL"):
        configure(otlp_endpoint=given)


def test_content_is_not_let_out_by_a_text_that_says_false() -> None:
    """Any text is true, so none is taken."""
    with pytest.raises(DefinitionError, match="capture_content must be true or false, not 'false'"):
        Telemetry(capture_content="false")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("variables", "traces", "metrics"),
    [
        ({}, None, None),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h:4318"}, ("otlp",), ("otlp",)),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://h:4318/v1/traces"}, ("otlp",), None),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://h:4318/v1/metrics"}, None, ("otlp",)),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h:4318", "OTEL_SDK_DISABLED": "true"}, (), ()),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h:4318", "OTEL_TRACES_EXPORTER": "none"}, (), ("otlp",)),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, ("otlp",), None),
        ({"OTEL_TRACES_EXPORTER": "Console, otlp", "OTEL_METRICS_EXPORTER": "x"}, ("console", "otlp"), ()),
    ],
)
def test_the_variables_mean_what_the_standard_says(
    variables: dict[str, str], traces: tuple[str, ...] | None, metrics: tuple[str, ...] | None
) -> None:
    """An address turns it on, and each signal has a variable that names its exporters."""
    assert environment.requested_exporters("traces", variables) == traces
    assert environment.requested_exporters("metrics", variables) == metrics


@pytest.mark.parametrize(
    ("given", "expected"), [("", False), ("false", False), ("NO_CONTENT", False), ("true", True), ("span_only", True)]
)
def test_content_is_captured_only_when_the_variable_says_so(given: str, expected: bool) -> None:
    """The conventions' values, and the older true and false."""
    assert (
        environment.content_capture_enabled({"OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": given}) is expected
    )


async def test_a_configuration_files_block_turns_it_on(receiver: Receiver, tmp_path: Path) -> None:
    """`telemetry:` in config.yaml, read twice, is one set of exporters."""
    (tmp_path / "config.yaml").write_text(
        f"telemetry: {{otlp_endpoint: {receiver.url}, service_name: by-file, capture_content: true}}\n"
    )
    agent = Agent("a", model=ScriptedProvider(lambda request: "Hello."))
    executors = [CrewExecutor.from_config(tmp_path / "config.yaml", agent) for _ in range(2)]
    results = [await executor.execute("Go") for executor in executors]
    assert executors[0]._current_telemetry() is executors[1]._current_telemetry()
    await executors[0]._current_telemetry().shutdown()
    assert {span.trace_id.hex() for span in receiver.spans} == {result.trace_id for result in results}
    assert receiver.services == {"by-file"}
    assert "gen_ai.input.messages" in {a.key for span in receiver.spans for a in span.attributes}
