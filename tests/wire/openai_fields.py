"""The rules that OpenAI's two APIs share: fields, types, lengths, names, tools, schemas, options by era."""

import re
from collections.abc import Collection
from typing import Any

from tests.wire.model import Json, Model
from tests.wire.rejections import refuse

NAME = re.compile(r"[a-zA-Z0-9_-]+")
MAX_TOOLS = 128
STRICT_FORMATS = {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}
NOT_IN_STRICT = ("allOf", "oneOf", "not", "if", "then", "else", "default", "uniqueItems", "propertyNames", "contains")


def known(where: str, value: Json, fields: Collection[str]) -> None:
    """Reject unknown fields."""
    if not value.keys() <= set(fields):
        extra = f"{where}.{next(key for key in value if key not in fields)}"
        refuse("unknown_field", f"Unknown parameter: '{extra}'.", extra, "unknown_parameter")


def required(where: str, value: Json, *fields: str) -> None:
    """Reject a body without one of these fields."""
    for field in fields:
        if field not in value:
            path = f"{where}.{field}" if where else field
            refuse("missing_field", f"Missing required parameter: '{path}'.", path, "missing_required_parameter")


def typed(where: str, value: Any, kind: type, words: str) -> None:
    """Check the JSON type; `words` is the service's name for it."""
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        got = {str: "a string", dict: "an object", list: "an array", bool: "a boolean", int: "an integer"}
        found = "null" if value is None else got.get(type(value), "a decimal")
        message = f"Invalid type for '{where}': expected {words}, but got {found} instead."
        refuse("wrong_type", message, where, "invalid_type")


def chosen(where: str, value: Any, choices: Collection[str], rule: str = "unknown_value") -> None:
    """Check that the value is one of those that the service accepts."""
    if value not in choices:
        *most, last = [f"'{choice}'" for choice in choices]
        listed = f"{', '.join(most)}, and {last}" if len(most) > 1 else " and ".join([*most, last])
        message = f"Invalid value: '{value}'. Supported values are: {listed}."
        refuse(rule, message, where, "invalid_value")


def filled(where: str, value: Any) -> None:
    """Reject an empty list."""
    typed(where, value, list, "an array")
    if not value:
        message = (
            f"Invalid '{where}': empty array. Expected an array with minimum length 1, but got an empty array instead."
        )
        refuse("empty_array", message, where, "empty_array")


def short(where: str, value: str, limit: int) -> None:
    """Reject a string that is too long."""
    if len(value) > limit:
        message = (
            f"Invalid '{where}': string too long. Expected a string with maximum length {limit}, "
            f"but got a string with length {len(value)} instead."
        )
        refuse("too_long", message, where, "string_above_max_length")


def name(where: str, value: Any) -> None:
    """Check a function's name, in tools and in the history."""
    typed(where, value, str, "a string")
    if not value:
        message = (
            f"Invalid '{where}': empty string. Expected a string with minimum length 1, but got an empty string "
            "instead."
        )
        refuse("name", message, where, "empty_string")
    short(where, value, 64)
    if not NAME.fullmatch(value):
        message = (
            f"Invalid '{where}': string does not match pattern. Expected a string that matches the pattern "
            "'^[a-zA-Z0-9_-]+$'."
        )
        refuse("name", message, where, "invalid_value")


def tool_list(body: Json) -> list[Json]:
    """Return the tools, 1 to 128; without tools, reject the options that need them."""
    tools = body.get("tools")
    if tools is None:
        for option in ("tool_choice", "parallel_tool_calls"):
            if body.get(option) is not None:
                message = f"Invalid value for '{option}': '{option}' is only allowed when 'tools' are specified."
                refuse("only_with_tools", message, option)
        return []
    filled("tools", tools)
    if len(tools) > MAX_TOOLS:
        message = (
            f"Invalid 'tools': array too long. Expected an array with maximum length {MAX_TOOLS}, "
            f"but got an array with length {len(tools)} instead."
        )
        refuse("too_many_tools", message, "tools", "array_above_max_length")
    return list(tools)


def function_schema(what: str, param: str, schema: Any, *, strict: bool) -> None:
    """Check a JSON Schema of an object; a strict one forbids other keys and requires every key, at every level."""
    kind = schema.get("type") if isinstance(schema, dict) else None
    if kind != "object":
        fault = f"schema must be a JSON Schema of 'type: \"object\"', got 'type: \"{kind}\"'."
        refuse("schema", f"Invalid schema for {what}: {fault}", param, "invalid_function_parameters")
    if strict:
        _strict(what, param, schema, ())


def _strict(what: str, param: str, schema: Any, path: tuple[str, ...]) -> None:
    if not isinstance(schema, dict):
        return
    fault = _keyword_fault(schema)
    if fault is None and (schema.get("type") == "object" or "properties" in schema):
        fault = _object_fault(schema)
    if fault:
        message = f"Invalid schema for {what}: In context={path!r}, {fault}"
        refuse("strict_schema", message, param, "invalid_function_parameters")
    for group in ("properties", "$defs", "definitions"):
        for key, inner in schema.get(group, {}).items():
            _strict(what, param, inner, (*path, group, key))
    if isinstance(schema.get("items"), dict):
        _strict(what, param, schema["items"], (*path, "items"))
    for place, inner in enumerate(schema.get("anyOf", ())):
        _strict(what, param, inner, (*path, "anyOf", str(place)))


def _keyword_fault(schema: Json) -> str | None:
    for keyword in NOT_IN_STRICT:
        if keyword in schema:
            return f"'{keyword}' is not permitted."
    if schema.get("format", "date") not in STRICT_FORMATS:
        return f"'{schema['format']}' is not a valid format."
    if not {"type", "anyOf", "$ref"} & schema.keys():
        return "schema must have a 'type' key."
    if schema.get("type") == "array" and "items" not in schema:
        return "array schema missing items."
    return None


def _object_fault(schema: Json) -> str | None:
    if schema.get("additionalProperties") is not False:
        return "'additionalProperties' is required to be supplied and to be false."
    missing = [key for key in schema.get("properties", {}) if key not in schema.get("required", ())]
    if missing:
        return (
            "'required' is required to be supplied and to be an array including every key in properties. "
            f"Missing '{missing[0]}'."
        )
    return None


def json_format(where: str, value: Json, inner: Json) -> None:
    """Check structured output: a known type, and for json_schema a name and a schema."""
    chosen(f"{where}.type", value.get("type"), ("json_object", "json_schema", "text"))
    if value["type"] == "json_schema":
        required(where, inner, "name", "schema")
        name(f"{where}.name", inner["name"])
        strict = inner.get("strict") is True
        function_schema(f"response_format '{inner['name']}'", where, inner["schema"], strict=strict)


def era_options(body: Json, model: Model, token_field: str) -> None:
    """Reject options that the era does not support, and an output limit above the model's."""
    temperature = body.get("temperature")
    if model.era == "modern" and temperature not in (None, 1):
        message = (
            f"Unsupported value: 'temperature' does not support {temperature} with this model. "
            "Only the default (1) value is supported."
        )
        refuse("temperature", message, "temperature", "unsupported_value")
    limit = body.get(token_field)
    if limit is not None:
        typed(token_field, limit, int, "an integer")
        if limit > model.max_output:
            most = f"This model supports at most {model.max_output} completion tokens."
            refuse("max_output", f"{token_field} is too large: {limit}. {most}", token_field, "invalid_value")
