"""Providers: models behind the official SDKs, scripted replies, retries."""

from crew.interfaces import RetryPolicy
from crew.providers.anthropic import Anthropic
from crew.providers.openai_chat import OpenAIChat
from crew.providers.openai_responses import OpenAIResponses
from crew.providers.pool import ProviderPool
from crew.providers.retrying import Retrying
from crew.providers.scripted import ScriptedProvider, call

__all__ = [
    "Anthropic",
    "OpenAIChat",
    "OpenAIResponses",
    "ProviderPool",
    "RetryPolicy",
    "Retrying",
    "ScriptedProvider",
    "call",
]
