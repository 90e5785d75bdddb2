"""Starts a real Jaeger on loopback with in-memory storage, and waits until it is ready."""

import contextlib
import os
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from jaeger_program import JaegerFailed, find, tail, terminate

HOST = "127.0.0.1"
PORTS = {"otlp_grpc": 4317, "otlp_http": 4318, "query": 16686}
# Without a metrics reader and other extensions, so that only these ports are opened.
CONFIG = """\
service:
  extensions: [jaeger_storage, jaeger_query]
  pipelines: {traces: {receivers: [otlp], exporters: [jaeger_storage_exporter]}}
  telemetry: {metrics: {level: none}, logs: {level: warn}}
extensions:
  jaeger_storage: {backends: {memory: {memory: {max_traces: 100000}}}}
  jaeger_query:
    storage: {traces: memory}
    http: {endpoint: "@query"}
    grpc: {endpoint: "127.0.0.1:0"}
receivers:
  otlp: {protocols: {grpc: {endpoint: "@otlp_grpc"}, http: {endpoint: "@otlp_http"}}}
exporters:
  jaeger_storage_exporter: {trace_storage: memory}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Jaeger:
    process: subprocess.Popen[bytes]
    otlp_grpc: str
    otlp_http: str
    query: str


@contextlib.contextmanager
def running_jaeger(ports: dict[str, int] | None = None) -> Iterator[Jaeger]:
    """Run Jaeger during a `with` block, on free ports by default.

    Raises `JaegerUnavailable` if Jaeger is not installed (it is not built here), and `JaegerFailed` if it does not
    start.
    """
    with tempfile.TemporaryDirectory(prefix="crew-jaeger-") as folder:
        jaeger = launch(ports, Path(folder, "jaeger"))
        try:
            yield jaeger
        finally:
            terminate(jaeger.process)


def launch(ports: dict[str, int] | None, base: Path) -> Jaeger:
    if ports:
        return launch_on(ports, base)

    for _ in range(2):  # another process can take a free port before Jaeger opens it
        with contextlib.suppress(JaegerFailed):
            return launch_on(free_ports(), base)
    return launch_on(free_ports(), base)


def free_ports() -> dict[str, int]:
    with contextlib.ExitStack() as stack:
        held = {name: stack.enter_context(socket.create_server((HOST, 0))) for name in PORTS}
        return {name: server.getsockname()[1] for name, server in held.items()}


def launch_on(ports: dict[str, int], base: Path) -> Jaeger:
    """Start Jaeger with `base`.yaml, logging to `base`.log, and return when all ports accept connections."""
    binary, config, log = find(), base.with_suffix(".yaml"), base.with_suffix(".log")
    config.write_text(configure(ports))
    env = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    env["OTEL_TRACES_SAMPLER"] = "always_off"  # otherwise Jaeger traces its own queries
    command = [str(binary), "--config", str(config)]
    with log.open("wb") as out:  # in a new session: Ctrl-C reaches only this process, which then ends Jaeger
        process = subprocess.Popen(command, env=env, stdout=out, stderr=out, start_new_session=True)
    urls = {name: f"http://{HOST}:{port}" for name, port in ports.items()}
    jaeger = Jaeger(process=process, **urls)
    deadline = time.monotonic() + 30
    try:
        while not is_ready(jaeger):
            if process.poll() is not None or time.monotonic() > deadline:
                raise JaegerFailed(f"{binary} did not start:\n{tail(log)}")
            time.sleep(0.05)
    except BaseException:
        terminate(process)
        raise
    return jaeger


def configure(ports: dict[str, int]) -> str:
    text = CONFIG
    for name, port in ports.items():
        try:
            socket.create_server((HOST, port)).close()
        except OSError as error:
            advice = f"choose another with --{name.replace('_', '-')}, or --free-ports"
            reason = os.strerror(error.errno or 0)
            raise JaegerFailed(f"Can't open port {port} ({reason}): {advice}.") from error
        text = text.replace(f"@{name}", f"{HOST}:{port}")
    return text


# Ignores proxy settings of the environment, which must not apply to loopback.
direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def has_web_ui(jaeger: Jaeger) -> bool:
    """Whether Jaeger has its web UI; a build from Go modules has a placeholder page."""
    with direct.open(jaeger.query, timeout=10) as page:
        return b"not the Jaeger UI" not in page.read()


def is_ready(jaeger: Jaeger) -> bool:
    try:
        for url in (jaeger.otlp_grpc, jaeger.otlp_http):
            socket.create_connection((HOST, int(url.rpartition(":")[2])), timeout=1).close()
        with direct.open(f"{jaeger.query}/api/services", timeout=2):
            return True
    except OSError:
        return False
