"""Anthropic's Messages."""

from crew.providers.anthropic.provider import Anthropic

__all__ = ["Anthropic"]
