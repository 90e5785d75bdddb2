"""Anthropic's Messages API: decoding and `Anthropic`; `anthropic_render` renders the requests."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from crew.errors import ContentRefused, RequestRejected
from crew.interfaces import Delta, FinishReason, ModelReply, ModelRequest, ModelSettings, OnDelta
from crew.message_rules.reply_checks import check_count
from crew.messages import ProviderData, ToolCall, Usage
from crew.providers.anthropic_render import DEFAULT_OUTPUT_TOKENS, check_anthropic_settings, render_request
from crew.providers.anthropic_turns import STALE_THINKING, THINKING_BLOCKS
from crew.providers.sdk_clients import anthropic_client
from crew.providers.sdk_provider import SDKProvider
from crew.providers.wire import (
    JSONObject,
    ModelId,
    check_part_count,
    checked_text,
    drop_stale_reasoning,
    priced_usage,
    reply_arguments,
    reply_id,
    usage_object,
)

_VERSION = re.compile(r"claude-(?:[a-z]+-)?(\d+)(?:[-.](\d{1,2})(?!\d))?")
_BAD_SIGNATURE = re.compile(r"Invalid `(signature|data)` in|thinking` blocks? in the latest|cannot be modified")
_OUTPUT_TOO_LARGE = re.compile(r"`max_tokens` exceed context limit: \d+ \+ \d+ > (\d+)")
_FINISH: dict[str, FinishReason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "tool_use": "calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "refusal",
}
_MAX_BLOCKS = 1024
_SIGNED_FIELDS = {"thinking": ("type", "thinking", "signature"), "redacted_thinking": ("type", "data")}


class Anthropic(SDKProvider):
    """Calls a model through Anthropic's Messages: `Anthropic("claude-sonnet-4-5")`.

    Key and URL default to ANTHROPIC_API_KEY and ANTHROPIC_BASE_URL. The default `profile` follows from the version in
    the model's name.
    """

    default_name = "anthropic"
    endpoint = "/v1/messages"
    _open_client = staticmethod(anthropic_client)
    _default_output = DEFAULT_OUTPUT_TOKENS

    @staticmethod
    def _default_profile(model: str) -> str:
        found = _VERSION.search(model)

        if not found:
            return "anthropic"

        version = (int(found[1]), int(found[2] or 0))
        return "anthropic-classic" if version < (4, 7) else "anthropic-4.7" if version < (4, 8) else "anthropic"

    def check(self, settings: ModelSettings) -> None:
        """Raise DefinitionError if the model does not support a setting, or not together with another."""
        check_anthropic_settings(settings, self._rules, self.model)

    def _render(self, request: ModelRequest, *, stream: bool) -> bytes:
        return render_request(request, self._model_id, self._rules, stream=stream, default_output=self._default_output)

    def _decode(self, answer: JSONObject) -> ModelReply:
        return decode_reply(answer, self._model_id)

    def _stream_decoder(self, on_delta: OnDelta) -> MessagesStreamDecoder:
        return MessagesStreamDecoder(on_delta, self._model_id)

    def _adapt(self, request: ModelRequest, error: RequestRejected) -> bool:
        """Drop all thinking if the service rejects a signature; lower the default output limit if it is too large."""
        if _BAD_SIGNATURE.search(str(error)) and drop_stale_reasoning(request, STALE_THINKING):
            return True

        return request.settings.max_output_tokens is None and self._lower_default_output(error)

    def _lower_default_output(self, error: RequestRejected) -> bool:
        found = _OUTPUT_TOO_LARGE.search(str(error))
        fitting = int(found[1]) // 4 if found else self._default_output

        if fitting >= self._default_output:
            return False

        self._default_output = fitting
        return True


def decode_reply(answer: JSONObject, model_id: ModelId) -> ModelReply:
    """Decode a response that was not streamed."""
    content = answer["content"]
    # Some servers send a text instead of blocks, and a call's input as JSON text.
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    finish = answer.get("stop_reason") or "end_turn"
    arguments = {
        index: reply_arguments(block["input"]) for index, block in enumerate(blocks) if block["type"] == "tool_use"
    }

    if finish == "max_tokens" and len(blocks) - 1 in arguments:
        # The service completes the JSON of a call that the output limit cut off. Without its last character it is
        # invalid again, so that the call is not run with partial arguments.
        arguments[len(blocks) - 1] = arguments[len(blocks) - 1][:-1]

    return _build_reply(answer, blocks, arguments, finish, answer.get("usage"), model_id)


def _build_reply(
    head: JSONObject,
    blocks: Sequence[JSONObject],
    arguments: dict[int, str],
    finish: str,
    usage: object,
    model_id: ModelId,
) -> ModelReply:
    provider, model = model_id
    text = "".join(block["text"] for block in blocks if block["type"] == "text")
    calls = tuple(
        ToolCall(id=reply_id(blocks[index]["id"]), name=blocks[index]["name"], arguments=json)
        for index, json in sorted(arguments.items())
    )
    reason = _FINISH.get(finish, "calls" if calls else "stop")

    if reason == "refusal" and not text and not calls:
        raise ContentRefused(f"{provider} ({model}) refused to answer.", provider=provider, model=model)

    warnings: list[str] = []
    return ModelReply(
        text=text,
        calls=calls,
        usage=decode_usage(usage, model_id, warnings),
        finish_reason=reason,
        provider_data=_thinking_data(blocks, model_id),
        model=head.get("model") or model,
        response_id=reply_id(head.get("id")),
        warnings=tuple(warnings),
    )


def _thinking_data(blocks: Sequence[JSONObject], model_id: ModelId) -> ProviderData | None:
    """Keep the signed thinking, and of each text and call only its length or id and its position."""
    if not any(block["type"] in THINKING_BLOCKS for block in blocks):
        return None

    items: list[dict[str, object]] = []

    for block in blocks:
        kind = block["type"]

        if kind in THINKING_BLOCKS:
            items.append({key: block[key] for key in _SIGNED_FIELDS[kind]})
        elif kind == "text":
            items.append({"type": kind, "length": len(block["text"])})
        elif kind == "tool_use":
            items.append({"type": kind, "call_id": reply_id(block["id"])})

    return ProviderData(provider=model_id.provider, model=model_id.model, items=tuple(items))


def decode_usage(usage: object, model_id: ModelId, problems: list[str]) -> Usage:
    """Decode Anthropic's usage, whose input tokens exclude cache reads and writes."""
    figures = usage_object(usage, problems)
    details = usage_object(figures.get("output_tokens_details"), problems)
    fresh, read, write = (
        check_count(name, figures.get(name) or 0, problems)
        for name in ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    )
    return priced_usage(
        model_id,
        problems,
        input=fresh + read + write,
        output=figures.get("output_tokens") or 0,
        read=read,
        write=write,
        reasoning=details.get("thinking_tokens") or 0,
    )


