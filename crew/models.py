"""What is known of models without asking them: their context windows."""

from __future__ import annotations

from functools import lru_cache

_PROVIDERS = {"openai-responses": "openai"}


@lru_cache(maxsize=1024)
def window_of(provider: str, model: str) -> int | None:
    """The model's context window in tokens; None where nobody wrote it down."""
    from genai_prices.data_snapshot import get_snapshot

    try:
        _, found = get_snapshot().find_provider_model(model, None, _PROVIDERS.get(provider, provider), None)
    except LookupError:
        return None

    return found.context_window
