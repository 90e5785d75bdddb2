"""From a request to the bytes of Responses; each message is rendered once and only joined after that."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from crew.errors import ContentRefused, ProviderError, RequestRejected
from crew.interfaces import Delta, FinishReason, ModelReply, ModelRequest, ModelSettings, OnDelta, OutputSpec, ToolSpec
from crew.message_rules.profiles import Profile, get_profile
from crew.messages import (
    AssistantMessage,
    Message,
    ProviderData,
    SummaryMessage,
    SystemMessage,
    ToolCall,
    ToolMessage,
    Usage,
    UserMessage,
)
from crew.providers.connection import Connection
from crew.providers.error_mapping import ServiceError, provider_error
from crew.providers.sdk_clients import openai_client
from crew.providers.wire import (
    arguments_text,
    check_model_settings,
    drop_stale_reasoning,
    image_url,
    json_member,
    openai_schema,
    priced_usage,
    result_text,
    summary_text,
    to_json_bytes,
)

STALE_REASONING = "responses-distrusted"
Writer = tuple[str, str]
"""The provider and model that wrote a reasoning item, and that alone get it back."""

_CACHE_KEY = "responses"
_STATELESS = b',"store":false,"include":["reasoning.encrypted_content"]'


def render_request(request: ModelRequest, writer: Writer, profile: Profile, *, stream: bool = False) -> bytes:
    """The request's body for the writer's model; the same request gives the same bytes."""
    check_model_settings(request.settings, profile, writer[1])
    parts = [b'{"model":', to_json_bytes(writer[1]), _STATELESS, *_settings(request, profile)]

    if stream:
        parts.append(b',"stream":true')

    if request.conversation_id:
        parts.append(json_member("prompt_cache_key", request.conversation_id[:64]))

    if request.output is not None:
        parts.append(_text_format(request.output))

    if request.tools:
        parts += [b',"tools":[', b",".join([_render_tool(spec) for spec in request.tools]), b"]"]

    if request.instructions:
        parts.append(json_member("instructions", request.instructions))

    parts += [b',"input":[', b",".join([_render_items(message, writer) for message in request.messages]), b"]}"]
    return b"".join(parts)


def _settings(request: ModelRequest, profile: Profile) -> list[bytes]:
    settings: ModelSettings = request.settings
    effort = settings.reasoning if "reasoning" in profile.known_settings else None
    given: list[tuple[str, Any]] = [
        ("max_output_tokens", settings.max_output_tokens),
        ("temperature", settings.temperature),
        ("reasoning", {"effort": effort} if effort is not None else None),
    ]

    if request.tools:
        choice = settings.tool_choice
        named = {"type": "function", "name": choice}
        given += [
            ("tool_choice", choice if choice in (None, "auto", "none", "required") else named),
            ("parallel_tool_calls", settings.parallel_tool_calls),
        ]

    return [json_member(name, value) for name, value in given if value is not None]


def _text_format(output: OutputSpec) -> bytes:
    slot = output.cache()

    if _CACHE_KEY not in slot:
        schema, is_strict = openai_schema(output.schema)
        form = {"type": "json_schema", "name": output.name[:64], "schema": schema, "strict": is_strict}
        slot[_CACHE_KEY] = json_member("text", {"format": form})

    return bytes(slot[_CACHE_KEY])


def _render_tool(spec: ToolSpec) -> bytes:
    slot = spec.cache()

    if _CACHE_KEY not in slot:
        tool = {"type": "function", "name": spec.name, "description": spec.description}
        # Strict unless told otherwise, which would refuse most schemas.
        slot[_CACHE_KEY] = to_json_bytes(tool | {"parameters": dict(spec.parameters), "strict": False})

    return bytes(slot[_CACHE_KEY])


def _render_items(message: Message, writer: Writer) -> bytes:
    slot = message.cache()
    key = _CACHE_KEY

    if isinstance(message, AssistantMessage) and _has_own_reasoning(message, writer):
        key = "responses-reasoning"

    found: bytes | None = slot.get(key)

    if found is None:
        items = (
            _plain_items(message)
            if key == _CACHE_KEY or not isinstance(message, AssistantMessage)
            else _items_with_reasoning(message)
        )
        found = slot[key] = b",".join([to_json_bytes(item) for item in items])

    return found


def _has_own_reasoning(message: AssistantMessage, writer: Writer) -> bool:
    """Whether the reply's own reasoning may go back with it: written by this model, and nothing of it cut off."""
    data = message.provider_data

    if data is None or (data.provider, data.model) != writer or message.cache().get(STALE_REASONING):
        return False

    calls = sum(item["type"] == "function_call" for item in data.items)
    return all(item["calls"] == calls == len(message.calls) for item in data.items if item["type"] == "turn")


