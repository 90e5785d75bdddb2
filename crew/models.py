"""Context windows and prices of models, from the offline registry of `genai-prices`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING

from crew.messages import Usage

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo, TieredPrices

    _Price = Decimal | TieredPrices

_PRICE_PROVIDERS = {"openai-responses": "openai"}
_MILLION = 1_000_000
_HOUR = 3600


def context_window(provider: str, model: str) -> int | None:
    """The model's context window in tokens, or None if it is unknown."""
    found = _find_model(provider, model)
    return None if found is None else found.context_window


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPrices:
    """The prices of a model in US dollars per million tokens."""

    input: float
    cache_read: float
    cache_write: float
    output: float


def token_prices(provider: str, model: str, at: float | None = None) -> TokenPrices | None:
    """The prices of a model at this time (default: now), those of a small request if they depend on its size.

    None if they are unknown.
    """
    found = _model_prices(provider, model, int((time.time() if at is None else at) // _HOUR))

    if found is None:
        return None

    plain, read, write, output = (float(price if isinstance(price, Decimal) else price.base) for price in found)
    return TokenPrices(input=plain, cache_read=read, cache_write=write, output=output)


def usage_cost(provider: str, model: str, usage: Usage, now: Callable[[], float] = time.time) -> float | None:
    """The cost of this usage in US dollars, or None if the price is unknown."""
    # Prices can change with time, so that they are cached for one hour at most.
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
def _find_model(provider: str, model: str) -> ModelInfo | None:
    from genai_prices.data_snapshot import get_snapshot

    try:
        _, found = get_snapshot().find_provider_model(model, None, _PRICE_PROVIDERS.get(provider, provider), None)
    except LookupError:
        return None

    return found


@lru_cache(maxsize=1024)
def _flat_prices(provider: str, model: str, hour: int) -> tuple[float, float, float, float] | str | None:
    """Prices per million tokens: input, cache read, cache write, output; "tiered" if they depend on the token count."""
    match _model_prices(provider, model, hour):
        case None:
            return None
        case Decimal() as plain, Decimal() as read, Decimal() as write, Decimal() as output:
            return float(plain), float(read), float(write), float(output)
        case _:
            return "tiered"


def _model_prices(provider: str, model: str, hour: int) -> tuple[_Price, _Price, _Price, _Price] | None:
    from datetime import UTC, datetime

    found = _find_model(provider, model)

    if found is None:
        return None

    prices = found.get_prices(datetime.fromtimestamp(hour * _HOUR, UTC))
    plain, output = prices.input_mtok, prices.output_mtok

    if plain is None or output is None:
        return None

    # Without a separate price, cached tokens are billed as plain input.
    read = plain if prices.cache_read_mtok is None else prices.cache_read_mtok
    write = plain if prices.cache_write_mtok is None else prices.cache_write_mtok
    return plain, read, write, output


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
        # ValueError: the registry can't apply its price to this usage.
        return None

    return float(price.total_price)
