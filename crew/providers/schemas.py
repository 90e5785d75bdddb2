"""JSON schemas as the services' structured outputs take them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_NOT_STRICT = frozenset({"patternProperties", "prefixItems", "not", "if", "then", "else", "unevaluatedProperties"})
_OPENAI_DROPS = frozenset({"default", "discriminator", "examples"})
_ANTHROPIC_DROPS = _OPENAI_DROPS | {
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    *("minLength", "maxLength", "minItems", "maxItems", "uniqueItems", "pattern"),
}


class NotStrict(Exception):
    """This schema says something that a strict one can't."""


def strict(schema: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """The schema for OpenAI, and whether it could be made strict: closed objects, every key required."""
    try:
        return _strict(schema, _OPENAI_DROPS, every_key=True), True
    except NotStrict:
        return dict(schema), False


def closed(schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """The schema for Anthropic: closed objects, without the bounds it can't hold to; None where that is impossible."""
    try:
        return _strict(schema, _ANTHROPIC_DROPS, every_key=False)
    except NotStrict:
        return None


def _strict(schema: Mapping[str, Any], drops: frozenset[str], *, every_key: bool) -> dict[str, Any]:
    if "$ref" in schema:
        return {"$ref": schema["$ref"]}  # nothing may stand beside a reference

    if _NOT_STRICT & schema.keys():
        raise NotStrict

    out: dict[str, Any] = {}

    for key, value in schema.items():
        if key in drops:
            continue

        if key in ("properties", "$defs"):
            out[key] = {name: _strict(inner, drops, every_key=every_key) for name, inner in value.items()}
        elif key in ("anyOf", "oneOf", "allOf"):
            name = "anyOf" if key == "oneOf" else key
            out[name] = [_strict(inner, drops, every_key=every_key) for inner in value]
        elif key == "items" and isinstance(value, Mapping):
            out[key] = _strict(value, drops, every_key=every_key)
        else:
            out[key] = value

    if out.get("type") == "object":
        if schema.get("additionalProperties", False) is not False or "properties" not in schema:
            raise NotStrict  # a free mapping

        out["additionalProperties"] = False

        if every_key:
            out["required"] = list(out["properties"])

    return out
