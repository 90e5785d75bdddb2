"""Prints the log of Temporal's SDK: one line for each record, without stack traces and repetitions."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable

from crew.errors import describe

_LOGGER = "temporalio"
_DUPLICATES = ("Failing workflow task",)
"""Messages of the core that follow a message of the Python part of the SDK about the same failure."""
_CONNECTION = {"ConnectionRefused": "connection refused", "dns error": "unknown host", "TimedOut": "timed out"}
REPEAT_SECONDS = 30.0
"""A line that was printed is not printed again for so long."""
MOST_LINES = 256


def connection_problem(text: str) -> str | None:
    """Why the server can't be reached, if this error of the SDK says so: it shows nested values of another language."""
    return next((short for found, short in _CONNECTION.items() if found in text), None)


class LineHandler(logging.Handler):
    """Prints a record and the error that it reports in one line."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(logging.WARNING)
        self._clock, self._printed = clock, dict[str, float]()

    def emit(self, record: logging.LogRecord) -> None:
        """Print the record to stderr, unless its line was printed just now."""
        line, now = _line(record), self._clock()

        if line is None or now - self._printed.get(line, -REPEAT_SECONDS) < REPEAT_SECONDS:
            return

        if len(self._printed) >= MOST_LINES:
            self._printed.clear()

        self._printed[line] = now
        print(f"! {line}", file=sys.stderr, flush=True)


def _line(record: logging.LogRecord) -> str | None:
    core = getattr(record, "temporal_log", None)  # foreign: a record that the SDK's core sent
    error = record.exc_info[1] if record.exc_info else None
    reason = "" if error is None else describe(error)
    text = record.getMessage()

    if core is not None:
        text, reason = core.message, str(core.fields.get("error", ""))

        if text in _DUPLICATES:
            return None

    if problem := connection_problem(f"{text} {reason}"):
        return f"The Temporal server does not answer: {problem}"

    return " ".join((f"{text}: {reason}" if reason else text).split())


def printed_logger() -> logging.Logger:
    """The logger of the SDK, whose records are printed from now on."""
    logger = logging.getLogger(_LOGGER)

    if not any(isinstance(handler, LineHandler) for handler in logger.handlers):
        logger.addHandler(LineHandler())
        logger.propagate = False

    return logger
