"""Structured lines onto the stdlib logger `crew`: silent until the application, or `configure`, turns it on."""

from __future__ import annotations

import logging
from collections.abc import Iterator, MutableMapping
from typing import Any

from crew.telemetry.redaction import HIDDEN, is_telling, safe, safe_value

LOGGER = "crew"

Fields = MutableMapping[str, Any]


def is_heard() -> bool:
    """Whether anybody listens to the logger `crew`, at any level that it lets through."""
    logger = logging.getLogger(LOGGER)
    return logger.isEnabledFor(logging.ERROR) and any(True for _ in _listening(logger))


def _listening(logger: logging.Logger | None) -> Iterator[logging.Handler]:
    while logger is not None:
        yield from (handler for handler in logger.handlers if not isinstance(handler, logging.NullHandler))
        logger = logger.parent if logger.propagate else None


def hush() -> None:
    """Without a handler of anybody's, the stdlib would print warnings to stderr on its own account."""
    logger = logging.getLogger(LOGGER)

    if not logger.handlers:
        logger.addHandler(logging.NullHandler())


def lines(**ids: Any) -> Any:
    """A structlog logger with these ids on every line; no global configuration is read or changed."""
    import structlog

    return structlog.wrap_logger(
        logging.getLogger(LOGGER),
        processors=[structlog.stdlib.filter_by_level, make_safe, _to_record],
        wrapper_class=structlog.stdlib.BoundLogger,
        context_class=dict,
        cache_logger_on_first_use=False,
    ).bind(**ids)


def make_safe(logger: Any, method: str, fields: Fields) -> Fields:
    """A processor: key-like strings, and whatever stands under a telling name, are replaced; nothing raises."""
    for name, value in fields.items():
        if name not in ("_record", "_from_structlog"):
            fields[name] = HIDDEN if is_telling(name) and value is not None else safe_value(value)

    return fields


class Line:
    """A line as text, made when somebody writes it; handlers that know us take the fields instead."""

    __slots__ = ("fields",)

    def __init__(self, fields: dict[str, Any]) -> None:
        self.fields = fields

    def __str__(self) -> str:
        rest = " ".join(f"{name}={_shown(value)}" for name, value in self.fields.items() if name != "event")
        return f"{self.fields['event']} {rest}"


def _shown(value: Any) -> str:
    return value if isinstance(value, str) and value and " " not in value else repr(value)


def _to_record(logger: Any, method: str, fields: Fields) -> tuple[tuple[Line], dict[str, Any]]:
    return (Line(dict(fields)),), {}


def unpack(logger: Any, method: str, fields: Fields) -> Fields:
    """A processor: a line of ours arrives as a stdlib record, and is taken apart again."""
    record = fields.get("_record")
    line = getattr(record, "msg", None)

    if isinstance(line, Line):
        kept = {name: fields[name] for name in ("_record", "_from_structlog") if name in fields}
        return {**line.fields, **kept}

    fields["event"] = safe(str(fields.get("event", "")))
    return fields
