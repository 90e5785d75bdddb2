"""Settings of a run: limits of the whole run, and compression and limits of its requests."""

from __future__ import annotations

from dataclasses import dataclass

from crew.errors import DefinitionError, abbreviate
from crew.interfaces import (
    Chunked,
    CompressionStrategy,
    FromTimestamp,
    LastNMessages,
    ModelSettings,
    WholeHistory,
    WholeHistoryMultipleSystemMessages,
)
from crew.settings import NonNegativeInt, NonNegativeNumber, PositiveInt, check_settings, setting_problems

_STRATEGIES = (WholeHistory, LastNMessages, Chunked, FromTimestamp, WholeHistoryMultipleSystemMessages)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestParameters:
    """Explicit compression and limits of each request of a run. By default, nothing is compressed.

    Applied in this order: `compression_strategy`, `max_tokens`, `max_history_size`.

    max_history_size      the most messages of a request.
    history_prune_to      the size to cut to beyond `max_history_size`; None: half of it. With the same number, each
                          request has as many messages as fit, and its start changes with every step.
    max_tokens            the most input tokens of a request.
    tokens_prune_to       the tokens to cut to beyond `max_tokens`; None: half of it.
    enable_token_caching  the tokens of a message are counted once.
    """

    compression_strategy: CompressionStrategy | None = None
    max_history_size: PositiveInt | None = None
    history_prune_to: PositiveInt | None = None
    max_tokens: PositiveInt | None = None
    tokens_prune_to: PositiveInt | None = None
    enable_token_caching: bool = True

    def __post_init__(self) -> None:
        problems = [*setting_problems(self), *_strategy_problems(self.compression_strategy)]

        if not problems:
            problems.extend(
                _target_problems("history_prune_to", self.history_prune_to, "max_history_size", self.max_history_size)
            )
            problems.extend(_target_problems("tokens_prune_to", self.tokens_prune_to, "max_tokens", self.max_tokens))

        if problems:
            raise DefinitionError("RequestParameters", problems)


def _target_problems(name: str, target: int | None, limit_name: str, limit: int | None) -> list[str]:
    if target is not None and limit is None:
        return [f"{name}={target} has no effect without {limit_name}; set {limit_name} too"]

    if target is not None and limit is not None and target > limit:
        return [f"{name} must be at most {limit_name}={limit}, not {target}"]

    return []


def _strategy_problems(strategy: object) -> list[str]:
    if strategy is None or isinstance(strategy, _STRATEGIES):
        return []

    accepted = "a strategy such as WholeHistory() or LastNMessages(20)"
    return [f"compression_strategy must be {accepted}, not {abbreviate(strategy)}"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOverrides:
    """The model (its name) and the settings of one run, in place of those of all its agents; empty: theirs."""

    model: str = ""
    settings: ModelSettings | None = None

    def __bool__(self) -> bool:
        return bool(self.model) or self.settings is not None


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
