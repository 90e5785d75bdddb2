"""Handlers for the logger `crew` and those of the SDKs: lines for people, or JSON, through the same processors."""

from __future__ import annotations

import logging
import sys
from typing import Literal

from crew.telemetry.logs import LOGGER, make_safe, unpack

SDK_LOGGERS = ("openai", "anthropic", "httpx", "httpx2", "aiohttp", "opentelemetry")


class _Ours(logging.StreamHandler):  # type: ignore[type-arg]
    """Marks the handler that we made, so that it can be taken away again; writes to what stderr is at the time."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def attach(form: Literal["console", "json"], level: str) -> None:
    """Print the lines of `crew` from this level on, and warnings of the SDKs, to stderr."""
    import structlog

    detach()
    render = (
        structlog.processors.JSONRenderer(ensure_ascii=False)
        if form == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    handler = _Ours()
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[
                structlog.contextvars.merge_contextvars,
                unpack,
                structlog.stdlib.add_log_level,
                structlog.stdlib.add_logger_name,
                structlog.processors.TimeStamper(fmt="iso", utc=True),
                structlog.processors.format_exc_info,
                make_safe,
            ],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, render],
        )
    )

    for name in (LOGGER, *SDK_LOGGERS):
        logging.getLogger(name).addHandler(handler)

    logging.getLogger(LOGGER).setLevel(level)


def detach() -> None:
    """Take our handler away again."""
    for name in (LOGGER, *SDK_LOGGERS):
        logger = logging.getLogger(name)

        for handler in [h for h in logger.handlers if isinstance(h, _Ours)]:
            logger.removeHandler(handler)

            if name == LOGGER:
                logger.setLevel(logging.NOTSET)
