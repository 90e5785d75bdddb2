"""What was measured, kept in this process: the numbers behind `executor.metrics()`."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from crew.errors import describe
from crew.secrets.patterns import redact
from crew.telemetry import names
from crew.telemetry.names import METRICS

MAX_SERIES = 2_000

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricValue:
    """One metric: how often it was measured, the sum, the least, the most, and the same for each set of labels.

    What was not measured yet is 0 throughout.
    """

    unit: str
    count: int
    total: float
    minimum: float
    maximum: float
    by_labels: Mapping[Labels, MetricValue] = field(default_factory=dict, repr=False)

    @property
    def mean(self) -> float:
        """The sum by the count."""
        return self.total / self.count if self.count else 0.0


class MetricSeries:
    """One metric under one set of labels."""

    __slots__ = ("count", "least", "most", "total")

    def __init__(self) -> None:
        self.count, self.total, self.least, self.most = 0, 0.0, math.inf, -math.inf

    def add(self, value: float) -> None:
        """One measurement."""
        self.count += 1
        self.total += value

        if value < self.least:
            self.least = value

        if value > self.most:
            self.most = value


class MetricTotals:
    """Adds up what it is told; at most 2,000 sets of labels, what is beyond them counts without labels."""

    def __init__(self) -> None:
        self._series: dict[tuple[str, Labels], MetricSeries] = {}

    def series(self, name: str, labels: Labels) -> MetricSeries:
        """Where the measurements of this kind are added up."""
        key = (name, labels)

        if key not in self._series and len(self._series) >= MAX_SERIES:
            key = (name, ())

        return self._series.setdefault(key, MetricSeries())

    def values(self) -> dict[str, MetricValue]:
        """Every metric that there is, with what it came to so far."""
        found: dict[str, dict[Labels, MetricValue]] = {name: {} for name in METRICS}

        for (name, labels), of in list(self._series.items()):
            if of.count:
                unit = METRICS[name].unit
                figure = MetricValue(unit=unit, count=of.count, total=of.total, minimum=of.least, maximum=of.most)
                found[name][labels] = figure

        return {name: _combine(METRICS[name].unit, parts) for name, parts in found.items()}


def _combine(unit: str, parts: dict[Labels, MetricValue]) -> MetricValue:
    all_ = list(parts.values())
    return MetricValue(
        unit=unit,
        count=sum(f.count for f in all_),
        total=sum(f.total for f in all_),
        minimum=min((f.minimum for f in all_), default=0.0),
        maximum=max((f.maximum for f in all_), default=0.0),
        by_labels=parts,
    )


MAX_QUEUED = 512

log = logging.getLogger("crew")

RecordMeasurement = Callable[[float, dict[str, str], Any], None]


class OTelInstruments:
    """One instrument for each metric of the names module, made once for a meter.

    Measurements wait until somebody reads the metrics, a run is over, or many are waiting: told one after the other
    they cost less than each between the steps of runs. One that can't be told is lost, with one warning for all.
    """

    def __init__(self, meter: Any) -> None:
        from opentelemetry.context import Context

        self._tell: dict[str, RecordMeasurement] = {}
        self._waiting: deque[tuple[RecordMeasurement, float, dict[str, str]]] = deque()
        # Not an empty one, in whose place the current one is taken: that may be another run's by then.
        self._context = Context({"crew": True})
        self._warned = False

        for name, metric in METRICS.items():
            facts = {"unit": metric.unit, "description": metric.description}

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

    def adder(self, name: str, attributes: dict[str, str]) -> Callable[[float], None]:
        """What takes the measurements of this metric under these attributes."""
        waiting, tell = self._waiting, self._tell[name]

        def take(value: float) -> None:
            waiting.append((tell, value, attributes))

            if len(waiting) >= MAX_QUEUED:
                self.flush()

        return take

    def flush(self) -> None:
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
                self._warn_once(error)

    def _warn_once(self, error: Exception) -> None:
        if not self._warned:
            self._warned = True
            log.warning("a meter failed, and some measurements are lost: %s", describe(error))

    def _read(self, options: Any) -> tuple[()]:
        """Called before metrics are read; it has nothing to show of its own."""
        self.flush()
        return ()


MAX_CACHED = 10_000

AddValue = Callable[[float], None]


class ModelCallMetrics(NamedTuple):
    """What is measured of the calls of one agent to one model: looked up once a call, not once a measurement."""

    labels: Labels
    add_duration: AddValue
    add_input_tokens: AddValue
    add_output_tokens: AddValue
    add_cost: AddValue


class MetricRecorder:
    """Knows the way of each metric under each set of labels, so that a measurement costs little more than its sum."""

    def __init__(self, figures: MetricTotals, instruments: OTelInstruments | None) -> None:
        self.instruments = instruments
        self._figures = figures
        self._adders: dict[tuple[str, Labels], AddValue] = {}
        self._calls: dict[tuple[str, str, str], ModelCallMetrics] = {}

    def __call__(self, name: str, value: float, labels: Labels) -> None:
        self.adder(name, labels)(value)

    def adder(self, name: str, labels: Labels) -> AddValue:
        """What takes the measurements of this metric under these labels."""
        way = self._adders.get((name, labels))

        if way is None:
            if len(self._adders) >= MAX_CACHED:
                self._adders.clear()

            way = self._adders[name, labels] = self._create_adder(name, labels)

        return way

    def calls(self, provider: str = "", model: str = "", agent: str = "") -> ModelCallMetrics:
        """The ways of everything that is measured of this agent's calls to this model."""
        known = self._calls.get((provider, model, agent))

        if known is None:
            if len(self._calls) >= MAX_CACHED:
                self._calls.clear()

            known = self._calls[provider, model, agent] = self._model_call_metrics(provider, model, agent)

        return known

    def _model_call_metrics(self, provider: str, model: str, agent: str) -> ModelCallMetrics:
        said = ((names.PROVIDER, provider), (names.REQUEST_MODEL, model), (names.AGENT_NAME, agent))
        labels = ((names.OPERATION, names.CHAT), *(label for label in said if label[1]))
        return ModelCallMetrics(
            labels,
            self.adder(names.CLIENT_DURATION, labels),
            self.adder(names.TOKEN_USAGE, (*labels, (names.TOKEN_TYPE, "input"))),
            self.adder(names.TOKEN_USAGE, (*labels, (names.TOKEN_TYPE, "output"))),
            self.adder(names.COST_USD, labels),
        )

    def _create_adder(self, name: str, labels: Labels) -> AddValue:
        add = self._figures.series(name, labels).add

        if self.instruments is None:
            return add

        tell = self.instruments.adder(name, {key: redact(held) for key, held in labels})

        def both(value: float) -> None:
            add(value)
            tell(value)

        return both

    def flush(self) -> None:
        """Nothing waits any more."""
        if self.instruments is not None:
            self.instruments.flush()
