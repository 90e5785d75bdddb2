"""The rules of Responses."""

from typing import Any

from tests.wire import openai_fields as fields
from tests.wire.model import Json, Model
from tests.wire.rejections import refuse
from tests.wire.signing import Signer, read_item_id, turn_of_call

TOP = frozenset(
    [
        "access_programs",
        "background",
        "context_management",
        "conversation",
        "image",
        "include",
        "input",
        "instructions",
        "max_output_tokens",
        "max_tool_calls",
        "metadata",
        "model",
        "moderation",
        "parallel_tool_calls",
        "previous_response_id",
        "prompt",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "reasoning",
        "safety_identifier",
        "service_tier",
        "store",
        "stream",
        "stream_options",
        "temperature",
        "text",
        "tool_choice",
        "tools",
        "top_logprobs",
        "top_p",
        "truncation",
        "user",
    ]
)
ITEMS = {
    "message": {"type", "role", "content", "id", "status", "phase"},
    "function_call": {"type", "id", "call_id", "name", "arguments", "status", "caller", "namespace", "async"},
    "function_call_output": {"type", "id", "call_id", "output", "status", "caller", "name", "namespace"},
    "reasoning": {"type", "id", "summary", "content", "encrypted_content", "status"},
}
PREFIX = {"message": "msg", "function_call": "fc", "function_call_output": "fc", "reasoning": "rs"}
PARTS = {
    "input_text": {"type", "text", "prompt_cache_breakpoint"},
    "input_image": {"type", "detail", "file_id", "image_url", "prompt_cache_breakpoint"},
    "input_file": {"type", "detail", "file_id", "file_data", "file_url", "filename", "prompt_cache_breakpoint"},
    "output_text": {"type", "text", "annotations", "logprobs"},
    "refusal": {"type", "refusal"},
}
TOOL = {
    "type",
    "name",
    "description",
    "parameters",
    "strict",
    "allowed_callers",
    "async",
    "defer_loading",
    "output_schema",
}
ROLES = ("assistant", "system", "developer", "user")


def check(body: Json, model: Model, signer: Signer) -> None:
    """Check every rule that depends on the request alone, from the outermost field inwards."""
    for key in body:
        if key not in TOP:
            refuse("unknown_field", f"Unknown parameter: '{key}'.", key, "unknown_parameter")
    fields.required("", body, "model", "input")
    _options(body, model)
    _tools(body)
    given = body["input"]
    if isinstance(given, str):
        return
    fields.typed("input", given, list, "one of a string or array of input items")
    fields.filled("input", given)
    for index, item in enumerate(given):
        _item(f"input[{index}]", item)
    _ids(given)
    _reasoning(body, given, signer)
    _pairs(given)


def _options(body: Json, model: Model) -> None:
    if model.era == "modern" and body.get("temperature") not in (None, 1):
        message = "Unsupported parameter: 'temperature' is not supported with this model."
        refuse("temperature", message, "temperature", "unsupported_parameter")
    if model.era == "classic" and (body.get("reasoning") or {}).get("effort") is not None:
        message = "Unsupported parameter: 'reasoning.effort' is not supported with this model."
        refuse("reasoning_effort", message, "reasoning.effort", "unsupported_parameter")
    fields.era_options(body, model, "max_output_tokens")
    limit = body.get("max_output_tokens")
    if limit is not None and limit < 16:
        message = f"integer below minimum value. Expected a value >= 16, but got {limit} instead."
        refuse("min_output", f"Invalid 'max_output_tokens': {message}", "max_output_tokens", "integer_below_min_value")
    if body.get("stream_options") is not None and not body.get("stream"):
        message = "The 'stream_options' parameter is only allowed when 'stream' is enabled."
        refuse("only_with_stream", message, "stream_options")
    if body.get("previous_response_id") is not None:
        message = f"Previous response with id '{body['previous_response_id']}' not found."
        refuse("previous_response", message, "previous_response_id", "previous_response_not_found")
    if body.get("text") is not None:
        fields.known("text", body["text"], {"format", "verbosity"})
        form = body["text"].get("format")
        if form is not None:
            fields.known("text.format", form, {"type", "name", "schema", "strict", "description"})
            fields.json_format("text.format", form, form)


def _tools(body: Json) -> None:
    names = []
    for index, tool in enumerate(fields.tool_list(body)):
        where = f"tools[{index}]"
        fields.typed(where, tool, dict, "an object")
        fields.required(where, tool, "type", "name", "parameters")
        fields.chosen(f"{where}.type", tool["type"], ("function", "custom"))
        fields.known(where, tool, TOOL)
        fields.name(f"{where}.name", tool["name"])
        names.append(tool["name"])
        if tool["parameters"] is not None:
            strict = tool.get("strict") is True
            subject = f"function '{tool['name']}'"
            fields.function_schema(subject, f"{where}.parameters", tool["parameters"], strict=strict)
    choice = body.get("tool_choice")
    if isinstance(choice, str):
        fields.chosen("tool_choice", choice, ("none", "auto", "required"))
    elif isinstance(choice, dict) and choice.get("type") == "function" and choice.get("name") not in names:
        refuse("tool_choice", f"Tool choice '{choice.get('name')}' not found in 'tools' parameter.", "tool_choice")


