"""From an answer of Chat Completions, whole or in pieces, to a reply."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from crew.errors import ContentRefused, MalformedReply
from crew.interfaces import Delta, FinishReason, ModelReply, ModelRequest, ModelSettings, OnDelta, OutputSpec, ToolSpec
from crew.message_rules.profiles import Profile, get_profile
from crew.messages import (
    AssistantMessage,
    Image,
    Message,
    SummaryMessage,
    SystemMessage,
    ToolCall,
    ToolMessage,
    Usage,
    UserMessage,
)
from crew.providers.connection import Connection
from crew.providers.sdk_clients import openai_client
from crew.providers.wire import (
    arguments_text,
    check_model_settings,
    image_url,
    json_member,
    openai_schema,
    priced_usage,
    result_text,
    summary_text,
    to_json_bytes,
)

_FINISH: dict[str, FinishReason] = {
    "stop": "stop",
    "tool_calls": "calls",
    "function_call": "calls",
    "length": "length",
    "content_filter": "filter",
}


def decode_reply(answer: Any, provider: str, model: str) -> ModelReply:
    """The reply in a whole answer."""
    choices = answer["choices"]

    if not choices:
        raise MalformedReply(f"{provider} ({model}) gave an answer without a choice.", provider=provider, model=model)

    message = choices[0]["message"]
    calls = tuple(
        ToolCall(id=call.get("id") or "", name=call["function"]["name"], arguments=call["function"]["arguments"] or "")
        for call in message.get("tool_calls") or ()
    )
    return _build_reply(
        answer,
        provider,
        model,
        text=message.get("content") or "",
        refusal=message.get("refusal") or "",
        calls=calls,
        finish=choices[0].get("finish_reason") or "stop",
    )


def _build_reply(
    answer: Any, provider: str, model: str, *, text: str, refusal: str, calls: tuple[ToolCall, ...], finish: str
) -> ModelReply:
    reason = "refusal" if refusal else _FINISH.get(finish, "calls" if calls else "stop")

    if reason == "filter" and not text and not calls:
        raise ContentRefused(
            f"The content filter of {provider} stopped the reply of {model!r}.", provider=provider, model=model
        )

    return ModelReply(
        text=text or refusal,
        calls=calls,
        usage=decode_usage(answer.get("usage") or {}, provider, model),
        finish_reason=reason,
        model=answer.get("model") or model,
        response_id=answer.get("id") or "",
    )


def decode_usage(bill: Any, provider: str, model: str) -> Usage:
    """What Chat Completions bills: its prompt tokens include the cached ones."""
    read = bill.get("prompt_tokens_details") or {}
    written = bill.get("completion_tokens_details") or {}
    return priced_usage(
        provider,
        model,
        input=bill.get("prompt_tokens") or 0,
        output=bill.get("completion_tokens") or 0,
        read=read.get("cached_tokens") or 0,
        write=read.get("cache_write_tokens") or 0,
        reasoning=written.get("reasoning_tokens") or 0,
    )


class StreamDecoder:
    """Puts the pieces of a streamed answer together."""

    def __init__(self, on_delta: OnDelta) -> None:
        self._on_delta = on_delta
        self._text: list[str] = []
        self._refusal: list[str] = []
        self._calls: dict[int, dict[str, str]] = {}
        self._finish = ""
        self._head: dict[str, Any] = {}

    @property
    def is_complete(self) -> bool:
        """Whether the answer's end has come; one without a choice has none, but says what it used."""
        return bool(self._finish or self._head.get("usage"))

    def add(self, event: Any) -> None:
        """One piece."""
        self._head.update((key, event[key]) for key in ("id", "model", "usage") if event.get(key))

        for choice in event.get("choices") or ():
            self._finish = choice.get("finish_reason") or self._finish
            self._add_delta(choice.get("delta") or {})

    def _add_delta(self, delta: Any) -> None:
        if text := delta.get("content"):
            self._text.append(text)
            self._on_delta(Delta(text=text))

        if text := delta.get("refusal"):
            self._refusal.append(text)
            self._on_delta(Delta(text=text))

        if text := delta.get("reasoning_content"):
            self._on_delta(Delta(text=text, kind="thinking"))

        for piece in delta.get("tool_calls") or ():
            call = self._calls.setdefault(piece.get("index") or 0, {"id": "", "name": "", "arguments": ""})
            function = piece.get("function") or {}
            call["id"] = call["id"] or piece.get("id") or ""
            call["name"] = call["name"] or function.get("name") or ""

            if text := function.get("arguments"):
                call["arguments"] += text
                self._on_delta(Delta(text=text, kind="arguments"))

    def reply(self, provider: str, model: str) -> ModelReply:
        """The whole reply."""
        if not self._finish:
            raise MalformedReply(
                f"{provider} ({model}) gave an answer without a choice.", provider=provider, model=model
            )

        calls = tuple(ToolCall(**call) for _, call in sorted(self._calls.items()))
        return _build_reply(
            self._head,
            provider,
            model,
            text="".join(self._text),
            refusal="".join(self._refusal),
            calls=calls,
            finish=self._finish,
        )


