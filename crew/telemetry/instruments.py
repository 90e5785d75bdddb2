"""Our metrics as OpenTelemetry instruments."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Any

from crew.errors import describe
from crew.telemetry.names import METRICS

MOST_WAITING = 512

log = logging.getLogger("crew")

Tell = Callable[[float, dict[str, str], Any], None]


class Instruments:
    """One instrument for each metric of the names module, made once for a meter.

    Measurements wait until somebody reads the metrics, a run is over, or many are waiting: told one after the other
    they cost less than each between the steps of runs. One that can't be told is lost, with one warning for all.
    """

    def __init__(self, meter: Any) -> None:
        from opentelemetry.context import Context

        self._tell: dict[str, Tell] = {}
        self._waiting: deque[tuple[Tell, float, dict[str, str]]] = deque()
        # Not an empty one, in whose place the current one is taken: that may be another run's by then.
        self._context = Context({"crew": True})
        self._said = False

        for name, metric in METRICS.items():
            facts = {"unit": metric.unit, "description": metric.meaning}

            match metric.kind:
                case "counter":
                    self._tell[name] = meter.create_counter(name, **facts).add
                case "updown":
                    self._tell[name] = meter.create_up_down_counter(name, **facts).add
                case "histogram":
                    buckets = metric.buckets or None
                    made = meter.create_histogram(name, **facts, explicit_bucket_boundaries_advisory=buckets)
                    self._tell[name] = made.record

        meter.create_observable_gauge("crew.telemetry.reading", callbacks=[self._read])

    def way(self, name: str, attributes: dict[str, str]) -> Callable[[float], None]:
        """What takes the measurements of this metric under these attributes."""
        waiting, tell = self._waiting, self._tell[name]

        def take(value: float) -> None:
            waiting.append((tell, value, attributes))

            if len(waiting) >= MOST_WAITING:
                self.settle()

        return take

    def settle(self) -> None:
        """Tell what waits."""
        waiting, context = self._waiting, self._context

        while waiting:
            try:
                tell, value, attributes = waiting.popleft()
            except IndexError:
                return  # a reader's thread was here at the same time

            try:
                tell(value, attributes, context)
            except Exception as error:  # the observer boundary: a meter may be anybody's code
                self._complain(error)

    def _complain(self, error: Exception) -> None:
        if not self._said:
            self._said = True
            log.warning("a meter failed, and some measurements are lost: %s", describe(error))

    def _read(self, options: Any) -> tuple[()]:
        """Called before metrics are read; it has nothing to show of its own."""
        self.settle()
        return ()