def _item(where: str, item: Any) -> None:
    fields.typed(where, item, dict, "an object")
    kind = item.get("type", "message" if "role" in item else None)
    fields.chosen(where, kind, tuple(ITEMS), "item_type")
    fields.known(where, item, ITEMS[kind])
    if item.get("id") is not None:
        _item_id(where, kind, item["id"])
    if kind == "message":
        _message(where, item)
    elif kind == "reasoning":
        fields.required(where, item, "id", "summary")
    else:
        fields.required(where, item, "call_id")
        fields.short(f"{where}.call_id", item["call_id"], 64)
    if kind == "function_call":
        fields.required(where, item, "name", "arguments")
        fields.name(f"{where}.name", item["name"])
        fields.typed(f"{where}.arguments", item["arguments"], str, "a string")
    if kind == "function_call_output":
        fields.required(where, item, "output")
        if not isinstance(item["output"], str):
            _parts(f"{where}.output", item["output"], ("input_text", "input_image", "input_file"))


def _item_id(where: str, kind: str, given: Any) -> None:
    fields.typed(f"{where}.id", given, str, "a string")
    fields.short(f"{where}.id", given, 64)
    prefix = PREFIX[kind]
    if not given.startswith(prefix):
        message = f"Invalid '{where}.id': '{given}'. Expected an ID that begins with '{prefix}'."
        refuse("item_id", message, f"{where}.id", "invalid_value")


def _message(where: str, item: Json) -> None:
    fields.required(where, item, "role", "content")
    fields.chosen(f"{where}.role", item["role"], ROLES, "role")
    if not isinstance(item["content"], str):
        ours = item["role"] == "assistant"
        _parts(
            f"{where}.content",
            item["content"],
            ("output_text", "refusal") if ours else ("input_text", "input_image", "input_file"),
        )


def _parts(where: str, content: Any, kinds: tuple[str, ...]) -> None:
    fields.typed(where, content, list, "one of a string or array of objects")
    for place, part in enumerate(content):
        fields.typed(f"{where}[{place}]", part, dict, "an object")
        fields.chosen(f"{where}[{place}]", part.get("type"), kinds, "part_type")
        fields.known(f"{where}[{place}]", part, PARTS[part["type"]])


def _ids(items: list[Json]) -> None:
    seen: set[str] = set()
    for item in items:
        given = item.get("id")
        if given in seen:
            message = f"Duplicate item found with id {given}. Remove duplicate items from your input and try again."
            refuse("duplicate_item", message, "input")
        if given is not None:
            seen.add(given)


def _reasoning(body: Json, items: list[Json], signer: Signer) -> None:
    """Reasoning is unchanged and followed by its item; an item of a turn with reasoning comes after that reasoning."""
    reasoned: set[str] = set()
    for index, item in enumerate(items):
        made = read_item_id(item.get("id"))
        if item.get("type") == "reasoning":
            _proof(body, item, signer)
            if made:
                reasoned.add(made.turn)
            follower = items[index + 1] if index + 1 < len(items) else None
            if not _belongs(made.turn if made else None, follower):
                words = f"Item '{item['id']}' of type 'reasoning' was provided without its required following item."
                refuse("reasoning_alone", words, "input")
        elif made and made.reasoned and made.turn not in reasoned:
            kind = item.get("type", "message")
            lacking = f"rs_{made.turn}100"
            words = (
                f"Item '{item['id']}' of type '{kind}' was provided without its required 'reasoning' item: '{lacking}'."
            )
            refuse("item_without_reasoning", words, "input")


def _proof(body: Json, item: Json, signer: Signer) -> None:
    proof = item.get("encrypted_content")
    if proof is None:
        words = (
            f"Item with id '{item['id']}' not found. Items are not persisted when `store` is set to false. "
            "Try again with `store` set to true, or remove this item from your input."
        )
        refuse("unstored_reasoning", words, "input", status=404)
    if signer.verify(body["model"], reasoning_content(item), proof) is None:
        shown = f"{proof[:4]}...{proof[-4:]}"
        why = "Reason: Encrypted content could not be decrypted or parsed."
        refuse(
            "reasoning_proof",
            f"The encrypted content {shown} could not be verified. {why}",
            None,
            "invalid_encrypted_content",
        )


def reasoning_content(item: Json) -> str:
    """Return the part of a reasoning item that its signature covers: the id and the summary."""
    return "\0".join([item["id"], *(str(part.get("text")) for part in item["summary"])])


def _belongs(turn: str | None, follower: Json | None) -> bool:
    """Whether an item may follow a reasoning item: written by the model, and in the same turn if its ids show it."""
    if follower is None or follower.get("type") == "function_call_output":
        return False
    if follower.get("type", "message") == "message" and follower.get("role") != "assistant":
        return False
    made = read_item_id(follower.get("id"))
    theirs = made.turn if made else turn_of_call(follower.get("call_id"))
    return turn is None or theirs is None or turn == theirs


def _pairs(items: list[Json]) -> None:
    calls: dict[str, bool] = {}
    for item in items:
        kind, call_id = item.get("type"), item.get("call_id", "")
        if kind == "function_call":
            if call_id in calls:
                words = f"Duplicate function call found with call_id {call_id}."
                refuse("duplicate_call_id", words, "input")
            calls[call_id] = False
        elif kind == "function_call_output":
            if calls.get(call_id, True):
                words = f"No tool call found for function call output with call_id {call_id}."
                refuse("output_without_call", words, "input")
            calls[call_id] = True
    for call_id, answered in calls.items():
        if not answered:
            refuse("unanswered_call", f"No tool output found for function call {call_id}.", "input")
