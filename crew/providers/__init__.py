"""Providers: models behind the official SDKs, scripted replies, retries."""

from typing import TYPE_CHECKING

from crew.lazy_names import lazy_names

if TYPE_CHECKING:
    from crew.interfaces import RetryPolicy
    from crew.providers.anthropic import Anthropic
    from crew.providers.openai_chat import OpenAIChat
    from crew.providers.openai_responses import OpenAIResponses
    from crew.providers.pool import ProviderPool
    from crew.providers.rate_limits import RateLimit, RateLimiter
    from crew.providers.retrying import Retrying
    from crew.providers.scripted import ScriptedProvider, call
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "crew.interfaces": "RetryPolicy",
            "crew.providers.anthropic": "Anthropic",
            "crew.providers.openai_chat": "OpenAIChat",
            "crew.providers.openai_responses": "OpenAIResponses",
            "crew.providers.pool": "ProviderPool",
            "crew.providers.rate_limits": "RateLimit RateLimiter",
            "crew.providers.retrying": "Retrying",
            "crew.providers.scripted": "ScriptedProvider call",
        },
    )

__all__ = [
    "Anthropic",
    "OpenAIChat",
    "OpenAIResponses",
    "ProviderPool",
    "RateLimit",
    "RateLimiter",
    "RetryPolicy",
    "Retrying",
    "ScriptedProvider",
    "call",
]
