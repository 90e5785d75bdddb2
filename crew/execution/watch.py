"""Those who watch a run: told of every event, and harmless."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from crew.errors import describe
from crew.runs import Event, Observer

log = logging.getLogger("crew")


def watched(observers: Sequence[Observer], publish: Callable[[Event], None]) -> Callable[[Event], None]:
    """Publish to the stream and to those who watch; one that fails is switched off for this run, with one warning."""
    if not observers:
        return publish

    watching = list(observers)

    def tell(event: Event) -> None:
        publish(event)

        for observer in tuple(watching):
            try:
                observer(event)
            except Exception as error:  # the observer boundary: watching never changes or breaks a run
                watching.remove(observer)
                log.warning("an observer failed and is switched off for run %s: %s", event.run_id, describe(error))

    return tell