def _plain_items(message: Message) -> Iterator[dict[str, Any]]:
    match message:
        case SystemMessage():
            yield {"role": "system", "content": message.text}
        case UserMessage():
            yield {"role": "user", "content": _content(message)}
        case SummaryMessage():
            yield {"role": "user", "content": summary_text(message)}
        case AssistantMessage():
            if message.text.strip():
                # Parts, not a string: compatible servers take only those for an assistant.
                part = {"type": "output_text", "text": message.text}
                yield {"type": "message", "role": "assistant", "content": [part]}

            yield from (_call(call) for call in message.calls)
        case ToolMessage():
            for result in message.results:
                yield {"type": "function_call_output", "call_id": result.call_id, "output": result_text(result.text)}


def _content(message: UserMessage) -> str | list[dict[str, Any]]:
    if not message.images:
        return message.text

    parts: list[dict[str, Any]] = [{"type": "input_text", "text": message.text}] if message.text.strip() else []
    return parts + [{"type": "input_image", "image_url": image_url(image)} for image in message.images]


def _call(call: ToolCall) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": arguments_text(call)}


def _items_with_reasoning(message: AssistantMessage) -> Iterator[dict[str, Any]]:
    """The reply as it was written: reasoning verbatim, text and calls under the ids that belong to it."""
    assert message.provider_data is not None
    items = message.provider_data.items
    calls = {call.id: call for call in message.calls}
    whole = sum(item["length"] for item in items if item["type"] == "message") == len(message.text)
    start = 0

    for item in items:
        if item["type"] == "reasoning":
            yield item
        elif item["type"] == "message":
            # A text that is not the one that was written any more stands whole where it began.
            text = message.text[start : start + item["length"]] if whole else message.text if start == 0 else ""
            start += item["length"] if whole else 1
            part = {"type": "output_text", "text": text, "annotations": []}
            yield {"type": "message", "id": item["id"], "role": "assistant", "status": "completed", "content": [part]}
        elif item["type"] == "function_call":
            yield {"id": item["id"], **_call(calls[item["call_id"]])}


_REASONING = ("type", "id", "summary", "content", "encrypted_content")
_KINDS = {
    "response.output_text.delta": "text",
    "response.refusal.delta": "text",
    "response.reasoning_summary_text.delta": "thinking",
    "response.reasoning_text.delta": "thinking",
    "response.function_call_arguments.delta": "arguments",
}


def decode_reply(answer: Any, writer: Writer) -> ModelReply:
    """The reply in a whole answer."""
    if answer.get("status") == "failed":
        raise service_failure(answer.get("error"), writer)

    output = answer["output"]
    parts = [part for item in output if item["type"] == "message" for part in item["content"]]
    text = "".join(_part_text(part) for part in parts)
    calls = tuple(
        ToolCall(id=item["call_id"], name=item["name"], arguments=item["arguments"] or "")
        for item in output
        if item["type"] == "function_call"
    )
    reason = _finish_reason(answer, parts, calls)

    if reason == "filter" and not text and not calls:
        raise ContentRefused(
            f"The content filter of {writer[0]} stopped the reply of {writer[1]!r}.",
            provider=writer[0],
            model=writer[1],
        )

    return ModelReply(
        text=text,
        calls=calls,
        usage=decode_usage(answer.get("usage") or {}, writer),
        finish_reason=reason,
        provider_data=_reasoning_items(output, writer),
        model=answer.get("model") or writer[1],
        response_id=answer.get("id") or "",
    )


def service_failure(error: Any, writer: Writer) -> ProviderError:
    """The error that an answer or an event speaks of."""
    return provider_error(ServiceError.parse(200, error), provider=writer[0], model=writer[1])


def _part_text(part: Any) -> str:
    return str(part.get("text") or part.get("refusal") or "")


def _finish_reason(answer: Any, parts: list[Any], calls: tuple[ToolCall, ...]) -> FinishReason:
    if answer.get("status") == "incomplete":
        reason = (answer.get("incomplete_details") or {}).get("reason")
        return "filter" if reason == "content_filter" else "length"

    if any(part["type"] == "refusal" for part in parts):
        return "refusal"

    return "calls" if calls else "stop"


