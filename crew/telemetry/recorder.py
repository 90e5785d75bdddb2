"""Where measurements go: added up in this process, and told to the instruments of whoever reads them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from crew.telemetry import names
from crew.telemetry.figures import Figures, Labels
from crew.telemetry.instruments import Instruments
from crew.telemetry.redaction import safe

MOST_KNOWN = 10_000

Add = Callable[[float], None]


class Calls(NamedTuple):
    """What is measured of the calls of one agent to one model: looked up once a call, not once a measurement."""

    labels: Labels
    seconds: Add
    read: Add
    written: Add
    cost: Add


class Recorder:
    """Knows the way of each metric under each set of labels, so that a measurement costs little more than its sum."""

    def __init__(self, figures: Figures, instruments: Instruments | None) -> None:
        self.instruments = instruments
        self._figures = figures
        self._ways: dict[tuple[str, Labels], Add] = {}
        self._calls: dict[tuple[str, str, str], Calls] = {}

    def __call__(self, name: str, value: float, labels: Labels) -> None:
        self.way(name, labels)(value)

    def way(self, name: str, labels: Labels) -> Add:
        """What takes the measurements of this metric under these labels."""
        way = self._ways.get((name, labels))

        if way is None:
            if len(self._ways) >= MOST_KNOWN:
                self._ways.clear()

            way = self._ways[name, labels] = self._made(name, labels)

        return way

    def calls(self, provider: str = "", model: str = "", agent: str = "") -> Calls:
        """The ways of everything that is measured of this agent's calls to this model."""
        known = self._calls.get((provider, model, agent))

        if known is None:
            if len(self._calls) >= MOST_KNOWN:
                self._calls.clear()

            known = self._calls[provider, model, agent] = self._calls_of(provider, model, agent)

        return known

    def _calls_of(self, provider: str, model: str, agent: str) -> Calls:
        said = ((names.PROVIDER, provider), (names.REQUEST_MODEL, model), (names.AGENT_NAME, agent))
        labels = ((names.OPERATION, names.CHAT), *(label for label in said if label[1]))
        return Calls(
            labels,
            self.way(names.CLIENT_DURATION, labels),
            self.way(names.TOKEN_USAGE, (*labels, (names.TOKEN_TYPE, "input"))),
            self.way(names.TOKEN_USAGE, (*labels, (names.TOKEN_TYPE, "output"))),
            self.way(names.COST_USD, labels),
        )

    def _made(self, name: str, labels: Labels) -> Add:
        add = self._figures.of(name, labels).add

        if self.instruments is None:
            return add

        tell = self.instruments.way(name, {key: safe(held) for key, held in labels})

        def both(value: float) -> None:
            add(value)
            tell(value)

        return both

    def settle(self) -> None:
        """Nothing waits any more."""
        if self.instruments is not None:
            self.instruments.settle()
