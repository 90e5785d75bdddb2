"""Our metrics as OpenTelemetry instruments."""

from __future__ import annotations

from typing import Any

from crew.telemetry.figures import Labels
from crew.telemetry.names import METRICS
from crew.telemetry.redaction import safe


class Instruments:
    """One instrument for each metric of the names module, made once for a meter."""

    def __init__(self, meter: Any) -> None:
        self._labels: dict[Labels, dict[str, str]] = {}
        self._record: dict[str, Any] = {}

        for name, metric in METRICS.items():
            facts = {"unit": metric.unit, "description": metric.meaning}

            match metric.kind:
                case "counter":
                    self._record[name] = meter.create_counter(name, **facts).add
                case "updown":
                    self._record[name] = meter.create_up_down_counter(name, **facts).add
                case "histogram":
                    buckets = metric.buckets or None
                    made = meter.create_histogram(name, **facts, explicit_bucket_boundaries_advisory=buckets)
                    self._record[name] = made.record

    def record(self, name: str, value: float, labels: Labels) -> None:
        """One measurement."""
        attributes = self._labels.get(labels)

        if attributes is None:
            if len(self._labels) > 10_000:
                self._labels.clear()

            attributes = self._labels[labels] = {key: safe(held) for key, held in labels}

        self._record[name](value, attributes)
