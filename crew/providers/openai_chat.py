"""OpenAI's Chat Completions API, which many compatible servers offer too: rendering, decoding and `OpenAIChat`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from crew.errors import MalformedReply, RequestRejected
from crew.interfaces import Delta, FinishReason, ModelReply, ModelRequest, OnDelta, OutputSpec, ToolSpec
from crew.message_rules.profiles import Profile, check_model_settings
from crew.message_rules.reply_checks import MAX_CALLS
from crew.messages import (
    AssistantMessage,
    Image,
    Message,
    SummaryMessage,
    SystemMessage,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from crew.providers.sdk_clients import openai_client
from crew.providers.sdk_provider import SDKProvider
from crew.providers.strict_schemas import openai_schema
from crew.providers.wire import (
    CLASSIC_OPENAI_MODEL,
    JSONObject,
    ModelId,
    arguments_text,
    cached_bytes,
    check_part_count,
    checked_text,
    content_filtered,
    image_url,
    json_member,
    json_members,
    openai_usage,
    parse_json,
    reply_arguments,
    reply_id,
    reply_text,
    result_text,
    sampling_members,
    summary_text,
    to_json_bytes,
)

_CURRENT_MODEL = re.compile(r"(ft:)?(gpt-|o\d|codex|chatgpt)")
_CACHE_KEY = "chat"
_FINISH: dict[str, FinishReason] = {
    "stop": "stop",
    "tool_calls": "calls",
    "function_call": "calls",
    "length": "length",
    "content_filter": "filter",
}


class OpenAIChat(SDKProvider):
    """Calls a model through Chat Completions: `OpenAIChat("gpt-5-mini")`, or a compatible server with `base_url=`.

    Key and URL default to OPENAI_API_KEY and OPENAI_BASE_URL. The default `profile` follows from the model's name.
    """

    default_name = "openai"
    endpoint = "/chat/completions"
    _open_client = staticmethod(openai_client)

    @staticmethod
    def _default_profile(model: str) -> str:
        if CLASSIC_OPENAI_MODEL.match(model):
            return "openai-chat-classic"

        return "openai-chat" if _CURRENT_MODEL.match(model) else "compatible"

    def _render(self, request: ModelRequest, *, stream: bool) -> bytes:
        return render_request(request, self.model, self._rules, stream=stream)

    def _decode(self, answer: JSONObject) -> ModelReply:
        return decode_reply(answer, self._model_id)

    def _stream_decoder(self, on_delta: OnDelta) -> ChatStreamDecoder:
        return ChatStreamDecoder(on_delta, self._model_id)

    def _adapt(self, request: ModelRequest, error: RequestRejected) -> bool:
        return False


# -------------------------------------------------------------------------------------------- requests


def render_request(request: ModelRequest, model: str, profile: Profile, *, stream: bool = False) -> bytes:
    """Render the request's body; equal requests give equal bytes."""
    check_model_settings(request.settings, profile, model)
    parts = [b'{"model":', to_json_bytes(model), *_settings(request, profile)]

    if stream:
        parts.append(b',"stream":true,"stream_options":{"include_usage":true}')

    if request.conversation_id and profile.name.startswith("openai"):
        parts.append(json_member("prompt_cache_key", request.conversation_id[:64]))

    if request.output is not None:
        parts.append(cached_bytes(request.output, _CACHE_KEY, _response_format))

    if request.tools:
        tools = [cached_bytes(spec, _CACHE_KEY, _tool_json) for spec in request.tools]
        parts += [b',"tools":[', b",".join(tools), b"]"]

    rendered = (
        _merged_messages(request)
        if profile.merges_same_role
        else [cached_bytes(message, _CACHE_KEY, _message_json) for message in request.messages]
    )

    if request.instructions and not profile.merges_same_role:
        rendered.insert(0, to_json_bytes({"role": "system", "content": request.instructions}))

    parts += [b',"messages":[', b",".join(rendered), b"]}"]
    return b"".join(parts)


def _settings(request: ModelRequest, profile: Profile) -> list[bytes]:
    settings = request.settings
    members: dict[str, object] = {
        profile.output_limit_field: settings.max_output_tokens,
        # `reasoning="none"` is accepted for every model, and not sent to those without reasoning.
        "reasoning_effort": settings.reasoning if "reasoning" in profile.known_settings else None,
        "stop": list(settings.stop) or None,
        **sampling_members(settings),
    }

    if request.tools:
        choice = settings.tool_choice
        is_mode = choice in (None, "auto", "none", "required")
        members["tool_choice"] = choice if is_mode else {"type": "function", "function": {"name": choice}}
        members["parallel_tool_calls"] = settings.parallel_tool_calls

    return [*json_members(members), *json_members(settings.extra_body or {})]


