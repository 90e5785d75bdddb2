"""What one request may be told beside its messages."""

from __future__ import annotations

from dataclasses import dataclass
from types import NoneType
from typing import get_args

from crew.doors import Chunked, CompressionStrategy, LastNMessages
from crew.errors import DefinitionError

STRATEGIES = (*get_args(get_args(CompressionStrategy)[0]), NoneType)


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
        strategy = self.compression_strategy
        numbers: dict[str, object] = {"max_history_size": self.max_history_size, "max_tokens": self.max_tokens}

        if isinstance(strategy, LastNMessages):
            numbers["n of LastNMessages"] = strategy.n
        elif isinstance(strategy, Chunked):
            numbers["size of Chunked"] = strategy.size

        problems = [
            f"{name} must be a positive integer or None, not {value!r}"
            for name, value in numbers.items()
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1)
        ]

        if not isinstance(strategy, STRATEGIES):
            problems.append(
                "compression_strategy must be one such as WholeHistory() or LastNMessages(6), or None, "
                f"not {strategy!r}"
            )

        if problems:
            raise DefinitionError("RequestParameters", problems)
