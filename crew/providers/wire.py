"""JSON as bytes: the same value always gives the same ones, and what was rendered is only joined again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from functools import lru_cache
from typing import Any

from pydantic_core import PydanticSerializationError, from_json, to_json

from crew.errors import DefinitionError
from crew.interfaces import ModelRequest, ModelSettings
from crew.message_rules.profiles import Profile
from crew.messages import SUMMARY_HEADING, AssistantMessage, Image, SummaryMessage, ToolCall, Usage, replace_surrogates
from crew.models import usage_cost

EMPTY_RESULT = "(no output)"
INVALID_JSON_KEY = "invalid_json"


def to_json_bytes(value: Any) -> bytes:
    """A value as JSON; keys keep their order, lone surrogates become U+FFFD."""
    try:
        return to_json(value, inf_nan_mode="null")
    except (PydanticSerializationError, UnicodeEncodeError):
        return to_json(_without_surrogates(value), inf_nan_mode="null")


def json_member(name: str, value: Any) -> bytes:
    """One member of an object, with its comma in front."""
    return b',"' + name.encode() + b'":' + to_json_bytes(value)


def parse_json(data: bytes | str) -> Any:
    """A value out of JSON; ValueError if it is none. NaN and its kin are none."""
    return from_json(data, allow_inf_nan=False)


def arguments_object(call: ToolCall) -> dict[str, Any]:
    """A call's arguments as an object; what a model wrote and is none is shown to it inside of one."""
    if not call.arguments.strip():
        return {}

    try:
        value = parse_json(call.arguments)
    except ValueError:
        value = None

    return value if isinstance(value, dict) else {INVALID_JSON_KEY: call.arguments}


def arguments_text(call: ToolCall) -> str:
    """A call's arguments as the text of an object: as the model wrote it, where it is one."""
    value = arguments_object(call)
    return to_json_bytes(value).decode() if not value or INVALID_JSON_KEY in value else call.arguments


def result_text(text: str) -> str:
    """A result's text; some services refuse an empty one."""
    return text if text.strip() else EMPTY_RESULT


def image_url(image: Image) -> str:
    """An image's address; of base64 data, one that holds it."""
    return image.url or f"data:{image.media_type};base64,{image.data}"


def summary_text(message: SummaryMessage) -> str:
    """A summary as a user's text that says what it is: data, not a request."""
    return f"{SUMMARY_HEADING} (a record of what came before, not a request)\n{message.text}"


def _without_surrogates(value: Any) -> Any:
    match value:
        case str():
            return replace_surrogates(value)
        case dict():
            return {_without_surrogates(key): _without_surrogates(inner) for key, inner in value.items()}
        case list() | tuple():
            return [_without_surrogates(inner) for inner in value]
        case _:
            return value


def priced_usage(
    provider: str, model: str, *, input: int, output: int, read: int = 0, write: int = 0, reasoning: int = 0
) -> Usage:
    """What one request used and cost; `input` includes what was read from and written to a cache."""
    usage = Usage(
        requests=1,
        input_tokens=input,
        output_tokens=output,
        cache_read_tokens=read,
        cache_write_tokens=write,
        reasoning_tokens=reasoning,
    )
    # A service that bills nothing in tokens has told us nothing about money either.
    return replace(usage, cost=usage_cost(provider, model, usage) if input or output else None)


_SETTING_ADVICE = {
    "temperature": "leave it out: this model chooses by itself",
    "reasoning": "leave it out, or use thinking_tokens= where the model takes a budget",
    "thinking_tokens": "use reasoning= with 'low', 'medium' or 'high'",
    "seed": "leave it out: this service has none",
    "stop": "leave it out, and say in the instructions where to end",
}


@lru_cache(maxsize=1024)
def check_model_settings(settings: ModelSettings, profile: Profile, model: str) -> None:
    """Every setting that is given is one that this era knows."""
    given = [one.name for one in fields(settings) if getattr(settings, one.name) not in (None, ())]
    # To ask for no reasoning is fine where there is none.
    unknown = [
        name
        for name in given
        if name not in profile.known_settings and not (name == "reasoning" and settings.reasoning == "none")
    ]

    if unknown:
        known = ", ".join(sorted(profile.known_settings))
        raise DefinitionError(
            f"Settings of {model!r} (profile {profile.name!r})",
            [
                f"{name}={getattr(settings, name)!r} is not known: {_SETTING_ADVICE.get(name, 'leave it out')}."
                for name in unknown
            ]
            + [f"It takes: {known}."],
        )


_NOT_STRICT = frozenset({"patternProperties", "prefixItems", "not", "if", "then", "else", "unevaluatedProperties"})
_OPENAI_DROPS = frozenset({"default", "discriminator", "examples"})
_ANTHROPIC_DROPS = _OPENAI_DROPS | {
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    *("minLength", "maxLength", "minItems", "maxItems", "uniqueItems", "pattern"),
}


class NotStrict(Exception):
    """This schema says something that a strict one can't."""


def openai_schema(schema: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """The schema for OpenAI, and whether it could be made strict: closed objects, every key required."""
    try:
        return _restrict(schema, _OPENAI_DROPS, every_key=True), True
    except NotStrict:
        return dict(schema), False


def anthropic_schema(schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """The schema for Anthropic: closed objects, without the bounds it can't hold to; None where that is impossible."""
    try:
        return _restrict(schema, _ANTHROPIC_DROPS, every_key=False)
    except NotStrict:
        return None


def _restrict(schema: Mapping[str, Any], drops: frozenset[str], *, every_key: bool) -> dict[str, Any]:
    if "$ref" in schema:
        return {"$ref": schema["$ref"]}  # nothing may stand beside a reference

    if _NOT_STRICT & schema.keys():
        raise NotStrict

    out: dict[str, Any] = {}

    for key, value in schema.items():
        if key in drops:
            continue

        if key in ("properties", "$defs"):
            out[key] = {name: _restrict(inner, drops, every_key=every_key) for name, inner in value.items()}
        elif key in ("anyOf", "oneOf", "allOf"):
            name = "anyOf" if key == "oneOf" else key
            out[name] = [_restrict(inner, drops, every_key=every_key) for inner in value]
        elif key == "items" and isinstance(value, Mapping):
            out[key] = _restrict(value, drops, every_key=every_key)
        else:
            out[key] = value

    if out.get("type") == "object":
        if schema.get("additionalProperties", False) is not False or "properties" not in schema:
            raise NotStrict  # a free mapping

        out["additionalProperties"] = False

        if every_key:
            out["required"] = list(out["properties"])

    return out


def drop_stale_reasoning(request: ModelRequest, mark: str) -> bool:
    """Mark all of it in the request as not to be sent again; whether there was any."""
    found = [
        message
        for message in request.messages
        if isinstance(message, AssistantMessage) and message.provider_data and not message.cache().get(mark)
    ]

    for message in found:
        message.cache()[mark] = True

    return bool(found)
