"""What whoever set telemetry up must see, also where no logging is configured."""

from __future__ import annotations

import logging
import warnings

from crew.telemetry import logs

PLACE = "crew.telemetry"

log = logging.getLogger(logs.LOGGER)


def tell(text: str) -> None:
    """A warning to the logger `crew`; where nobody listens to that, on stderr as Python's own warnings are."""
    if not logs.is_heard():
        try:
            # Explicit, because no line of ours or of the caller's would explain it.
            warnings.warn_explicit(text, RuntimeWarning, PLACE, 1, PLACE)
            return
        except RuntimeWarning:
            pass  # warnings are errors here, and a run must not end by the way it is watched

    log.warning("%s", text)