def _reasoning_items(output: list[Any], writer: Writer) -> ProviderData | None:
    """Reasoning as it was encrypted, and the ids of what belongs to it; of text and calls only the place is kept."""
    reasoning = [item for item in output if item["type"] == "reasoning"]

    # Reasoning that the service neither stored nor encrypted can't be shown to it again.
    if not reasoning or not all(item.get("encrypted_content") for item in reasoning):
        return None

    calls = sum(item["type"] == "function_call" for item in output)
    items: list[dict[str, Any]] = [{"type": "turn", "calls": calls}]

    for item in output:
        match item["type"]:
            case "reasoning":
                items.append({key: item[key] for key in _REASONING if item.get(key) is not None})
            case "message":
                length = sum(len(_part_text(part)) for part in item["content"])
                items.append({"type": "message", "id": item["id"], "length": length})
            case "function_call":
                items.append({"type": "function_call", "id": item["id"], "call_id": item["call_id"]})
            case _:
                pass  # what we never ask for

    return ProviderData(provider=writer[0], model=writer[1], items=tuple(items))


def decode_usage(bill: Any, writer: Writer) -> Usage:
    """What Responses bills: its input includes what was cached."""
    read = bill.get("input_tokens_details") or {}
    written = bill.get("output_tokens_details") or {}
    return priced_usage(
        *writer,
        input=bill.get("input_tokens") or 0,
        output=bill.get("output_tokens") or 0,
        read=read.get("cached_tokens") or 0,
        write=read.get("cache_write_tokens") or 0,
        reasoning=written.get("reasoning_tokens") or 0,
    )


class StreamDecoder:
    """Passes the pieces of a streamed answer on; its last event holds the whole."""

    def __init__(self, on_delta: OnDelta, writer: Writer) -> None:
        self._on_delta, self._writer = on_delta, writer
        self.answer: Any = None

    def add(self, event: Any) -> None:
        """One event."""
        kind = event["type"]

        if kind in _KINDS:
            self._on_delta(Delta(text=event["delta"], kind=_KINDS[kind]))  # type: ignore[arg-type]  # a Literal's value
        elif kind in ("response.completed", "response.incomplete"):
            self.answer = event["response"]
        elif kind == "response.failed":
            raise service_failure(event["response"].get("error"), self._writer)
        elif kind == "error":
            raise service_failure(event, self._writer)


_CLASSIC = re.compile(r"(ft:)?(gpt-3\.5|gpt-4|chatgpt-4)")
_BAD_REASONING = re.compile(r"encrypted content|Item with id 'rs_|of type 'reasoning'|required 'reasoning' item")


class OpenAIResponses:
    """Answers through Responses: `OpenAIResponses("gpt-5-mini")`. Nothing is stored at the service.

    Key and address come from OPENAI_API_KEY and OPENAI_BASE_URL where they are not given. `profile` names the rules
    that the requests keep; by default they follow from the model's name. `timeout` is for one request, in seconds.
    """

    is_remote = True

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        profile: str | None = None,
        timeout: float = 300.0,
        name: str = "openai-responses",
    ) -> None:
        self.name, self.model = name, model
        self.secrets = () if api_key is None else (api_key,)
        default = "openai-responses-classic" if _CLASSIC.match(model) else "openai-responses"
        self._rules = get_profile(profile or default)
        self.profile = self._rules.name
        self._connection = Connection(
            lambda: openai_client(api_key=api_key, base_url=base_url, timeout=timeout), "/responses", name, model
        )

    def __repr__(self) -> str:
        return f"OpenAIResponses({self.model!r}, profile={self.profile!r})"

    def check(self, settings: ModelSettings) -> None:
        """Whether this model knows these settings."""
        check_model_settings(settings, self._rules, self.model)

    async def complete(self, request: ModelRequest, on_delta: OnDelta | None = None) -> ModelReply:
        """Ask, and wait for the whole reply; pieces of it go to `on_delta` on their way."""
        try:
            return await self._ask(request, on_delta)
        except RequestRejected as error:
            if not (_BAD_REASONING.search(str(error)) and drop_stale_reasoning(request, STALE_REASONING)):
                raise

        # Reasoning that the service does not know again is dropped whole, and the same question asked without it.
        return await self._ask(request, on_delta)

    async def _ask(self, request: ModelRequest, on_delta: OnDelta | None) -> ModelReply:
        writer = (self.name, self.model)
        body = render_request(request, writer, self._rules, stream=on_delta is not None)

        if on_delta is None:
            return await self._connection.send(body, lambda answer: decode_reply(answer, writer))

        gathering = StreamDecoder(on_delta, writer)
        await self._connection.stream(body, gathering.add)

        if gathering.answer is None:
            raise self._connection.truncated_stream()

        return decode_reply(gathering.answer, writer)

    async def aclose(self) -> None:
        """Close the connections of the running event loop; they open again on the next request."""
        await self._connection.aclose()
