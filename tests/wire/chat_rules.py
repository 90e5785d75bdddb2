"""The rules of Chat Completions."""

from typing import Any

from tests.wire import openai_fields as fields
from tests.wire.model import Json, Model
from tests.wire.rejections import refuse

TOP = frozenset(
    [
        "audio",
        "frequency_penalty",
        "function_call",
        "functions",
        "logit_bias",
        "logprobs",
        "max_completion_tokens",
        "max_tokens",
        "messages",
        "metadata",
        "modalities",
        "model",
        "moderation",
        "n",
        "parallel_tool_calls",
        "prediction",
        "presence_penalty",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "reasoning_effort",
        "response_format",
        "safety_identifier",
        "seed",
        "service_tier",
        "stop",
        "store",
        "stream",
        "stream_options",
        "temperature",
        "tool_choice",
        "tools",
        "top_logprobs",
        "top_p",
        "user",
        "verbosity",
        "web_search_options",
    ]
)
MESSAGE = {
    "system": {"role", "content", "name"},
    "assistant": {"role", "content", "name", "audio", "function_call", "refusal", "tool_calls"},
    "user": {"role", "content", "name"},
    "function": {"role", "content", "name"},
    "tool": {"role", "content", "tool_call_id"},
    "developer": {"role", "content", "name"},
}
PARTS = {
    "text": {"type", "text", "prompt_cache_breakpoint"},
    "image_url": {"type", "image_url", "prompt_cache_breakpoint"},
    "input_audio": {"type", "input_audio", "prompt_cache_breakpoint"},
    "file": {"type", "file", "prompt_cache_breakpoint"},
    "refusal": {"type", "refusal"},
}
PARTS_OF = {"user": ("text", "image_url", "input_audio", "file"), "assistant": ("text", "refusal")}
CALL_ID = 40


def check(body: Json, model: Model) -> None:
    """Check every rule that depends on the request alone, from the outermost field inwards."""
    extra = [key for key in body if key not in TOP]
    if extra:
        plural = "s" if len(extra) > 1 else ""
        refuse("unknown_field", f"Unrecognized request argument{plural} supplied: {', '.join(extra)}")
    fields.required("", body, "model", "messages")
    _options(body, model)
    _tools(body)
    fields.filled("messages", body["messages"])
    for index, message in enumerate(body["messages"]):
        _message(f"messages[{index}]", index, message)
    _pairs(body["messages"])


def _options(body: Json, model: Model) -> None:
    if body.get("stream_options") is not None:
        if not body.get("stream"):
            message = "The 'stream_options' parameter is only allowed when 'stream' is enabled."
            refuse("only_with_stream", message, "stream_options")
        fields.known("stream_options", body["stream_options"], {"include_usage", "include_obfuscation"})
    if model.era == "modern" and body.get("max_tokens") is not None:
        message = (
            "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
        )
        refuse("max_tokens", message, "max_tokens", "unsupported_parameter")
    if model.era == "classic" and body.get("reasoning_effort") is not None:
        refuse("reasoning_effort", "Unrecognized request argument supplied: reasoning_effort")
    fields.era_options(body, model, "max_tokens")
    fields.era_options(body, model, "max_completion_tokens")
    form = body.get("response_format")
    if form is not None:
        fields.typed("response_format", form, dict, "an object")
        fields.known("response_format", form, {"type", "json_schema"})
        fields.json_format("response_format", form, form.get("json_schema", {}))


def _tools(body: Json) -> None:
    tools = fields.tool_list(body)
    names = []
    for index, tool in enumerate(tools):
        where = f"tools[{index}]"
        fields.typed(where, tool, dict, "an object")
        fields.known(where, tool, {"type", "function"})
        fields.required(where, tool, "type", "function")
        fields.chosen(f"{where}.type", tool["type"], ("function", "custom"))
        function = tool["function"]
        fields.known(f"{where}.function", function, {"name", "description", "parameters", "strict"})
        fields.required(f"{where}.function", function, "name")
        fields.name(f"{where}.function.name", function["name"])
        names.append(function["name"])
        if "parameters" in function:
            subject = f"function '{function['name']}'"
            strict = function.get("strict") is True
            fields.function_schema(subject, f"{where}.function.parameters", function["parameters"], strict=strict)
    choice = body.get("tool_choice")
    if isinstance(choice, str):
        fields.chosen("tool_choice", choice, ("none", "auto", "required"))
    elif isinstance(choice, dict) and choice.get("type") == "function" and choice["function"]["name"] not in names:
        message = f"Invalid value for 'tool_choice': tool_choice does not match any of the specified 'tools'. {choice}"
        refuse("tool_choice", message, "tool_choice")


