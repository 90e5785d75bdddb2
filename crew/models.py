"""What is known of models without asking them: their context windows and their prices."""

from __future__ import annotations

import time
from collections.abc import Callable
from decimal import Decimal
from functools import lru_cache
from typing import Any

from crew.messages import Usage

_PRICE_PROVIDERS = {"openai-responses": "openai"}
_MILLION = 1_000_000
_HOUR = 3600


def context_window(provider: str, model: str) -> int | None:
    """The model's context window in tokens; None where nobody wrote it down."""
    found = _find_model(provider, model)
    return found[1].context_window if found else None


def usage_cost(provider: str, model: str, usage: Usage, now: Callable[[], float] = time.time) -> float | None:
    """What this usage costs in dollars; None where the price is unknown."""
    # A price may change at a given hour, so that what is kept must not outlive it.
    prices = _flat_prices(provider, model, int(now() // _HOUR))

    if prices is None:
        return None

    if isinstance(prices, tuple):
        plain, read, write, output = prices
        fresh = usage.input_tokens - usage.cache_read_tokens - usage.cache_write_tokens
        cached = usage.cache_read_tokens * read + usage.cache_write_tokens * write
        return (fresh * plain + cached + usage.output_tokens * output) / _MILLION

    return _tiered_cost(provider, model, usage)


@lru_cache(maxsize=1024)
def _find_model(provider: str, model: str) -> tuple[Any, Any] | None:
    from genai_prices.data_snapshot import get_snapshot

    try:
        return get_snapshot().find_provider_model(model, None, _PRICE_PROVIDERS.get(provider, provider), None)
    except LookupError:
        return None


@lru_cache(maxsize=1024)
def _flat_prices(provider: str, model: str, hour: int) -> tuple[float, float, float, float] | str | None:
    """Input, cache read, cache write and output for a million tokens; `tiered` where they depend on the amount."""
    from datetime import UTC, datetime

    found = _find_model(provider, model)

    if found is None:
        return None

    prices = found[1].get_prices(datetime.fromtimestamp(hour * _HOUR, UTC))
    plain, output = prices.input_mtok, prices.output_mtok

    if plain is None or output is None:
        return None

    # What has no price of its own is billed as plain input.
    read = plain if prices.cache_read_mtok is None else prices.cache_read_mtok
    write = plain if prices.cache_write_mtok is None else prices.cache_write_mtok
    parts = (plain, read, write, output)

    if not all(isinstance(part, Decimal) for part in parts):
        return "tiered"

    return float(plain), float(read), float(write), float(output)


def _tiered_cost(provider: str, model: str, usage: Usage) -> float | None:
    import genai_prices

    billed = genai_prices.Usage(
        input_tokens=usage.input_tokens,
        cache_read_tokens=usage.cache_read_tokens,
        cache_write_tokens=usage.cache_write_tokens,
        output_tokens=usage.output_tokens,
    )

    try:
        price = genai_prices.calc_price(billed, model_ref=model, provider_id=_PRICE_PROVIDERS.get(provider, provider))
    except (LookupError, ValueError):
        # ValueError: the registry holds a price that it can't apply to such a usage, which is as good as unknown.
        return None

    return float(price.total_price)
