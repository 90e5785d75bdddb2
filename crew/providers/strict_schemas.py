"""JSON schemas of structured output in the form that the strict modes of OpenAI and Anthropic accept.

A bound or format that a service does not support is left out: replies are validated against the type anyway. A schema
whose structure a service does not support is not sent as strict.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Any

JSONSchema = Mapping[str, Any]

_OPENAI_FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"})
_COMMON_KEYWORDS = frozenset(
    {"type", "title", "description", "enum", "const", "format", "required", "properties", "$defs", "items", "anyOf"}
)
_NOT_STRICT = frozenset(
    {
        *("patternProperties", "prefixItems", "unevaluatedProperties", "dependentRequired", "dependentSchemas"),
        *("allOf", "not", "if", "then", "else"),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _StrictMode:
    """The rules of a service: accepted keywords and formats, and the keywords of which every schema needs one."""

    keywords: frozenset[str]
    formats: frozenset[str]
    typed_by: frozenset[str]
    requires_every_key: bool
    accepts_recursion: bool


_OPENAI = _StrictMode(
    keywords=_COMMON_KEYWORDS
    | {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "pattern"}
    | {"minLength", "maxLength", "minItems", "maxItems"},
    formats=_OPENAI_FORMATS,
    typed_by=frozenset({"type", "anyOf"}),
    requires_every_key=True,
    accepts_recursion=True,
)
_ANTHROPIC = _StrictMode(
    keywords=_COMMON_KEYWORDS,
    formats=_OPENAI_FORMATS | {"uri"},
    typed_by=frozenset({"type", "anyOf", "enum", "const"}),
    requires_every_key=False,
    accepts_recursion=False,
)


class NotStrict(Exception):
    """The schema uses a feature that strict mode does not support."""


def openai_schema(schema: JSONSchema) -> tuple[dict[str, object], bool]:
    """Return the schema for OpenAI and whether it is strict: closed objects, every key required."""
    try:
        return _strict_schema(schema, _OPENAI), True
    except NotStrict:
        return dict(schema), False


def anthropic_schema(schema: JSONSchema) -> dict[str, object] | None:
    """Return the schema for Anthropic: closed objects, unsupported bounds removed; None if it can't be strict."""
    try:
        return _strict_schema(schema, _ANTHROPIC)
    except NotStrict:
        return None


def _strict_schema(schema: JSONSchema, mode: _StrictMode) -> dict[str, object]:
    if not mode.accepts_recursion and _is_recursive(schema):
        raise NotStrict

    return _restrict(schema, mode)


def _restrict(schema: JSONSchema, mode: _StrictMode) -> dict[str, object]:
    if "$ref" in schema:
        return {"$ref": schema["$ref"]}  # strict mode allows no keyword beside a reference

    if _NOT_STRICT & schema.keys():
        raise NotStrict

    out: dict[str, object] = {}

    for key, value in schema.items():
        name = "anyOf" if key == "oneOf" else key

        if name not in mode.keywords or (name == "format" and value not in mode.formats):
            continue

        if name in ("properties", "$defs"):
            out[name] = {inner_name: _restrict(inner, mode) for inner_name, inner in value.items()}
        elif name == "anyOf":
            out[name] = [_restrict(inner, mode) for inner in value]
        elif name == "items" and isinstance(value, Mapping):
            out[name] = _restrict(value, mode)
        else:
            out[name] = value

    if not mode.typed_by & out.keys() or (out.get("type") == "array" and "items" not in out):
        raise NotStrict  # any value, or an array of any values

    if out.get("type") == "object":
        if schema.get("additionalProperties", False) is not False or "properties" not in schema:
            raise NotStrict  # an object with arbitrary keys

        out["additionalProperties"] = False

        if mode.requires_every_key:
            out["required"] = list(schema["properties"])

    return out


def _is_recursive(schema: JSONSchema) -> bool:
    definitions = schema.get("$defs", {})
    graph = {f"#/$defs/{name}": set(_references(inner)) for name, inner in definitions.items()}

    try:
        TopologicalSorter(graph).prepare()
    except CycleError:
        return True

    return False


def _references(schema: object) -> Iterator[str]:
    if isinstance(schema, Mapping) and isinstance(schema.get("$ref"), str):
        yield schema["$ref"]
        return

    parts = schema.values() if isinstance(schema, Mapping) else schema if isinstance(schema, list) else ()

    for part in parts:
        yield from _references(part)