def _message(where: str, index: int, message: Any) -> None:
    fields.typed(where, message, dict, "an object")
    fields.required(where, message, "role")
    role = message["role"]
    fields.chosen(f"{where}.role", role, tuple(MESSAGE), "role")
    fields.known(where, message, MESSAGE[role])
    if role == "tool":
        fields.required(where, message, "tool_call_id")
        fields.typed(f"{where}.tool_call_id", message["tool_call_id"], str, "a string")
        fields.short(f"{where}.tool_call_id", message["tool_call_id"], CALL_ID)
    calls = message.get("tool_calls")
    if calls is not None:
        fields.filled(f"{where}.tool_calls", calls)
        for place, call in enumerate(calls):
            _call(f"{where}.tool_calls[{place}]", call)
    content = message.get("content")
    if content is None:
        if role != "assistant" or not (calls or message.get("refusal") or message.get("audio")):
            words = "Invalid value for 'content': expected a string, got null."
            refuse("null_content", words, f"messages.[{index}].content")
    elif not isinstance(content, str):
        _parts(f"{where}.content", role, content)


def _parts(where: str, role: str, content: Any) -> None:
    fields.typed(where, content, list, "one of a string or array of objects")
    fields.filled(where, content)
    for place, part in enumerate(content):
        fields.typed(f"{where}[{place}]", part, dict, "an object")
        fields.chosen(f"{where}[{place}].type", part.get("type"), PARTS_OF.get(role, ("text",)), "part_type")
        fields.known(f"{where}[{place}]", part, PARTS[part["type"]])
        fields.required(f"{where}[{place}]", part, part["type"])


def _call(where: str, call: Any) -> None:
    fields.typed(where, call, dict, "an object")
    fields.required(where, call, "id", "type", "function")
    fields.known(where, call, {"id", "type", "function"})
    fields.chosen(f"{where}.type", call["type"], ("function", "custom"))
    fields.typed(f"{where}.id", call["id"], str, "a string")
    fields.short(f"{where}.id", call["id"], CALL_ID)
    fields.known(f"{where}.function", call["function"], {"name", "arguments"})
    fields.required(f"{where}.function", call["function"], "name", "arguments")
    fields.name(f"{where}.function.name", call["function"]["name"])
    fields.typed(f"{where}.function.arguments", call["function"]["arguments"], str, "a string")


def _pairs(messages: list[Json]) -> None:
    """Each result follows its call; each call has one result, before any other message."""
    ever: set[str] = set()
    caller, open_ids, answered = -1, dict[str, None](), dict[str, int]()
    for index, message in enumerate(messages):
        if message["role"] == "tool":
            _answer(index, message["tool_call_id"], caller, open_ids, answered)
            continue
        _all_answered(caller, open_ids, answered)
        caller, open_ids, answered = -1, {}, {}
        for call in message.get("tool_calls") or ():
            if call["id"] in ever:
                words = f"Duplicate value for 'tool_call_id' of '{call['id']}' in message[{index}]."
                refuse("duplicate_call_id", words, f"messages.[{index}].tool_calls")
            ever.add(call["id"])
            caller, open_ids[call["id"]] = index, None
    _all_answered(caller, open_ids, answered)


def _answer(index: int, call_id: str, caller: int, open_ids: dict[str, None], answered: dict[str, int]) -> None:
    if caller < 0:
        words = "messages with role 'tool' must be a response to a preceeding message with 'tool_calls'."
        refuse("tool_without_call", f"Invalid parameter: {words}", f"messages.[{index}].role")
    if call_id not in open_ids:
        words = f"'tool_call_id' of '{call_id}' not found in 'tool_calls' of previous message."
        refuse("tool_call_id_not_found", f"Invalid parameter: {words}", f"messages.[{index}].tool_call_id")
    if call_id in answered:
        places = f"messages[{answered[call_id]}] and messages[{index}]"
        words = f"Duplicate value for 'tool_call_id' of '{call_id}', in {places}."
        refuse("duplicate_answer", f"Invalid parameter: {words}", f"messages.[{index}].tool_call_id")
    answered[call_id] = index


def _all_answered(caller: int, open_ids: dict[str, None], answered: dict[str, int]) -> None:
    missing = [call_id for call_id in open_ids if call_id not in answered]
    if missing:
        words = (
            "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
            f"'tool_call_id'. The following tool_call_ids did not have response messages: {', '.join(missing)}"
        )
        refuse("unanswered_call", words, f"messages.[{caller}].role")
