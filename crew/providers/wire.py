"""JSON encoding, parts of replies and usage, for the SDK providers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from pydantic_core import PydanticSerializationError, from_json, to_json

from crew.errors import ContentRefused, MalformedReply, abbreviate
from crew.interfaces import ModelRequest, ModelSettings
from crew.message_rules.reply_checks import check_usage
from crew.messages import (
    SUMMARY_HEADING,
    AssistantMessage,
    HasCache,
    Image,
    SummaryMessage,
    ToolCall,
    Usage,
    replace_surrogates,
)
from crew.models import usage_cost

C = TypeVar("C", bound=HasCache)
JSONObject = Mapping[str, Any]
"""JSON from a service. Decoders read it unchecked: `Connection` turns a KeyError or TypeError into MalformedReply."""

CLASSIC_OPENAI_MODEL = re.compile(r"(ft:)?(gpt-3\.5|gpt-4|chatgpt-4)")
EMPTY_RESULT = "(no output)"
INVALID_JSON_KEY = "invalid_json"


class ModelId(NamedTuple):
    """The provider and model that wrote a reply; its reasoning is sent back to this pair only."""

    provider: str
    model: str


# ------------------------------------------------------------------------------------------------ JSON


def to_json_bytes(value: object) -> bytes:
    """Encode a value; keys keep their order, lone surrogates become U+FFFD."""
    try:
        return to_json(value, inf_nan_mode="null")
    except (PydanticSerializationError, UnicodeEncodeError):
        return to_json(_without_surrogates(value), inf_nan_mode="null")


def _without_surrogates(value: object) -> object:
    match value:
        case str():
            return replace_surrogates(value)
        case dict():
            return {_without_surrogates(key): _without_surrogates(inner) for key, inner in value.items()}
        case list() | tuple():
            return [_without_surrogates(inner) for inner in value]
        case _:
            return value


def json_member(name: str, value: object) -> bytes:
    """Encode one member of an object, with a leading comma."""
    return b',"' + name.encode() + b'":' + to_json_bytes(value)


def json_members(members: Mapping[str, object]) -> list[bytes]:
    """Encode the members that are not None, each with a leading comma."""
    return [json_member(name, value) for name, value in members.items() if value is not None]


def sampling_members(settings: ModelSettings) -> dict[str, object]:
    """The settings that Chat Completions knows under the names that they have here."""
    return {
        "temperature": settings.temperature,
        "seed": settings.seed,
        "top_p": settings.top_p,
        "top_k": settings.top_k,
        "frequency_penalty": settings.frequency_penalty,
        "presence_penalty": settings.presence_penalty,
    }


def cached_bytes(value: C, key: str, render: Callable[[C], bytes]) -> bytes:
    """Render a message, tool or output type once, and keep the bytes with it."""
    cache = value.cache()
    rendered: bytes | None = cache.get(key)

    if rendered is None:
        rendered = cache[key] = render(value)

    return rendered


def parse_json(data: bytes | str) -> Any:
    """Decode JSON; ValueError if it is invalid, which includes NaN and Infinity."""
    return from_json(data, allow_inf_nan=False)


# --------------------------------------------------------------------------------------- message parts


def arguments_object(call: ToolCall) -> dict[str, object]:
    """Return a call's arguments as an object; text that is not a JSON object is wrapped in one."""
    if not call.arguments.strip():
        return {}

    try:
        value = parse_json(call.arguments)
    except ValueError:
        value = None

    return value if isinstance(value, dict) else {INVALID_JSON_KEY: call.arguments}


def arguments_text(call: ToolCall) -> str:
    """Return a call's arguments as JSON text: unchanged if the model wrote a JSON object."""
    value = arguments_object(call)
    return to_json_bytes(value).decode() if not value or INVALID_JSON_KEY in value else call.arguments


def result_text(text: str) -> str:
    """Return a tool result's text, or a placeholder: some services reject an empty one."""
    return text if text.strip() else EMPTY_RESULT


def image_url(image: Image) -> str:
    """Return an image's URL; base64 data becomes a data URL."""
    return image.url or f"data:{image.media_type};base64,{image.data}"


def summary_text(message: SummaryMessage) -> str:
    """Return a summary as user text with a heading that marks it as data, not as a request."""
    return f"{SUMMARY_HEADING} (a record of what came before, not a request)\n{message.text}"


