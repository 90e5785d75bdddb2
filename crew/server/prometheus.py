"""`GET /metrics`: the metrics of all executors, and figures of the service, as Prometheus text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute

from crew.server.access import Principal
from crew.server.routing import route
from crew.server.server_context import ServerContext
from crew.telemetry.metrics import Labels, MetricValue
from crew.telemetry.names import METRICS

_INVALID = re.compile("[^a-zA-Z0-9_]")
_UNITS = {"s": "_seconds", "USD": "_usd"}
_CURRENT = "gauge"
_TYPES = {"counter": "counter", "updown": _CURRENT, "histogram": "summary"}


def metric_routes(context: ServerContext) -> Sequence[BaseRoute]:
    """The route of the metrics."""

    async def read_metrics(request: Request, principal: Principal) -> Response:
        """The metrics in the text format of Prometheus."""
        return PlainTextResponse("\n".join([*metric_lines(context), ""]), media_type="text/plain; version=0.0.4")

    return [route(context, "/metrics", read_metrics, media_types=["text/plain"])]


def metric_lines(context: ServerContext) -> Iterator[str]:
    """The lines of the text: each metric with its help, its type, and one line for each set of labels and crew."""
    yield from _current_value("crew_server_active_runs", "Runs that this process drives.", context.hub.active_runs)
    yield from _current_value("crew_server_event_readers", "Open streams of events.", context.hub.readers)
    values = {crew: executor.metrics() for crew, executor in context.executors.items()}

    for name, metric in METRICS.items():
        type = _TYPES[metric.kind]
        shown = _INVALID.sub("_", name) + _UNITS.get(metric.unit, "") + ("_total" if type == "counter" else "")
        yield f"# HELP {shown} {metric.description}"
        yield f"# TYPE {shown} {type}"

        for crew, measured in values.items():
            for labels, value in measured[name].by_labels.items():
                yield from _value_lines(shown, (("crew", crew), *labels), value, type)


def _current_value(name: str, help: str, value: int) -> Iterator[str]:
    yield f"# HELP {name} {help}"
    yield f"# TYPE {name} {_CURRENT}"
    yield f"{name} {value}"


def _value_lines(name: str, labels: Labels, value: MetricValue, type: str) -> Iterator[str]:
    pairs = ",".join(f'{_INVALID.sub("_", key)}="{_escape(text)}"' for key, text in labels)

    if type == "summary":
        yield f"{name}_count{{{pairs}}} {value.count}"
        yield f"{name}_sum{{{pairs}}} {value.total:.10g}"
    else:
        yield f"{name}{{{pairs}}} {value.total:.10g}"


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
