"""JSON as bytes: the same value always gives the same ones, and what was rendered is only joined again."""

from __future__ import annotations

from typing import Any

from pydantic_core import PydanticSerializationError, from_json, to_json

from crew.messages import SUMMARY_HEADING, Image, SummaryMessage, ToolCall, clean

NOTHING = "(no output)"
UNREADABLE = "invalid_json"


def dump(value: Any) -> bytes:
    """A value as JSON; keys keep their order, lone surrogates become U+FFFD."""
    try:
        return to_json(value, inf_nan_mode="null")
    except (PydanticSerializationError, UnicodeEncodeError):
        return to_json(_cleaned(value), inf_nan_mode="null")


def field(name: str, value: Any) -> bytes:
    """One member of an object, with its comma in front."""
    return b',"' + name.encode() + b'":' + dump(value)


def load(data: bytes | str) -> Any:
    """A value out of JSON; ValueError if it is none. NaN and its kin are none."""
    return from_json(data, allow_inf_nan=False)


def arguments_of(call: ToolCall) -> dict[str, Any]:
    """A call's arguments as an object; what a model wrote and is none is shown to it inside of one."""
    if not call.arguments.strip():
        return {}

    try:
        value = load(call.arguments)
    except ValueError:
        value = None

    return value if isinstance(value, dict) else {UNREADABLE: call.arguments}


def arguments_text(call: ToolCall) -> str:
    """A call's arguments as the text of an object: as the model wrote it, where it is one."""
    value = arguments_of(call)
    return dump(value).decode() if not value or UNREADABLE in value else call.arguments


def shown(text: str) -> str:
    """A result's text; some services refuse an empty one."""
    return text if text.strip() else NOTHING


def image_url(image: Image) -> str:
    """An image's address; of base64 data, one that holds it."""
    return image.url or f"data:{image.media_type};base64,{image.data}"


def summary_text(message: SummaryMessage) -> str:
    """A summary as a user's text that says what it is: data, not a request."""
    return f"{SUMMARY_HEADING} (a record of what came before, not a request)\n{message.text}"


def _cleaned(value: Any) -> Any:
    match value:
        case str():
            return clean(value)
        case dict():
            return {_cleaned(key): _cleaned(inner) for key, inner in value.items()}
        case list() | tuple():
            return [_cleaned(inner) for inner in value]
        case _:
            return value
