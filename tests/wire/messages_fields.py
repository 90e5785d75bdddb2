"""The rules of Anthropic's Messages for single fields: blocks, tools, schemas, cache breakpoints, options by era."""

import re
from collections.abc import Collection, Iterator
from typing import Any

from tests.wire.model import Json, Model
from tests.wire.rejections import refuse

MAX_MARKS = 4
NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
ID = re.compile(r"[a-zA-Z0-9_-]+")
BLOCKS = {
    "text": {"type", "text", "cache_control", "citations"},
    "image": {"type", "source", "cache_control", "transformations"},
    "document": {"type", "source", "cache_control", "citations", "context", "title"},
    "search_result": {"type", "source", "cache_control", "citations", "content", "title"},
    "tool_use": {"type", "id", "name", "input", "cache_control", "caller", "toolset_name"},
    "tool_result": {"type", "tool_use_id", "content", "is_error", "cache_control", "toolset_name"},
    "thinking": {"type", "thinking", "signature"},
    "redacted_thinking": {"type", "data"},
}
NEEDED = {
    "text": ("text",),
    "image": ("source",),
    "tool_use": ("id", "name", "input"),
    "tool_result": ("tool_use_id",),
    "thinking": ("thinking", "signature"),
    "redacted_thinking": ("data",),
}
ALLOWED = {
    "user": {"text", "image", "document", "search_result", "tool_result"},
    "assistant": {"text", "tool_use", "thinking", "redacted_thinking"},
    "system": {"text"},
}
TOOL = {
    *{"name", "description", "input_schema", "type", "cache_control", "strict"},
    *{"allowed_callers", "defer_loading", "eager_input_streaming", "input_examples"},
}
UNSUPPORTED = {
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "minLength",
    "maxLength",
    "maxItems",
    "uniqueItems",
}
FORMATS = {"date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"}


def known(where: str, value: Json, names: Collection[str]) -> None:
    """Reject unknown fields."""
    for key in value:
        if key not in names:
            refuse("unknown_field", f"{where}.{key}: Extra inputs are not permitted".lstrip("."))


def block(where: str, part: Any, role: str) -> None:
    """Check a content block: a type that the role allows, with its required fields and no unknown ones."""
    kind = part.get("type") if isinstance(part, dict) else None
    if kind not in BLOCKS:
        tags = ", ".join(f"'{name}'" for name in BLOCKS)
        words = f"{where}: Input tag '{kind}' found using 'type' does not match any of the expected tags: {tags}"
        refuse("block_type", words)
    if kind not in ALLOWED[role]:
        owner = "user" if kind in ALLOWED["user"] and kind not in ALLOWED["assistant"] else "assistant"
        refuse("block_role", f"{where}: `{kind}` blocks can only be in `{owner}` messages")
    known(f"{where}.{kind}", part, BLOCKS[kind])
    for field in NEEDED.get(kind, ()):
        if field not in part:
            refuse("missing_field", f"{where}.{kind}.{field}: Field required")
    if kind == "text" and not isinstance(part["text"], str):
        refuse("wrong_type", f"{where}.text.text: Input should be a valid string")
    if kind == "tool_use":
        _tool_use(where, part)
    if kind == "tool_result":
        _tool_result(where, part)


def _tool_use(where: str, part: Json) -> None:
    if not isinstance(part["id"], str) or not ID.fullmatch(part["id"]):
        refuse("call_id", f"{where}.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'")
    if not isinstance(part["name"], str) or not NAME.fullmatch(part["name"]):
        refuse("name", f"{where}.tool_use.name: String should match pattern '^[a-zA-Z0-9_-]{{1,128}}$'")
    if not isinstance(part["input"], dict):
        refuse("tool_input", f"{where}.tool_use.input: Input should be a valid dictionary")


def _tool_result(where: str, part: Json) -> None:
    content = part.get("content")
    if part.get("is_error") and not content:
        refuse("empty_error", f"{where}.tool_result: content cannot be empty if `is_error` is true")
    if isinstance(content, list):
        for place, inner in enumerate(content):
            block(f"{where}.tool_result.content.{place}", inner, "user")
            if inner["type"] == "text" and not inner["text"]:
                refuse("empty_text", "messages: text content blocks must be non-empty")
    elif content is not None and not isinstance(content, str):
        refuse("wrong_type", f"{where}.tool_result.content: Input should be a valid string")