_CACHE_KEY = "chat"


def render_request(request: ModelRequest, model: str, profile: Profile, *, stream: bool = False) -> bytes:
    """The request's body; the same request gives the same bytes."""
    check_model_settings(request.settings, profile, model)
    parts = [b'{"model":', to_json_bytes(model), *_settings(request, profile)]

    if stream:
        parts.append(b',"stream":true,"stream_options":{"include_usage":true}')

    if request.conversation_id and profile.name.startswith("openai"):
        parts.append(json_member("prompt_cache_key", request.conversation_id[:64]))

    if request.output is not None:
        parts.append(_response_format(request.output))

    if request.tools:
        parts += [b',"tools":[', b",".join([_render_tool(spec) for spec in request.tools]), b"]"]

    rendered = (
        _merged_messages(request)
        if profile.merges_same_role
        else [_render_message(message) for message in request.messages]
    )

    if request.instructions and not profile.merges_same_role:
        rendered.insert(0, to_json_bytes({"role": "system", "content": request.instructions}))

    parts += [b',"messages":[', b",".join(rendered), b"]}"]
    return b"".join(parts)


def _settings(request: ModelRequest, profile: Profile) -> list[bytes]:
    settings: ModelSettings = request.settings
    given: list[tuple[str, Any]] = [
        (profile.output_limit_field, settings.max_output_tokens),
        ("temperature", settings.temperature),
        ("reasoning_effort", settings.reasoning if "reasoning" in profile.known_settings else None),
        ("stop", list(settings.stop) or None),
        ("seed", settings.seed),
    ]

    if request.tools:
        given += [
            ("tool_choice", _tool_choice(settings.tool_choice)),
            ("parallel_tool_calls", settings.parallel_tool_calls),
        ]

    return [json_member(name, value) for name, value in given if value is not None]


def _tool_choice(choice: str | None) -> Any:
    return (
        choice if choice in (None, "auto", "none", "required") else {"type": "function", "function": {"name": choice}}
    )


def _response_format(output: OutputSpec) -> bytes:
    slot = output.cache()

    if _CACHE_KEY not in slot:
        schema, is_strict = openai_schema(output.schema)
        named = {"name": output.name[:64], "schema": schema, "strict": is_strict}
        slot[_CACHE_KEY] = json_member("response_format", {"type": "json_schema", "json_schema": named})

    return bytes(slot[_CACHE_KEY])


def _render_tool(spec: ToolSpec) -> bytes:
    slot = spec.cache()

    if _CACHE_KEY not in slot:
        function = {"name": spec.name, "description": spec.description, "parameters": dict(spec.parameters)}
        slot[_CACHE_KEY] = to_json_bytes({"type": "function", "function": function})

    return bytes(slot[_CACHE_KEY])


def _render_message(message: Message) -> bytes:
    slot = message.cache()
    found: bytes | None = slot.get(_CACHE_KEY)

    if found is None:
        found = slot[_CACHE_KEY] = b",".join([to_json_bytes(turn) for turn in _turns(message)])

    return found