def drop_stale_reasoning(request: ModelRequest, flag: str) -> bool:
    """Flag all reasoning in the request as not to be sent again; False if there was none."""
    found = [
        message
        for message in request.messages
        if isinstance(message, AssistantMessage) and message.provider_data and not message.cache().get(flag)
    ]

    for message in found:
        message.cache()[flag] = True

    return bool(found)


# ---------------------------------------------------------------------------------- parts of replies

_HIDDEN_PARTS = ("thinking", "reasoning", "reasoning_text")


def reply_text(content: object) -> str:
    """Return the text of a reply's content: a text, or a list of parts; raises TypeError for anything else."""
    if isinstance(content, str):
        return content

    if content is None:
        return ""

    if not isinstance(content, list):
        raise TypeError(f"content must be a text or a list of parts, not {abbreviate(content)}")

    return "".join([_part_text(part) for part in content])


def _part_text(part: object) -> str:
    if isinstance(part, Mapping) and part.get("type") in _HIDDEN_PARTS:
        return ""

    text = part.get("text") or part.get("refusal") if isinstance(part, Mapping) else part

    if not isinstance(text, str):
        raise TypeError(f"a part of the content has no text: {abbreviate(part)}")

    return text


def reply_arguments(arguments: object) -> str:
    """Return a call's arguments as JSON text; some servers send them as an object."""
    if isinstance(arguments, Mapping):
        return to_json_bytes(arguments).decode()

    return checked_text(arguments or "")


def reply_id(value: object) -> str:
    """Return an id as a text; some servers number their calls and responses."""
    return str(value) if type(value) is int else checked_text(value or "")


def checked_text(value: object) -> str:
    """Return the value; raises TypeError if it is not a text."""
    if not isinstance(value, str):
        raise TypeError(f"expected a text, not {abbreviate(value)}")

    return value


def check_part_count(count: int, limit: int, name: str, model_id: ModelId) -> None:
    """Raise MalformedReply while a reply is streamed, before its parts take much memory."""
    if count > limit:
        provider, model = model_id
        text = f"{provider} ({model}) returned an unusable reply: it has more than {limit} {name}."
        raise MalformedReply(text, provider=provider, model=model)


# ----------------------------------------------------------------------------------- usage


def priced_usage(
    model_id: ModelId,
    problems: list[str],
    *,
    input: Any,
    output: Any,
    read: Any = 0,
    write: Any = 0,
    reasoning: Any = 0,
) -> Usage:
    """Return one request's usage with its cost; `input` includes cache reads and writes.

    The figures are those of the service: odd ones are corrected and added to the problems.
    """
    reported = Usage(
        requests=1,
        input_tokens=input,
        output_tokens=output,
        cache_read_tokens=read,
        cache_write_tokens=write,
        reasoning_tokens=reasoning,
        cost=None,
    )
    usage = check_usage(reported, problems)

    # Without token counts the cost is unknown, not zero.
    if not usage.input_tokens and not usage.output_tokens:
        return usage

    return replace(usage, cost=usage_cost(*model_id, usage))


def usage_object(usage: object, problems: list[str]) -> JSONObject:
    """The usage, or a part of it, as an object; empty if the service did not send one."""
    if usage is None or isinstance(usage, Mapping):
        return usage or {}

    problems.append(f"usage is {abbreviate(usage)}, read as not reported")
    return {}


def openai_usage(usage: object, model_id: ModelId, problems: list[str], *, input: str, output: str) -> Usage:
    """Decode OpenAI's usage, whose input includes the cached tokens; `input` and `output` are the API's field names."""
    figures = usage_object(usage, problems)
    input_details = usage_object(figures.get(f"{input}_details"), problems)
    output_details = usage_object(figures.get(f"{output}_details"), problems)
    return priced_usage(
        model_id,
        problems,
        input=figures.get(input) or 0,
        output=figures.get(output) or 0,
        read=input_details.get("cached_tokens") or 0,
        write=input_details.get("cache_write_tokens") or 0,
        reasoning=output_details.get("reasoning_tokens") or 0,
    )


def content_filtered(model_id: ModelId) -> ContentRefused:
    """Return the error for a reply that the service's content filter removed."""
    provider, model = model_id
    return ContentRefused(
        f"The content filter of {provider} stopped the reply of {model!r}.", provider=provider, model=model
    )