class MessagesStreamDecoder:
    """Joins the events of a streamed response; a call's arguments stay the text that the model wrote."""

    def __init__(self, on_delta: OnDelta, model_id: ModelId) -> None:
        self._on_delta, self._model_id = on_delta, model_id
        self._head: JSONObject = {}
        self._usage: dict[str, object] = {}
        self._blocks: list[dict[str, Any]] = []
        self._pieces: list[list[str]] = []
        self._finish = ""
        self.is_complete = False

    def add(self, event: JSONObject) -> None:
        """Process one event."""
        match event["type"]:
            case "message_start":
                self._head = event["message"]
                self._usage = dict(self._head.get("usage") or {})
            case "content_block_start":
                self._blocks.append(dict(event["content_block"]))
                self._pieces.append([])
                check_part_count(len(self._blocks), _MAX_BLOCKS, "content blocks", self._model_id)
            case "content_block_delta":
                # Without an index, a piece belongs to the block that started last.
                self._add_delta(event.get("index", -1), event["delta"])
            case "message_delta":
                self._finish = event["delta"].get("stop_reason") or ""
                self._usage.update((k, v) for k, v in (event.get("usage") or {}).items() if v is not None)
            case "message_stop":
                self.is_complete = True
            case _:
                pass  # pings, and event types that a later API version adds

    def _add_delta(self, index: int, delta: JSONObject) -> None:
        block, pieces = self._blocks[index], self._pieces[index]

        match delta["type"]:
            case "text_delta":
                pieces.append(checked_text(delta["text"]))
                self._on_delta(Delta(text=delta["text"]))
            case "thinking_delta":
                pieces.append(checked_text(delta["thinking"]))
                self._on_delta(Delta(text=delta["thinking"], kind="thinking"))
            case "signature_delta":
                block["signature"] = delta["signature"]
            case "input_json_delta":
                if text := reply_arguments(delta["partial_json"]):
                    pieces.append(text)
                    self._on_delta(Delta(text=text, kind="arguments"))
            case _:
                pass  # citations, and delta types that a later API version adds

    def reply(self) -> ModelReply:
        """Return the reply once the stream has ended."""
        arguments: dict[int, str] = {}

        for index, (block, pieces) in enumerate(zip(self._blocks, self._pieces, strict=True)):
            match block["type"]:
                case "tool_use":
                    # Some servers send the whole input with the start of the block.
                    arguments[index] = "".join(pieces) or reply_arguments(block.get("input") or "")
                case "text" | "thinking" as field:
                    block[field] = "".join([block[field], *pieces])
                case _:
                    pass  # blocks without pieces

        return _build_reply(self._head, self._blocks, arguments, self._finish, self._usage, self._model_id)
