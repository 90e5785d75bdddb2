"""OpenAI's Responses, stateless: nothing is stored there, and reasoning travels encrypted."""

from crew.providers.openai_responses.provider import OpenAIResponses

__all__ = ["OpenAIResponses"]
