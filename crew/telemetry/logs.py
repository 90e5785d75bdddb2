"""Structured log lines on the stdlib logger `crew`; silent until the application or `configure` adds a handler."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from crew.secret_names import is_sensitive_name
from crew.secrets.patterns import REDACTED, redact, redact_value

if TYPE_CHECKING:  # imported with the first log line, not with this package
    from structlog.stdlib import BoundLogger

LOGGER = "crew"

Fields = MutableMapping[str, Any]


def has_listeners() -> bool:
    """Whether the logger `crew` is enabled and has a handler, its own or an inherited one."""
    logger = logging.getLogger(LOGGER)
    return logger.isEnabledFor(logging.ERROR) and any(True for _ in _handlers(logger))


def _handlers(logger: logging.Logger | None) -> Iterator[logging.Handler]:
    while logger is not None:
        yield from (handler for handler in logger.handlers if not isinstance(handler, logging.NullHandler))
        logger = logger.parent if logger.propagate else None


def add_null_handler() -> None:
    """Keep the stdlib from printing warnings to stderr as long as no handler is configured."""
    logger = logging.getLogger(LOGGER)

    if not logger.handlers:
        logger.addHandler(logging.NullHandler())


def bind_logger(**ids: str) -> BoundLogger:
    """A structlog logger with these ids on every line; structlog's global configuration is neither read nor changed."""
    import structlog

    logger: BoundLogger = structlog.wrap_logger(
        logging.getLogger(LOGGER),
        processors=[structlog.stdlib.filter_by_level, redact_fields, _to_record],
        wrapper_class=structlog.stdlib.BoundLogger,
        context_class=dict,
        cache_logger_on_first_use=False,
    )
    return logger.bind(**ids)


def redact_fields(logger: object, method: str, fields: Fields) -> Fields:
    """A structlog processor that replaces key-like strings and the values of sensitive names; it never raises."""
    for name, value in fields.items():
        if name not in ("_record", "_from_structlog"):
            fields[name] = REDACTED if is_sensitive_name(name) and value is not None else redact_value(value)

    return fields


class LogLine:
    """A log line that becomes text when a handler formats it; our handler takes the fields instead."""

    __slots__ = ("fields",)

    def __init__(self, fields: dict[str, object]) -> None:
        self.fields = fields

    def __str__(self) -> str:
        shown = {name: value for name, value in self.fields.items() if name not in ("event", "exception")}
        rest = " ".join(f"{name}={_format_value(value)}" for name, value in shown.items())
        traceback = f"\n{self.fields['exception']}" if "exception" in self.fields else ""
        return f"{self.fields['event']} {rest}{traceback}"


def _format_value(value: object) -> str:
    return value if isinstance(value, str) and value and " " not in value else repr(value)


def _to_record(logger: object, method: str, fields: Fields) -> tuple[tuple[LogLine], dict[str, object]]:
    return (LogLine(dict(fields)),), {}


def unpack_record(logger: object, method: str, fields: Fields) -> Fields:
    """A structlog processor that restores the fields of a `LogLine` from the stdlib record that carried it."""
    record = fields.get("_record")
    line = record.msg if isinstance(record, logging.LogRecord) else None

    if isinstance(line, LogLine):
        kept = {name: fields[name] for name in ("_record", "_from_structlog") if name in fields}
        return {**line.fields, **kept}

    fields["event"] = redact(str(fields.get("event", "")))
    return fields


WARNING_SOURCE = "crew.telemetry"

log = logging.getLogger(LOGGER)


def warn(text: str) -> None:
    """Warn on the logger `crew`; if it has no handler, by a `RuntimeWarning`."""
    if not has_listeners():
        try:
            # Explicit, because neither our line nor the caller's would explain the warning.
            warnings.warn_explicit(text, RuntimeWarning, WARNING_SOURCE, 1, WARNING_SOURCE)
            return
        except RuntimeWarning:
            pass  # warnings are errors in this process, and telemetry must not end a run

    log.warning("%s", text)


SDK_LOGGERS = ("openai", "anthropic", "httpx", "httpx2", "aiohttp", "opentelemetry")


class _CrewHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """The handler that `configure` adds and `reset` removes; writes to the current `sys.stderr`."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def attach_handler(form: Literal["console", "json"], level: str) -> None:
    """Print log lines of `crew` from this level on, and those of the SDKs, to stderr."""
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


@contextmanager
def printed_log(level: str) -> Iterator[None]:
    """Print log lines from this level on while the block runs, unless the program prints them already."""
    if has_listeners():
        yield
        return

    attach_handler("console", level)

    try:
        yield
    finally:
        detach_handler()


def detach_handler() -> None:
    """Remove our handler."""
    for name in (LOGGER, *SDK_LOGGERS):
        logger = logging.getLogger(name)

        for handler in [h for h in logger.handlers if isinstance(h, _CrewHandler)]:
            logger.removeHandler(handler)

            if name == LOGGER:
                logger.setLevel(logging.NOTSET)