def _response_format(output: OutputSpec) -> bytes:
    schema, is_strict = openai_schema(output.schema)
    named = {"name": output.name[:64], "schema": schema, "strict": is_strict}
    return json_member("response_format", {"type": "json_schema", "json_schema": named})


def _tool_json(spec: ToolSpec) -> bytes:
    function = {"name": spec.name, "description": spec.description, "parameters": dict(spec.parameters)}
    return to_json_bytes({"type": "function", "function": function})


def _message_json(message: Message) -> bytes:
    return b",".join([to_json_bytes(turn) for turn in _turns(message)])


def _turns(message: Message) -> list[dict[str, object]]:
    match message:
        case SystemMessage():
            return [{"role": "system", "content": message.text}]
        case UserMessage():
            return [{"role": "user", "content": _content(message.text, message.images)}]
        case SummaryMessage():
            return [{"role": "user", "content": summary_text(message)}]
        case AssistantMessage():
            return [_assistant_turn(message)]
        case ToolMessage():
            return [
                {"role": "tool", "tool_call_id": result.call_id, "content": result_text(result.text)}
                for result in message.results
            ]


def _assistant_turn(message: AssistantMessage) -> dict[str, object]:
    turn: dict[str, object] = {"role": "assistant", "content": message.text or None}

    if message.calls:
        turn["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments_text(call)}}
            for call in message.calls
        ]

    return turn


def _content(text: str, images: Sequence[Image]) -> str | list[object]:
    if not images:
        return text

    parts: list[object] = [{"type": "text", "text": text}] if text.strip() else []
    return parts + [{"type": "image_url", "image_url": {"url": image_url(image)}} for image in images]


def _merged_messages(request: ModelRequest) -> list[bytes]:
    """Render for chat templates that require alternating roles: merge neighbours, put all system text first."""
    leading = next(
        (i for i, m in enumerate(request.messages) if not isinstance(m, SystemMessage)), len(request.messages)
    )
    hoisted = [request.instructions, *(m.text for m in request.messages[:leading] if isinstance(m, SystemMessage))]
    turns: list[dict[str, object]] = []

    for message in request.messages[leading:]:
        shown = UserMessage(f"[Instruction]\n{message.text}") if isinstance(message, SystemMessage) else message

        for turn in _turns(shown):
            last = turns[-1] if turns else None

            if last is not None and last["role"] == turn["role"] != "tool" and "tool_calls" not in last:
                turns[-1] = {**turn, "content": _merge_content(last["content"], turn["content"])}
            else:
                turns.append(turn)

    if system := "\n\n".join(text for text in hoisted if text.strip()):
        turns.insert(0, {"role": "system", "content": system})

    return [to_json_bytes(turn) for turn in turns]


def _merge_content(first: object, second: object) -> object:
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}\n\n{second}"

    if first is None or second is None:
        return first or second

    return [*_parts(first), *_parts(second)]


def _parts(content: object) -> list[object]:
    return list(content) if isinstance(content, list) else [{"type": "text", "text": content}]


# --------------------------------------------------------------------------------------------- replies


def decode_reply(answer: JSONObject, model_id: ModelId) -> ModelReply:
    """Decode a response that was not streamed."""
    choices = answer["choices"]

    if not choices:
        raise _no_choice(model_id)

    message = choices[0]["message"]
    calls = tuple(
        ToolCall(
            id=reply_id(call.get("id")),
            name=call["function"]["name"],
            arguments=reply_arguments(call["function"].get("arguments")),
        )
        for call in message.get("tool_calls") or ()
    )
    return _build_reply(
        answer,
        model_id,
        text=reply_text(message.get("content")),
        refusal=message.get("refusal") or "",
        calls=calls,
        finish=choices[0].get("finish_reason") or "stop",
    )


def _no_choice(model_id: ModelId) -> MalformedReply:
    provider, model = model_id
    return MalformedReply(f"{provider} ({model}) returned no choice.", provider=provider, model=model)


