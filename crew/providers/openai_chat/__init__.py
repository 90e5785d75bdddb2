"""OpenAI's Chat Completions, and every server that speaks it."""

from crew.providers.openai_chat.provider import OpenAIChat

__all__ = ["OpenAIChat"]
