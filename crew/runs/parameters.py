"""What one request may be told beside its messages."""

from __future__ import annotations

from dataclasses import dataclass

from crew.errors import DefinitionError
from crew.interfaces import (
    Chunked,
    CompressionStrategy,
    FromTimestamp,
    LastNMessages,
    WholeHistory,
    WholeHistoryMultipleSystemMessages,
)


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

        if (problem := _strategy_problem(self.compression_strategy)) is not None:
            problems.append(f"compression_strategy {problem}, not {self.compression_strategy!r}")

        if problems:
            raise DefinitionError("RequestParameters", problems)


def _strategy_problem(strategy: object) -> str | None:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of one run and everything that it starts; a round is one model call. None: no bound.

    A run that reaches one ends with `stop_reason="limit"` and everything done so far.
    """

    rounds: int | None = 200
    handoffs: int | None = 20
    tool_calls_per_turn: int = 16
    tokens: int | None = None
    cost_usd: float | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        problems = []

        for name in ("rounds", "handoffs", "tokens"):
            value = getattr(self, name)
            if value is not None and (not _is_whole(value) or value < 0):
                problems.append(f"{name} must be 0, a positive integer or None, not {value!r}")

        if not _is_whole(self.tool_calls_per_turn) or self.tool_calls_per_turn < 1:
            problems.append(f"tool_calls_per_turn must be a positive integer, not {self.tool_calls_per_turn!r}")

        for name in ("cost_usd", "seconds"):
            value = getattr(self, name)
            if value is not None and not (_number(value) and value >= 0):
                problems.append(f"{name} must be a number from 0 or None, not {value!r}")

        if problems:
            raise DefinitionError("Limits", problems)


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
