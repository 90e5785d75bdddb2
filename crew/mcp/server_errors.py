"""What can go wrong with an MCP server; each text is sent to the model as the result of its call."""

from __future__ import annotations

from typing import Any

from crew.errors import describe
from crew.tools.tool_exceptions import EffectUnknown


class ServerError(Exception):
    """A call of an MCP server failed."""


class ServerUnavailable(ServerError):
    """There is no connection to the server, and the call was not sent."""


class ConnectionLost(ServerError, EffectUnknown):
    """The connection ended after the call was sent: whether it took effect is not known."""


class ToolChanged(ServerError):
    """The server no longer has the tool as it was listed when the run began."""


def first_error(error: BaseException) -> BaseException:
    """The first error inside groups of errors."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]

    return error


def reason_of(error: BaseException) -> str:
    """Why a connection failed, in words."""
    first: Any = first_error(error)

    if isinstance(first, TimeoutError):
        return "it did not answer in time"

    if isinstance(first, FileNotFoundError) and first.filename:
        return f"no such file or directory: {first.filename}"

    return describe(first)