def _turns(message: Message) -> list[dict[str, Any]]:
    match message:
        case SystemMessage():
            return [{"role": "system", "content": message.text}]
        case UserMessage():
            return [{"role": "user", "content": _content(message.text, message.images)}]
        case SummaryMessage():
            return [{"role": "user", "content": summary_text(message)}]
        case AssistantMessage():
            return [_assistant(message)]
        case ToolMessage():
            return [
                {"role": "tool", "tool_call_id": result.call_id, "content": result_text(result.text)}
                for result in message.results
            ]


def _assistant(message: AssistantMessage) -> dict[str, Any]:
    turn: dict[str, Any] = {"role": "assistant", "content": message.text or None}

    if message.calls:
        turn["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments_text(call)}}
            for call in message.calls
        ]

    return turn


def _content(text: str, images: Sequence[Image]) -> str | list[dict[str, Any]]:
    if not images:
        return text

    parts: list[dict[str, Any]] = [{"type": "text", "text": text}] if text.strip() else []
    return parts + [{"type": "image_url", "image_url": {"url": image_url(image)}} for image in images]


def _merged_messages(request: ModelRequest) -> list[bytes]:
    """For templates that insist on alternation: neighbours of one role are one, and nothing but the first is system."""
    leading = next(
        (i for i, m in enumerate(request.messages) if not isinstance(m, SystemMessage)), len(request.messages)
    )
    hoisted = [request.instructions, *(m.text for m in request.messages[:leading] if isinstance(m, SystemMessage))]
    turns: list[dict[str, Any]] = []

    for message in request.messages[leading:]:
        said = UserMessage(f"[Instruction]\n{message.text}") if isinstance(message, SystemMessage) else message

        for turn in _turns(said):
            last = turns[-1] if turns else None

            if last is not None and last["role"] == turn["role"] != "tool" and "tool_calls" not in last:
                turns[-1] = {**turn, "content": _merge_content(last["content"], turn["content"])}
            else:
                turns.append(turn)

    if system := "\n\n".join(text for text in hoisted if text.strip()):
        turns.insert(0, {"role": "system", "content": system})

    return [to_json_bytes(turn) for turn in turns]


def _merge_content(first: Any, second: Any) -> Any:
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}\n\n{second}"

    if first is None or second is None:
        return first or second

    return [*_parts(first), *_parts(second)]


def _parts(content: Any) -> list[dict[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


_CLASSIC = re.compile(r"(ft:)?(gpt-3\.5|gpt-4|chatgpt-4)")
_MODERN = re.compile(r"(ft:)?(gpt-|o\d|codex|chatgpt)")


class OpenAIChat:
    """Answers through Chat Completions: `OpenAIChat("gpt-5-mini")`, or with `base_url=` any compatible server.

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
        name: str = "openai",
    ) -> None:
        self.name, self.model = name, model
        self.secrets = () if api_key is None else (api_key,)
        self._rules = get_profile(profile or _default_profile(model))
        self.profile = self._rules.name
        self._connection = Connection(
            lambda: openai_client(api_key=api_key, base_url=base_url, timeout=timeout),
            "/chat/completions",
            name,
            model,
        )

    def __repr__(self) -> str:
        return f"OpenAIChat({self.model!r}, profile={self.profile!r})"

    def check(self, settings: ModelSettings) -> None:
        """Whether this model knows these settings."""
        check_model_settings(settings, self._rules, self.model)

    async def complete(self, request: ModelRequest, on_delta: OnDelta | None = None) -> ModelReply:
        """Ask, and wait for the whole reply; pieces of it go to `on_delta` on their way."""
        body = render_request(request, self.model, self._rules, stream=on_delta is not None)

        if on_delta is None:
            return await self._connection.send(body, lambda answer: decode_reply(answer, self.name, self.model))

        gathering = StreamDecoder(on_delta)
        await self._connection.stream(body, gathering.add)

        if not gathering.is_complete:
            raise self._connection.truncated_stream()

        return gathering.reply(self.name, self.model)

    async def aclose(self) -> None:
        """Close the connections of the running event loop; they open again on the next request."""
        await self._connection.aclose()


def _default_profile(model: str) -> str:
    if _CLASSIC.match(model):
        return "openai-chat-classic"

    return "openai-chat" if _MODERN.match(model) else "compatible"
