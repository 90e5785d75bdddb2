"""OpenAI's Responses API, without storage at the service: rendering, decoding and `OpenAIResponses`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Literal

from crew.errors import ProviderError, RequestRejected
from crew.interfaces import Delta, FinishReason, ModelReply, ModelRequest, OnDelta, OutputSpec, ToolSpec
from crew.message_rules.profiles import Profile, check_model_settings
from crew.messages import (
    AssistantMessage,
    Message,
    ProviderData,
    SummaryMessage,
    SystemMessage,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from crew.providers.error_mapping import ServiceError, provider_error
from crew.providers.sdk_clients import openai_client
from crew.providers.sdk_provider import SDKProvider
from crew.providers.strict_schemas import openai_schema
from crew.providers.wire import (
    CLASSIC_OPENAI_MODEL,
    JSONObject,
    ModelId,
    arguments_text,
    cached_bytes,
    checked_text,
    content_filtered,
    drop_stale_reasoning,
    image_url,
    json_member,
    json_members,
    openai_usage,
    reply_arguments,
    reply_id,
    result_text,
    summary_text,
    to_json_bytes,
)

_BAD_REASONING = re.compile(r"encrypted content|Item with id 'rs_|of type 'reasoning'|required 'reasoning' item")
_STALE_REASONING = "responses-stale"
_CACHE_KEY = "responses"
_REASONING_CACHE_KEY = "responses-reasoning"
_STATELESS = b',"store":false,"include":["reasoning.encrypted_content"]'
_REASONING_FIELDS = ("type", "id", "summary", "content", "encrypted_content")
_DELTA_KINDS: dict[str, Literal["text", "thinking", "arguments"]] = {
    "response.output_text.delta": "text",
    "response.refusal.delta": "text",
    "response.reasoning_summary_text.delta": "thinking",
    "response.reasoning_text.delta": "thinking",
    "response.function_call_arguments.delta": "arguments",
}


class OpenAIResponses(SDKProvider):
    """Calls a model through Responses: `OpenAIResponses("gpt-5-mini")`. The service stores nothing.

    Key and URL default to OPENAI_API_KEY and OPENAI_BASE_URL. The default `profile` follows from the model's name.
    """

    default_name = "openai-responses"
    endpoint = "/responses"
    _open_client = staticmethod(openai_client)

    @staticmethod
    def _default_profile(model: str) -> str:
        return "openai-responses-classic" if CLASSIC_OPENAI_MODEL.match(model) else "openai-responses"

    def _render(self, request: ModelRequest, *, stream: bool) -> bytes:
        return render_request(request, self._model_id, self._rules, stream=stream)

    def _decode(self, answer: JSONObject) -> ModelReply:
        return decode_reply(answer, self._model_id)

    def _stream_decoder(self, on_delta: OnDelta) -> ResponsesStreamDecoder:
        return ResponsesStreamDecoder(on_delta, self._model_id)

    def _adapt(self, request: ModelRequest, error: RequestRejected) -> bool:
        """Drop all reasoning if the service no longer accepts its own."""
        return bool(_BAD_REASONING.search(str(error))) and drop_stale_reasoning(request, _STALE_REASONING)


# -------------------------------------------------------------------------------------------- requests


def render_request(request: ModelRequest, model_id: ModelId, profile: Profile, *, stream: bool = False) -> bytes:
    """Render the request's body; equal requests give equal bytes."""
    check_model_settings(request.settings, profile, model_id.model)
    parts = [b'{"model":', to_json_bytes(model_id.model), _STATELESS, *_settings(request, profile)]

    if stream:
        parts.append(b',"stream":true')

    if request.conversation_id:
        parts.append(json_member("prompt_cache_key", request.conversation_id[:64]))

    if request.output is not None:
        parts.append(cached_bytes(request.output, _CACHE_KEY, _text_format))

    if request.tools:
        tools = [cached_bytes(spec, _CACHE_KEY, _tool_json) for spec in request.tools]
        parts += [b',"tools":[', b",".join(tools), b"]"]

    if request.instructions:
        parts.append(json_member("instructions", request.instructions))

    parts += [b',"input":[', b",".join([_render_items(message, model_id) for message in request.messages]), b"]}"]
    return b"".join(parts)


