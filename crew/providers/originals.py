"""What a model wrote for itself, thinking and reasoning, once its service does not know it again."""

from __future__ import annotations

from crew.doors import ModelRequest
from crew.messages import AssistantMessage


def distrust(request: ModelRequest, mark: str) -> bool:
    """Mark all of it in the request as not to be sent again; whether there was any."""
    found = [
        message
        for message in request.messages
        if isinstance(message, AssistantMessage) and message.provider_data and not message.rendered().get(mark)
    ]

    for message in found:
        message.rendered()[mark] = True

    return bool(found)
