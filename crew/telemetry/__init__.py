"""OpenTelemetry spans and metrics, and structured logs; off until `configure` or an OTEL_* variable turns them on."""

from typing import TYPE_CHECKING

from crew.lazy_names import lazy_names

if TYPE_CHECKING:
    from crew.secrets.registry import register_secret
    from crew.telemetry.executor_telemetry import ExecutorTelemetry, Telemetry
    from crew.telemetry.metrics import MetricValue
    from crew.telemetry.setup import configure, current_telemetry, reset, telemetry_from_settings
    from crew.telemetry.text_tree import Tree
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "crew.secrets.registry": "register_secret",
            "crew.telemetry.executor_telemetry": "ExecutorTelemetry Telemetry",
            "crew.telemetry.metrics": "MetricValue",
            "crew.telemetry.setup": "configure current_telemetry reset telemetry_from_settings",
            "crew.telemetry.text_tree": "Tree",
        },
    )

__all__ = [
    "ExecutorTelemetry",
    "MetricValue",
    "Telemetry",
    "Tree",
    "configure",
    "current_telemetry",
    "register_secret",
    "reset",
    "telemetry_from_settings",
]
