"""Settings of a run: limits of the whole run, and compression and limits of its requests."""

from __future__ import annotations

from dataclasses import dataclass

from crew.errors import DefinitionError, abbreviate
from crew.interfaces import (
    Chunked,
    CompressionStrategy,
    FromTimestamp,
    LastNMessages,
    WholeHistory,
    WholeHistoryMultipleSystemMessages,
)
from crew.settings import NonNegativeInt, NonNegativeNumber, PositiveInt, check_settings, setting_problems

_STRATEGIES = (WholeHistory, LastNMessages, Chunked, FromTimestamp, WholeHistoryMultipleSystemMessages)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestParameters:
    """Explicit compression and limits of each request of a run. By default, nothing is compressed.

    Applied in this order: `compression_strategy`, `max_tokens`, `max_history_size`. With `enable_token_caching`, the
    tokens of a message are counted once.
    """

    compression_strategy: CompressionStrategy | None = None
    max_history_size: PositiveInt | None = None
    max_tokens: PositiveInt | None = None
    enable_token_caching: bool = True

    def __post_init__(self) -> None:
        problems = [*setting_problems(self), *_strategy_problems(self.compression_strategy)]

        if problems:
            raise DefinitionError("RequestParameters", problems)


def _strategy_problems(strategy: object) -> list[str]:
    if strategy is None or isinstance(strategy, _STRATEGIES):
        return []

    accepted = "a strategy such as WholeHistory() or LastNMessages(20)"
    return [f"compression_strategy must be {accepted}, not {abbreviate(strategy)}"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of one run, including its branches and agents called as tools. A round is one model call; None: no limit.

    A run that reaches a limit ends with `stop_reason="limit"`; its result holds everything done so far.
    """

    rounds: NonNegativeInt | None = 200
    handoffs: NonNegativeInt | None = 20
    tool_calls_per_turn: PositiveInt = 16
    tokens: NonNegativeInt | None = None
    cost_usd: NonNegativeNumber | None = None
    seconds: NonNegativeNumber | None = None

    def __post_init__(self) -> None:
        check_settings(self)
