"""The requests of OpenAI's chat clients: what they may contain, and what a run gets from them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, JsonValue, PositiveInt

from crew.interfaces import ModelSettings
from crew.messages import UserMessage
from crew.server.http_errors import HTTPError
from crew.validation.message_import import import_messages

_SETTINGS = {
    "temperature": "temperature",
    "top_p": "top_p",
    "seed": "seed",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
}
"""The settings of a request that override those of the agents, and their names in `ModelSettings`."""

_REFUSED = {
    "tools": "a crew has its own tools, which it calls itself",
    "functions": "a crew has its own tools, which it calls itself",
    "response_format": "the output type belongs to the agent; set Agent(output=…)",
    "audio": "a crew answers with text",
    "logprobs": "a crew has no log probabilities",
}


class StreamOptions(BaseModel):
    """`stream_options`."""

    include_usage: bool | None = None


class ChatRequest(BaseModel):
    """The body of `POST /v1/chat/completions`. Other fields that clients send are accepted and have no effect."""

    model_config = ConfigDict(extra="allow")

    model: str
    messages: list[dict[str, JsonValue]] = Field(min_length=1)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Literal[1] | None = None
    stop: str | list[str] | None = None
    temperature: FiniteFloat | None = None
    top_p: FiniteFloat | None = None
    seed: int | None = None
    frequency_penalty: FiniteFloat | None = None
    presence_penalty: FiniteFloat | None = None
    max_tokens: PositiveInt | None = None
    max_completion_tokens: PositiveInt | None = None


def refuse_unsupported(body: ChatRequest) -> None:
    """Raise `HTTPError` 422 for a field that asks for something that a crew can't do."""
    given = body.model_extra or {}

    for name, reason in _REFUSED.items():
        is_text = name == "response_format" and given.get(name) == {"type": "text"}

        if given.get(name) and not is_text:
            raise HTTPError(422, "invalid_request_error", f"{name} is not supported: {reason}.", param=name)


def newest_message(messages: list[dict[str, JsonValue]]) -> UserMessage:
    """The last message, which must be the user's."""
    found, violations = import_messages(messages[-1:])
    newest = found[-1][1] if found else None

    if violations or not isinstance(newest, UserMessage):
        text = "The last message must be one of the user, with a text."
        raise HTTPError(422, "invalid_request_error", text, param=f"messages[{len(messages) - 1}]")

    if newest.images and not newest.text.strip():
        text = "The last message has only images: add a text that says what to do with them."
        raise HTTPError(422, "invalid_request_error", text, param=f"messages[{len(messages) - 1}]")

    return newest


def model_settings(body: ChatRequest) -> ModelSettings | None:
    """The settings that the client sent; they override those of the agents for this run."""
    given: dict[str, Any] = {
        name: value for field, name in _SETTINGS.items() if (value := getattr(body, field)) is not None
    }

    if body.stop:
        given["stop"] = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop)

    return ModelSettings(**given) if given else None
