"""Structured lines onto the stdlib logger `crew`: silent until the application, or `configure`, turns it on."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Iterator, MutableMapping
from typing import Any, Literal

from crew.secrets.patterns import REDACTED, is_sensitive_name, redact, redact_value

LOGGER = "crew"

Fields = MutableMapping[str, Any]


def has_listeners() -> bool:
    """Whether anybody listens to the logger `crew`, at any level that it lets through."""
    logger = logging.getLogger(LOGGER)
    return logger.isEnabledFor(logging.ERROR) and any(True for _ in _handlers(logger))


def _handlers(logger: logging.Logger | None) -> Iterator[logging.Handler]:
    while logger is not None:
        yield from (handler for handler in logger.handlers if not isinstance(handler, logging.NullHandler))
        logger = logger.parent if logger.propagate else None


def add_null_handler() -> None:
    """Without a handler of anybody's, the stdlib would print warnings to stderr on its own account."""
    logger = logging.getLogger(LOGGER)

    if not logger.handlers:
        logger.addHandler(logging.NullHandler())


def bind_logger(**ids: Any) -> Any:
    """A structlog logger with these ids on every line; no global configuration is read or changed."""
    import structlog

    return structlog.wrap_logger(
        logging.getLogger(LOGGER),
        processors=[structlog.stdlib.filter_by_level, redact_fields, _to_record],
        wrapper_class=structlog.stdlib.BoundLogger,
        context_class=dict,
        cache_logger_on_first_use=False,
    ).bind(**ids)


def redact_fields(logger: Any, method: str, fields: Fields) -> Fields:
    """A processor: key-like strings, and whatever stands under a telling name, are replaced; nothing raises."""
    for name, value in fields.items():
        if name not in ("_record", "_from_structlog"):
            fields[name] = REDACTED if is_sensitive_name(name) and value is not None else redact_value(value)

    return fields


class LogLine:
    """A line as text, made when somebody writes it; handlers that know us take the fields instead."""

    __slots__ = ("fields",)

    def __init__(self, fields: dict[str, Any]) -> None:
        self.fields = fields

    def __str__(self) -> str:
        rest = " ".join(f"{name}={_format_value(value)}" for name, value in self.fields.items() if name != "event")
        return f"{self.fields['event']} {rest}"


def _format_value(value: Any) -> str:
    return value if isinstance(value, str) and value and " " not in value else repr(value)


def _to_record(logger: Any, method: str, fields: Fields) -> tuple[tuple[LogLine], dict[str, Any]]:
    return (LogLine(dict(fields)),), {}


def unpack_record(logger: Any, method: str, fields: Fields) -> Fields:
    """A processor: a line of ours arrives as a stdlib record, and is taken apart again."""
    record = fields.get("_record")
    line = getattr(record, "msg", None)

    if isinstance(line, LogLine):
        kept = {name: fields[name] for name in ("_record", "_from_structlog") if name in fields}
        return {**line.fields, **kept}

    fields["event"] = redact(str(fields.get("event", "")))
    return fields


WARNING_SOURCE = "crew.telemetry"

log = logging.getLogger(LOGGER)


def warn(text: str) -> None:
    """A warning to the logger `crew`; where nobody listens to that, on stderr as Python's own warnings are."""
    if not has_listeners():
        try:
            # Explicit, because no line of ours or of the caller's would explain it.
            warnings.warn_explicit(text, RuntimeWarning, WARNING_SOURCE, 1, WARNING_SOURCE)
            return
        except RuntimeWarning:
            pass  # warnings are errors here, and a run must not end by the way it is watched

    log.warning("%s", text)


SDK_LOGGERS = ("openai", "anthropic", "httpx", "httpx2", "aiohttp", "opentelemetry")


class _CrewHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Marks the handler that we made, so that it can be taken away again; writes to what stderr is at the time."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def attach_handler(form: Literal["console", "json"], level: str) -> None:
    """Print the lines of `crew` from this level on, and warnings of the SDKs, to stderr."""
    import structlog

    detach_handler()
    render = (
        structlog.processors.JSONRenderer(ensure_ascii=False)
        if form == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    handler = _CrewHandler()
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[
                structlog.contextvars.merge_contextvars,
                unpack_record,
                structlog.stdlib.add_log_level,
                structlog.stdlib.add_logger_name,
                structlog.processors.TimeStamper(fmt="iso", utc=True),
                structlog.processors.format_exc_info,
                redact_fields,
            ],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, render],
        )
    )

    for name in (LOGGER, *SDK_LOGGERS):
        logging.getLogger(name).addHandler(handler)

    logging.getLogger(LOGGER).setLevel(level)


def detach_handler() -> None:
    """Take our handler away again."""
    for name in (LOGGER, *SDK_LOGGERS):
        logger = logging.getLogger(name)

        for handler in [h for h in logger.handlers if isinstance(h, _CrewHandler)]:
            logger.removeHandler(handler)

            if name == LOGGER:
                logger.setLevel(logging.NOTSET)