def _settings(request: ModelRequest, profile: Profile) -> list[bytes]:
    settings = request.settings
    effort = settings.reasoning if "reasoning" in profile.known_settings else None
    members: dict[str, object] = {
        "max_output_tokens": settings.max_output_tokens,
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "reasoning": {"effort": effort} if effort is not None else None,
    }

    if request.tools:
        choice = settings.tool_choice
        is_mode = choice in (None, "auto", "none", "required")
        members["tool_choice"] = choice if is_mode else {"type": "function", "name": choice}
        members["parallel_tool_calls"] = settings.parallel_tool_calls

    return [*json_members(members), *json_members(settings.extra_body or {})]


def _text_format(output: OutputSpec) -> bytes:
    schema, is_strict = openai_schema(output.schema)
    named = {"type": "json_schema", "name": output.name[:64], "schema": schema, "strict": is_strict}
    return json_member("text", {"format": named})


def _tool_json(spec: ToolSpec) -> bytes:
    tool = {"type": "function", "name": spec.name, "description": spec.description}
    # Responses defaults to strict, and strict mode rejects most tool schemas.
    return to_json_bytes(tool | {"parameters": dict(spec.parameters), "strict": False})


def _render_items(message: Message, model_id: ModelId) -> bytes:
    cache = message.cache()
    key = _CACHE_KEY

    if isinstance(message, AssistantMessage) and _may_send_reasoning(message, model_id):
        key = _REASONING_CACHE_KEY

    rendered: bytes | None = cache.get(key)

    if rendered is None:
        items = (
            _plain_items(message)
            if key == _CACHE_KEY or not isinstance(message, AssistantMessage)
            else _items_with_reasoning(message)
        )
        rendered = cache[key] = b",".join([to_json_bytes(item) for item in items])

    return rendered


def _may_send_reasoning(message: AssistantMessage, model_id: ModelId) -> bool:
    """Whether the reply's reasoning goes back with it: this model wrote it, and no call of the reply was removed."""
    data = message.provider_data

    if data is None or (data.provider, data.model) != model_id or message.cache().get(_STALE_REASONING):
        return False

    calls = sum(item["type"] == "function_call" for item in data.items)
    return all(item["calls"] == calls == len(message.calls) for item in data.items if item["type"] == "turn")


def _plain_items(message: Message) -> Iterator[dict[str, object]]:
    match message:
        case SystemMessage():
            yield {"role": "system", "content": message.text}
        case UserMessage():
            yield {"role": "user", "content": _content(message)}
        case SummaryMessage():
            yield {"role": "user", "content": summary_text(message)}
        case AssistantMessage():
            if message.text.strip():
                # Compatible servers accept an assistant's content only as parts, not as a string.
                part = {"type": "output_text", "text": message.text}
                yield {"type": "message", "role": "assistant", "content": [part]}

            yield from (_call_item(call) for call in message.calls)
        case ToolMessage():
            for result in message.results:
                yield {"type": "function_call_output", "call_id": result.call_id, "output": result_text(result.text)}


def _content(message: UserMessage) -> str | list[object]:
    if not message.images:
        return message.text

    parts: list[object] = [{"type": "input_text", "text": message.text}] if message.text.strip() else []
    return parts + [{"type": "input_image", "image_url": image_url(image)} for image in message.images]


