"""Errors of the service itself, and the form of every error answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import JSONResponse


class HTTPError(Exception):
    """An error of the service itself, such as a missing scope."""

    def __init__(
        self, status: int, type: str, message: str, *, headers: Mapping[str, str] | None = None, **facts: Any
    ) -> None:
        self.status, self.type, self.message, self.headers, self.facts = status, type, message, headers, facts
        super().__init__(message)


def error_response(
    status: int, type: str, message: str, headers: Mapping[str, str] | None = None, **facts: Any
) -> JSONResponse:
    """The answer `{"error": {"type", "message", …}}`."""
    return JSONResponse({"error": {"type": type, "message": message, **facts}}, status, headers)
