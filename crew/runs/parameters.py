"""What one request may be told beside its messages."""

from __future__ import annotations

from dataclasses import dataclass

from crew.doors import (
    Chunked,
    CompressionStrategy,
    FromTimestamp,
    LastNMessages,
    WholeHistory,
    WholeHistoryMultipleSystemMessages,
)
from crew.errors import DefinitionError


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestParameters:
    """Explicit compression and limits of a run's requests; nothing is ever compressed unasked.

    Applied in this order: `compression_strategy`, `max_tokens`, `max_history_size`. `enable_token_caching` keeps the
    count of a message with it.
    """

    compression_strategy: CompressionStrategy | None = None
    max_history_size: int | None = None
    max_tokens: int | None = None
    enable_token_caching: bool = True

    def __post_init__(self) -> None:
        problems = [
            f"{name} must be a positive integer or None, not {value!r}"
            for name, value in (("max_history_size", self.max_history_size), ("max_tokens", self.max_tokens))
            if value is not None and not _whole(value, 1)
        ]

        if (problem := _misfit(self.compression_strategy)) is not None:
            problems.append(f"compression_strategy {problem}, not {self.compression_strategy!r}")

        if problems:
            raise DefinitionError("RequestParameters", problems)


def _misfit(strategy: object) -> str | None:
    match strategy:
        case LastNMessages(n=n):
            return None if _whole(n, 0) else "must keep 0 or more messages"
        case Chunked(size=size):
            return None if _whole(size, 1) else "must have chunks of at least one message"
        case FromTimestamp(time=time):
            number = isinstance(time, int | float) and not isinstance(time, bool)
            return None if number else "must have a time in seconds since the epoch"
        case None | WholeHistory() | WholeHistoryMultipleSystemMessages():
            return None
        case _:
            return "must be a strategy such as WholeHistory() or LastNMessages(20)"


def _whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