def _call_item(call: ToolCall) -> dict[str, object]:
    return {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": arguments_text(call)}


def _items_with_reasoning(message: AssistantMessage) -> Iterator[JSONObject]:
    """Render the reply as the model wrote it: reasoning verbatim, text and calls with their item ids."""
    assert message.provider_data is not None
    items = message.provider_data.items
    calls = {call.id: call for call in message.calls}
    unchanged = sum(item["length"] for item in items if item["type"] == "message") == len(message.text)
    start = 0

    for item in items:
        if item["type"] == "reasoning":
            yield item
        elif item["type"] == "message":
            # A text that was changed since (masked, scrubbed) can't be split: it goes into the first text item.
            text = message.text[start : start + item["length"]] if unchanged else message.text if start == 0 else ""
            start += item["length"] if unchanged else 1
            part = {"type": "output_text", "text": text, "annotations": []}
            yield {"type": "message", "id": item["id"], "role": "assistant", "status": "completed", "content": [part]}
        elif item["type"] == "function_call":
            yield {"id": item["id"], **_call_item(calls[item["call_id"]])}


# --------------------------------------------------------------------------------------------- replies


def decode_reply(answer: JSONObject, model_id: ModelId) -> ModelReply:
    """Decode a whole response; a stream's last event holds one too."""
    if answer.get("status") == "failed":
        raise service_failure(answer.get("error"), model_id)

    output = answer["output"]
    parts = [part for item in output if item["type"] == "message" for part in _parts(item)]
    text = "".join(_part_text(part) for part in parts)
    calls = tuple(
        ToolCall(id=reply_id(item["call_id"]), name=item["name"], arguments=reply_arguments(item.get("arguments")))
        for item in output
        if item["type"] == "function_call"
    )
    reason = _finish_reason(answer, parts, calls)

    if reason == "filter" and not text and not calls:
        raise content_filtered(model_id)

    warnings: list[str] = []
    return ModelReply(
        text=text,
        calls=calls,
        usage=openai_usage(answer.get("usage"), model_id, warnings, input="input_tokens", output="output_tokens"),
        finish_reason=reason,
        provider_data=_reasoning_data(output, model_id),
        model=answer.get("model") or model_id.model,
        response_id=reply_id(answer.get("id")),
        warnings=tuple(warnings),
    )


def service_failure(error: object, model_id: ModelId) -> ProviderError:
    """Return the error that a failed response or an error event reports."""
    return provider_error(ServiceError.parse(200, error), provider=model_id.provider, model=model_id.model)


def _parts(item: JSONObject) -> Sequence[JSONObject]:
    """Return the parts of a message; some servers send a text instead."""
    content = item["content"]
    return [{"type": "output_text", "text": content}] if isinstance(content, str) else content or ()


def _part_text(part: JSONObject) -> str:
    return checked_text(part.get("text") or part.get("refusal") or "")


def _finish_reason(answer: JSONObject, parts: Sequence[JSONObject], calls: tuple[ToolCall, ...]) -> FinishReason:
    if answer.get("status") == "incomplete":
        reason = (answer.get("incomplete_details") or {}).get("reason")
        return "filter" if reason == "content_filter" else "length"

    if any(part["type"] == "refusal" for part in parts):
        return "refusal"

    return "calls" if calls else "stop"


def _reasoning_data(output: Sequence[JSONObject], model_id: ModelId) -> ProviderData | None:
    """Keep the encrypted reasoning, and of each text and call only its id and position."""
    reasoning = [item for item in output if item["type"] == "reasoning"]

    # The service accepts reasoning only if it stored or encrypted it.
    if not reasoning or not all(item.get("encrypted_content") for item in reasoning):
        return None

    calls = sum(item["type"] == "function_call" for item in output)
    items: list[dict[str, object]] = [{"type": "turn", "calls": calls}]

    for item in output:
        match item["type"]:
            case "reasoning":
                items.append({key: item[key] for key in _REASONING_FIELDS if item.get(key) is not None})
            case "message":
                length = sum(len(_part_text(part)) for part in _parts(item))
                items.append({"type": "message", "id": item["id"], "length": length})
            case "function_call":
                items.append({"type": "function_call", "id": item["id"], "call_id": reply_id(item["call_id"])})
            case _:
                pass  # items of built-in tools, which requests never enable

    return ProviderData(provider=model_id.provider, model=model_id.model, items=tuple(items))


class ResponsesStreamDecoder:
    """Forwards the deltas of a stream and keeps its last event, which holds the whole response."""

    def __init__(self, on_delta: OnDelta, model_id: ModelId) -> None:
        self._on_delta, self._model_id = on_delta, model_id
        self._answer: JSONObject | None = None

    @property
    def is_complete(self) -> bool:
        return self._answer is not None

    def add(self, event: JSONObject) -> None:
        """Process one event."""
        kind = event["type"]

        if kind in _DELTA_KINDS:
            self._on_delta(Delta(text=reply_arguments(event["delta"]), kind=_DELTA_KINDS[kind]))
        elif kind in ("response.completed", "response.incomplete"):
            self._answer = event["response"]
        elif kind == "response.failed":
            raise service_failure(event["response"].get("error"), self._model_id)
        elif kind == "error":
            raise service_failure(event, self._model_id)

    def reply(self) -> ModelReply:
        """Return the reply once the stream has ended."""
        assert self._answer is not None
        return decode_reply(self._answer, self._model_id)
