"""From an answer of Chat Completions, whole or in pieces, to a reply."""

from __future__ import annotations

from typing import Any

from crew.doors import Delta, FinishReason, ModelReply, OnDelta
from crew.errors import ContentRefused, MalformedReply
from crew.messages import ToolCall, Usage
from crew.providers.billing import billed

_FINISH: dict[str, FinishReason] = {
    "stop": "stop",
    "tool_calls": "calls",
    "function_call": "calls",
    "length": "length",
    "content_filter": "filter",
}


def from_wire(answer: Any, provider: str, model: str) -> ModelReply:
    """The reply in a whole answer."""
    choices = answer["choices"]

    if not choices:
        raise MalformedReply(f"{provider} ({model}) gave an answer without a choice.", provider=provider, model=model)

    message = choices[0]["message"]
    calls = tuple(
        ToolCall(id=call.get("id") or "", name=call["function"]["name"], arguments=call["function"]["arguments"] or "")
        for call in message.get("tool_calls") or ()
    )
    return _reply(
        answer,
        provider,
        model,
        text=message.get("content") or "",
        refusal=message.get("refusal") or "",
        calls=calls,
        finish=choices[0].get("finish_reason") or "stop",
    )


def _reply(
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
        usage=usage_of(answer.get("usage") or {}, provider, model),
        finish_reason=reason,
        model=answer.get("model") or model,
        response_id=answer.get("id") or "",
    )


def usage_of(bill: Any, provider: str, model: str) -> Usage:
    """What Chat Completions bills: its prompt tokens include the cached ones."""
    read = bill.get("prompt_tokens_details") or {}
    written = bill.get("completion_tokens_details") or {}
    return billed(
        provider,
        model,
        input=bill.get("prompt_tokens") or 0,
        output=bill.get("completion_tokens") or 0,
        read=read.get("cached_tokens") or 0,
        write=read.get("cache_write_tokens") or 0,
        reasoning=written.get("reasoning_tokens") or 0,
    )


class Gathering:
    """Puts the pieces of a streamed answer together."""

    def __init__(self, on_delta: OnDelta) -> None:
        self._on_delta = on_delta
        self._text: list[str] = []
        self._refusal: list[str] = []
        self._calls: dict[int, dict[str, str]] = {}
        self._finish = ""
        self._head: dict[str, Any] = {}

    @property
    def is_whole(self) -> bool:
        """Whether the answer's end has come; one without a choice has none, but says what it used."""
        return bool(self._finish or self._head.get("usage"))

    def take(self, event: Any) -> None:
        """One piece."""
        self._head.update((key, event[key]) for key in ("id", "model", "usage") if event.get(key))

        for choice in event.get("choices") or ():
            self._finish = choice.get("finish_reason") or self._finish
            self._add(choice.get("delta") or {})

    def _add(self, delta: Any) -> None:
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
        return _reply(
            self._head,
            provider,
            model,
            text="".join(self._text),
            refusal="".join(self._refusal),
            calls=calls,
            finish=self._finish,
        )