def tools(body: Json) -> None:
    """Check the tools: names, object schemas, and a tool choice that names one of them."""
    names: list[str] = []
    for index, tool in enumerate(body.get("tools") or ()):
        where = f"tools.{index}.custom"
        known(where, tool, TOOL)
        for field in ("name", "input_schema"):
            if field not in tool:
                refuse("missing_field", f"{where}.{field}: Field required")
        if not NAME.fullmatch(tool["name"]):
            refuse("name", f"{where}.name: String should match pattern '^[a-zA-Z0-9_-]{{1,128}}$'")
        if tool["input_schema"].get("type") != "object":
            refuse("schema", f"{where}.input_schema.type: Input should be 'object'")
        if tool.get("strict"):
            _strict(where, tool["input_schema"])
            _no_circle(tool["input_schema"], tool["input_schema"].get("$defs", {}), ())
        names.append(tool["name"])
    if len(set(names)) < len(names):
        refuse("tool_names", "tools: Tool names must be unique.")
    choice = body.get("tool_choice")
    if choice and choice.get("type") != "none" and not names:
        refuse("only_with_tools", "tool_choice: tool_choice may only be specified while providing tools.")
    if choice and choice.get("type") == "tool" and choice.get("name") not in names:
        refuse("tool_choice", f"Tool '{choice.get('name')}' not found in provided tools")


def _strict(where: str, schema: Any) -> None:
    if not isinstance(schema, dict):
        return
    kind = schema.get("type")
    if kind == "object" and schema.get("additionalProperties") is not False:
        refuse("strict_schema", f"{where}: For 'object' type, 'additionalProperties' must be explicitly set to false")
    extra = sorted(UNSUPPORTED & schema.keys())
    if extra:
        words = f"{where}: For '{kind}' type, properties {', '.join(extra)} are not supported"
        refuse("strict_schema", words)
    if schema.get("format", "date") not in FORMATS:
        refuse("strict_schema", f"{where}: For '{kind}' type, format '{schema['format']}' is not supported")
    if not {"type", "anyOf", "allOf", "enum", "const", "$ref"} & schema.keys():
        refuse("strict_schema", f"{where}: Schema type '' is not supported")
    for group in ("properties", "$defs"):
        for inner in schema.get(group, {}).values():
            _strict(where, inner)
    for inner in [schema.get("items"), *schema.get("anyOf", ())]:
        _strict(where, inner)


def _no_circle(schema: Any, definitions: Json, within: tuple[str, ...]) -> None:
    """Reject a definition that refers to itself."""
    if isinstance(schema, list):
        for inner in schema:
            _no_circle(inner, definitions, within)
    elif isinstance(schema, dict) and isinstance(schema.get("$ref"), str):
        name = schema["$ref"].removeprefix("#/$defs/")
        if name in within:
            circle = " -> ".join((*within, name))
            refuse("strict_schema", f"Circular reference detected in schema definitions: {circle}")
        _no_circle(definitions.get(name), definitions, (*within, name))
    elif isinstance(schema, dict):
        for key, inner in schema.items():
            if key != "$defs":
                _no_circle(inner, definitions, within)


def options(body: Json, model: Model) -> None:
    """Check sampling, stop sequences, output limit and output format."""
    limit = body["max_tokens"]
    if not isinstance(limit, int) or isinstance(limit, bool):
        refuse("wrong_type", "max_tokens: Input should be a valid integer")
    if limit > model.max_output:
        words = (
            f"{limit} > {model.max_output}, which is the maximum allowed number of output tokens for {body['model']}"
        )
        refuse("max_output", f"max_tokens: {words}")
    for option in ("temperature", "top_p", "top_k"):
        if model.era == "modern" and body.get(option) is not None:
            refuse("temperature", f"`{option}` is deprecated for this model.")
    if any(not stop.strip() for stop in body.get("stop_sequences") or ()):
        refuse("stop_sequences", "stop_sequences: each stop sequence must contain non-whitespace")
    config = body.get("output_config") or {}
    known("output_config", config, {"effort", "format"})
    if config.get("format"):
        schema = config["format"].get("schema")
        _strict("output_config.format.schema", schema)
        _no_circle(schema, schema.get("$defs", {}), ())


def _marks(body: Json) -> Iterator[str]:
    """Yield the times to live of all cache breakpoints, in the service's order."""
    system = body.get("system")
    spots: list[Any] = [*(body.get("tools") or ()), *(system if isinstance(system, list) else ())]
    for message in body["messages"]:
        if isinstance(message["content"], list):
            for part in message["content"]:
                spots.append(part)
                inner = part.get("content")
                spots.extend(inner if isinstance(inner, list) else ())
    for spot in [*spots, body]:
        control = spot.get("cache_control") if isinstance(spot, dict) else None
        if control is not None:
            if control.get("type") != "ephemeral" or control.get("ttl", "5m") not in ("5m", "1h"):
                refuse("cache_control", "cache_control: Input should be 'ephemeral' with a ttl of '5m' or '1h'")
            yield control.get("ttl", "5m")


def marks(body: Json) -> int:
    """Count the cache breakpoints; reject a long-lived one after a short-lived one."""
    found = list(_marks(body))
    if "5m" in found and "1h" in found[found.index("5m") :]:
        words = "a ttl='1h' cache_control block must not come after a ttl='5m' cache_control block"
        order = "Note that blocks are processed in the following order: `tools`, `system`, `messages`."
        refuse("cache_order", f"cache_control.ttl: {words}. {order}")
    return len(found)
