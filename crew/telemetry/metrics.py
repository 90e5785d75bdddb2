"""Sums up measurements for `executor.metrics()` and forwards them to OpenTelemetry instruments."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from crew.errors import describe
from crew.secrets.patterns import redact
from crew.telemetry import names
from crew.telemetry.names import METRICS

if TYPE_CHECKING:  # imported with the first meter, not with this package
    from opentelemetry.context import Context
    from opentelemetry.metrics import Meter

MAX_SERIES = 2_000

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricValue:
    """One metric: count, total, minimum and maximum of its measurements, also for each set of labels.

    All are 0 if nothing was measured yet.
    """

    unit: str
    count: int
    total: float
    minimum: float
    maximum: float
    by_labels: Mapping[Labels, MetricValue] = field(default_factory=dict, repr=False)

    @property
    def mean(self) -> float:
        """The total divided by the count."""
        return self.total / self.count if self.count else 0.0


class MetricSeries:
    """The sums of one metric for one set of labels."""

    __slots__ = ("count", "maximum", "minimum", "total")

    def __init__(self) -> None:
        self.count, self.total, self.minimum, self.maximum = 0, 0.0, math.inf, -math.inf

    def add(self, value: float) -> None:
        """Add one measurement."""
        self.count += 1
        self.total += value

        if value < self.minimum:
            self.minimum = value

        if value > self.maximum:
            self.maximum = value


class MetricTotals:
    """Sums up measurements; beyond 2,000 series, new sets of labels are counted without labels."""

    def __init__(self) -> None:
        self._series: dict[tuple[str, Labels], MetricSeries] = {}

    def series(self, name: str, labels: Labels) -> MetricSeries:
        """The series of this metric and these labels."""
        key = (name, labels)

        if key not in self._series and len(self._series) >= MAX_SERIES:
            key = (name, ())

        return self._series.setdefault(key, MetricSeries())

    def values(self) -> dict[str, MetricValue]:
        """Every metric with its measurements so far."""
        found: dict[str, dict[Labels, MetricValue]] = {name: {} for name in METRICS}

        for (name, labels), series in list(self._series.items()):
            if series.count:
                found[name][labels] = MetricValue(
                    unit=METRICS[name].unit,
                    count=series.count,
                    total=series.total,
                    minimum=series.minimum,
                    maximum=series.maximum,
                )

        return {name: _combine(METRICS[name].unit, parts) for name, parts in found.items()}


def _combine(unit: str, parts: dict[Labels, MetricValue]) -> MetricValue:
    values = list(parts.values())
    return MetricValue(
        unit=unit,
        count=sum(value.count for value in values),
        total=sum(value.total for value in values),
        minimum=min((value.minimum for value in values), default=0.0),
        maximum=max((value.maximum for value in values), default=0.0),
        by_labels=parts,
    )


MAX_QUEUED = 512

log = logging.getLogger("crew")

RecordMeasurement = Callable[[float, dict[str, str], "Context"], None]


class OTelInstruments:
    """One instrument for each metric of the names module, made once for a meter.

    Measurements are queued until the metrics are read, a run ends, or the queue is full: recorded together they cost
    less than one by one between the steps of runs. One that can't be recorded is lost, with one warning for all.
    """

    def __init__(self, meter: Meter) -> None:
        from opentelemetry.context import Context

        self._record: dict[str, RecordMeasurement] = {}
        self._queue: deque[tuple[RecordMeasurement, float, dict[str, str]]] = deque()
        # Not empty: instead of an empty context the SDK takes the current one, which may belong to another run.
        self._context = Context({"crew": True})
        self._warned = False

        for name, metric in METRICS.items():
            unit, text = metric.unit, metric.description

            match metric.kind:
                case "counter":
                    self._record[name] = meter.create_counter(name, unit=unit, description=text).add
                case "updown":
                    self._record[name] = meter.create_up_down_counter(name, unit=unit, description=text).add
                case "histogram":
                    buckets = metric.buckets or None
                    histogram = meter.create_histogram(
                        name, unit=unit, description=text, explicit_bucket_boundaries_advisory=buckets
                    )
                    self._record[name] = histogram.record

        meter.create_observable_counter("crew.telemetry.reading", callbacks=[self._read])

    def adder(self, name: str, attributes: dict[str, str]) -> Callable[[float], None]:
        """A function that queues measurements of this metric with these attributes."""
        queue, record = self._queue, self._record[name]

        def add(value: float) -> None:
            queue.append((record, value, attributes))

            if len(queue) >= MAX_QUEUED:
                self.flush()

        return add

    def flush(self) -> None:
        """Record the queued measurements."""
        queue, context = self._queue, self._context

        while queue:
            try:
                record, value, attributes = queue.popleft()
            except IndexError:
                return  # a reader's thread emptied the queue at the same time

            try:
                record(value, attributes, context)
            except Exception as error:  # the observer boundary: meters are user code
                self._warn_once(error)

    def _warn_once(self, error: Exception) -> None:
        if not self._warned:
            self._warned = True
            log.warning("A meter failed, and measurements are lost: %s", describe(error))

    def _read(self, options: object) -> tuple[()]:
        """The callback of an instrument without values, called before metrics are read."""
        self.flush()
        return ()


MAX_CACHED = 10_000

AddValue = Callable[[float], None]


class ModelCallMetrics(NamedTuple):
    """The adders for the requests of one agent to one model: looked up once a request, not once a measurement."""

    labels: Labels
    add_duration: AddValue
    add_input_tokens: AddValue
    add_output_tokens: AddValue
    add_cost: AddValue


class MetricRecorder:
    """Records measurements; caches the adder of each metric and set of labels, so that recording is cheap."""

    def __init__(self, totals: MetricTotals, instruments: OTelInstruments | None) -> None:
        self.instruments = instruments
        self._totals = totals
        self._adders: dict[tuple[str, Labels], AddValue] = {}
        self._calls: dict[tuple[str, str, str], ModelCallMetrics] = {}

    def __call__(self, name: str, value: float, labels: Labels) -> None:
        self.adder(name, labels)(value)

    def adder(self, name: str, labels: Labels) -> AddValue:
        """A function that records measurements of this metric with these labels."""
        add = self._adders.get((name, labels))

        if add is None:
            if len(self._adders) >= MAX_CACHED:
                self._adders.clear()

            add = self._adders[name, labels] = self._create_adder(name, labels)

        return add

    def calls(self, provider: str = "", model: str = "", agent: str = "") -> ModelCallMetrics:
        """The adders for the requests of this agent to this model."""
        known = self._calls.get((provider, model, agent))

        if known is None:
            if len(self._calls) >= MAX_CACHED:
                self._calls.clear()

            known = self._calls[provider, model, agent] = self._model_call_metrics(provider, model, agent)

        return known

    def _model_call_metrics(self, provider: str, model: str, agent: str) -> ModelCallMetrics:
        known = ((names.PROVIDER, provider), (names.REQUEST_MODEL, model), (names.AGENT_NAME, agent))
        labels = ((names.OPERATION, names.CHAT), *(label for label in known if label[1]))
        return ModelCallMetrics(
            labels,
            self.adder(names.CLIENT_DURATION, labels),
            self.adder(names.TOKEN_USAGE, (*labels, (names.TOKEN_TYPE, "input"))),
            self.adder(names.TOKEN_USAGE, (*labels, (names.TOKEN_TYPE, "output"))),
            self.adder(names.COST_USD, labels),
        )

    def _create_adder(self, name: str, labels: Labels) -> AddValue:
        add = self._totals.series(name, labels).add

        if self.instruments is None:
            return add

        export = self.instruments.adder(name, {key: redact(value) for key, value in labels})

        def both(value: float) -> None:
            add(value)
            export(value)

        return both

    def flush(self) -> None:
        """Record the queued measurements."""
        if self.instruments is not None:
            self.instruments.flush()
