"""What stands between the SDK and an exporter: it never raises, rests after a failure, and says what is wrong once."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from crew.errors import describe
from crew.telemetry.environment import Signal
from crew.telemetry.notices import tell
from crew.telemetry.redaction import safe

REST_SECONDS = 10.0
SLOW_SECONDS = 1.0

UNITS = {"traces": "spans", "metrics": "reports"}
NO_METRICS = (
    'This receiver takes no metrics (Jaeger does not): metrics="off", or OTEL_METRICS_EXPORTER=none, ends this.'
)
NO_PATH = "Check the address: the server that answers there takes no traces at this path."
NO_ENTRY = "Check the key that OTEL_EXPORTER_OTLP_HEADERS must hold."
NO_ANSWER = "Check that an OTLP receiver listens there for HTTP, usually on port 4318."

log = logging.getLogger("crew")


class Guard:
    """An exporter's `export`; after a failure that took its time, nothing is tried for some seconds.

    Whoever waits for an export, at closing and again at the exit of the process, waits for a dead receiver once.
    """

    def __init__(
        self,
        export: Callable[..., Any],
        results: Any,
        signal: Signal,
        address: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._export, self._results, self._clock = export, results, clock
        self._signal, self._address = signal, address
        self._lost, self._failing, self._rests_until = 0, False, clock()

    def __call__(self, batch: Any, **options: Any) -> Any:
        """Send a batch."""
        size = len(batch) if self._signal == "traces" else 1
        began = self._clock()

        if began < self._rests_until:
            self._lost += size
            return self._results.FAILURE

        result, words = self._try(batch, options)

        if result is self._results.SUCCESS:
            self._recover()
            return result

        ended = self._clock()
        self._rests_until = ended + REST_SECONDS if ended - began >= SLOW_SECONDS else ended
        self._fail(size, words)
        return result

    def _try(self, batch: Any, options: dict[str, Any]) -> tuple[Any, str]:
        heard: list[str] = []
        token = _HEARD.set(heard)

        try:
            result = self._export(batch, **options)
        except Exception as error:  # the observer boundary: an exporter that fails must not end the thread it runs on
            return self._results.FAILURE, describe(error)
        finally:
            _HEARD.reset(token)

        return result, heard[0] if heard else ""

    def _fail(self, size: int, words: str) -> None:
        self._lost += size

        if self._failing:
            return

        self._failing = True
        status, reason = _read(words)
        where = f"{self._signal} can't be exported to {self._address} ({reason})"
        tell(safe(f"{where}; {UNITS[self._signal]} lost so far: {self._lost}. {self._remedy(status)}"))

    def _remedy(self, status: int | None) -> str:
        if status == 404:
            return NO_METRICS if self._signal == "metrics" else NO_PATH

        return NO_ENTRY if status in (401, 403) else NO_ANSWER

    def _recover(self) -> None:
        if self._failing:
            unit, address = UNITS[self._signal], safe(self._address)
            log.warning("%s get through to %s again; %s lost meanwhile: %d", self._signal, address, unit, self._lost)

        self._failing, self._lost = False, 0


def guard(exporter: Any, results: Any, signal: Signal, address: str) -> Any:
    """The same exporter, guarded; what it has to say itself is taken into our own line."""
    logger = logging.getLogger(type(exporter).__module__)

    if not any(isinstance(known, _Overhears) for known in logger.filters):
        logger.addFilter(_Overhears())

    exporter.export = Guard(exporter.export, results, signal, address)
    return exporter


_HEARD: ContextVar[list[str] | None] = ContextVar("heard", default=None)


class _Overhears(logging.Filter):
    """Keeps an exporter's complaints while we call it; those of exporters that are not ours pass."""

    def filter(self, record: logging.LogRecord) -> bool:
        heard = _HEARD.get()

        if heard is None:
            return True

        heard.append(record.getMessage())
        return False


def _read(words: str) -> tuple[int | None, str]:
    """The status in an exporter's complaint, if it was answered at all, and the complaint in short."""
    if answered := re.search(r"code: (\d{3}), reason: (.*)", words):
        return int(answered[1]), f"it answers {answered[1]} {answered[2][:200]}".strip()

    if refused := re.search(r"\[Errno -?\d+\] ([^'\")]+)", words):
        return None, refused[1]

    if "timeout" in words or not words:
        return None, "it does not answer in time"

    return None, words[:300].rstrip(".")