def _build_reply(
    answer: JSONObject, model_id: ModelId, *, text: str, refusal: str, calls: tuple[ToolCall, ...], finish: str
) -> ModelReply:
    reason = "refusal" if refusal else _FINISH.get(finish, "calls" if calls else "stop")

    if reason == "filter" and not text and not calls:
        raise content_filtered(model_id)

    warnings: list[str] = []
    usage = openai_usage(answer.get("usage"), model_id, warnings, input="prompt_tokens", output="completion_tokens")
    return ModelReply(
        text=text or refusal,
        calls=calls,
        usage=usage,
        finish_reason=reason,
        model=answer.get("model") or model_id.model,
        response_id=reply_id(answer.get("id")),
        warnings=tuple(warnings),
    )


class _StreamedCall:
    """A call whose pieces arrive one by one."""

    __slots__ = ("arguments", "id", "name", "position")

    def __init__(self, position: int) -> None:
        self.position = position
        self.id = self.name = ""
        self.arguments: list[str] = []


class ChatStreamDecoder:
    """Joins the chunks of a streamed response."""

    def __init__(self, on_delta: OnDelta, model_id: ModelId) -> None:
        self._on_delta, self._model_id = on_delta, model_id
        self._text: list[str] = []
        self._refusal: list[str] = []
        self._calls: list[_StreamedCall] = []
        self._newest_at: dict[int, _StreamedCall] = {}
        self._finish = ""
        self._head: dict[str, object] = {}

    @property
    def is_complete(self) -> bool:
        """A response without a choice has no finish reason, but ends with its usage."""
        return bool(self._finish or self._head.get("usage"))

    def add(self, event: JSONObject) -> None:
        """Process one chunk."""
        self._head.update((key, event[key]) for key in ("id", "model", "usage") if event.get(key))

        for choice in event.get("choices") or ():
            self._finish = choice.get("finish_reason") or self._finish
            self._add_delta(choice.get("delta") or {})

    def _add_delta(self, delta: JSONObject) -> None:
        if text := reply_text(delta.get("content")):
            self._text.append(text)
            self._on_delta(Delta(text=text))

        if text := checked_text(delta.get("refusal") or ""):
            self._refusal.append(text)
            self._on_delta(Delta(text=text))

        if text := checked_text(delta.get("reasoning_content") or ""):
            self._on_delta(Delta(text=text, kind="thinking"))

        for piece in delta.get("tool_calls") or ():
            function = piece.get("function") or {}
            call = self._call_of(piece.get("index"), reply_id(piece.get("id")), function.get("name") or "")

            if text := reply_arguments(function.get("arguments")):
                call.arguments.append(text)
                self._on_delta(Delta(text=text, kind="arguments"))

    def _call_of(self, index: int | None, id: str, name: str) -> _StreamedCall:
        """Return the call that a piece belongs to.

        Some servers send no index, or the same one for all calls. Then a piece with a name and another id starts a
        call. A name alone starts one too: where it may as well repeat the name of an unfinished call, it is unclear.
        """
        if index is not None:
            found = self._newest_at.get(index)
        elif id:
            found = next((call for call in self._calls if call.id == id), None if name else self._newest)
        else:
            found = self._newest

            if found is not None and name:
                if found.name == name and not _is_object("".join(found.arguments)):
                    raise TypeError("a piece of a call has neither an index nor an id")

                found = None

        if found is None or (name and id and found.id and found.id != id):
            found = _StreamedCall(len(self._calls) if index is None else index)
            self._calls.append(found)
            check_part_count(len(self._calls), MAX_CALLS, "tool calls", self._model_id)

            if index is not None:
                self._newest_at[index] = found

        found.id, found.name = found.id or id, found.name or name
        return found

    @property
    def _newest(self) -> _StreamedCall | None:
        return self._calls[-1] if self._calls else None

    def reply(self) -> ModelReply:
        """Return the reply once the stream has ended."""
        if not self._finish:
            raise _no_choice(self._model_id)

        calls = sorted(self._calls, key=lambda call: call.position)
        return _build_reply(
            self._head,
            self._model_id,
            text="".join(self._text),
            refusal="".join(self._refusal),
            calls=tuple(ToolCall(id=call.id, name=call.name, arguments="".join(call.arguments)) for call in calls),
            finish=self._finish,
        )


def _is_object(text: str) -> bool:
    try:
        return isinstance(parse_json(text), dict)
    except ValueError:
        return False
