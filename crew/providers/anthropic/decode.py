"""From an answer of Anthropic's Messages, whole or in pieces, to a reply."""

from __future__ import annotations

from typing import Any

from crew.doors import Delta, FinishReason, ModelReply, OnDelta
from crew.errors import ContentRefused
from crew.messages import ProviderData, ToolCall, Usage
from crew.providers.anthropic.turns import THINKING, Writer
from crew.providers.billing import billed
from crew.providers.wire import dump

_FINISH: dict[str, FinishReason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "tool_use": "calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "refusal",
}
_SIGNED = {"thinking": ("type", "thinking", "signature"), "redacted_thinking": ("type", "data")}


def from_wire(answer: Any, writer: Writer) -> ModelReply:
    """The reply in a whole answer."""
    blocks = answer["content"]
    finish = answer.get("stop_reason") or "end_turn"
    raw = {place: dump(block["input"]).decode() for place, block in enumerate(blocks) if block["type"] == "tool_use"}

    if finish == "max_tokens" and len(blocks) - 1 in raw:
        # The service parses what was written of a call that the limit cut off, and hands it out as if it were whole.
        # Without its last character it is seen to be none, and is not run.
        raw[len(blocks) - 1] = raw[len(blocks) - 1][:-1]

    return _reply(answer, blocks, raw, finish, answer.get("usage") or {}, writer)


def _reply(head: Any, blocks: list[Any], raw: dict[int, str], finish: str, usage: Any, writer: Writer) -> ModelReply:
    text = "".join(block["text"] for block in blocks if block["type"] == "text")
    calls = tuple(
        ToolCall(id=blocks[place]["id"], name=blocks[place]["name"], arguments=arguments)
        for place, arguments in sorted(raw.items())
    )
    reason = _FINISH.get(finish, "calls" if calls else "stop")

    if reason == "refusal" and not text and not calls:
        raise ContentRefused(f"{writer[0]} ({writer[1]}) refused to answer.", provider=writer[0], model=writer[1])

    return ModelReply(
        text=text,
        calls=calls,
        usage=usage_of(usage, writer),
        finish_reason=reason,
        provider_data=_original(blocks, writer),
        model=head.get("model") or writer[1],
        response_id=head.get("id") or "",
    )


def _original(blocks: list[Any], writer: Writer) -> ProviderData | None:
    """Thinking as it was signed, and where it stood among text and calls; of those only the place is kept."""
    if not any(block["type"] in THINKING for block in blocks):
        return None

    items: list[dict[str, Any]] = []

    for block in blocks:
        kind = block["type"]

        if kind in THINKING:
            items.append({key: block[key] for key in _SIGNED[kind]})
        elif kind == "text":
            items.append({"type": kind, "length": len(block["text"])})
        elif kind == "tool_use":
            items.append({"type": kind, "call_id": block["id"]})

    return ProviderData(provider=writer[0], model=writer[1], items=tuple(items))


def usage_of(bill: Any, writer: Writer) -> Usage:
    """What Anthropic bills: its input excludes what was read from or written to the cache."""
    read, write = bill.get("cache_read_input_tokens") or 0, bill.get("cache_creation_input_tokens") or 0
    details = bill.get("output_tokens_details") or {}
    return billed(
        *writer,
        input=(bill.get("input_tokens") or 0) + read + write,
        output=bill.get("output_tokens") or 0,
        read=read,
        write=write,
        reasoning=details.get("thinking_tokens") or 0,
    )


class Gathering:
    """Puts the pieces of a streamed answer together; a call's arguments stay the text that the model wrote."""

    def __init__(self, on_delta: OnDelta) -> None:
        self._on_delta = on_delta
        self._head: dict[str, Any] = {}
        self._usage: dict[str, Any] = {}
        self._blocks: list[dict[str, Any]] = []
        self._raw: dict[int, str] = {}
        self._finish = ""
        self.is_whole = False

    def take(self, event: Any) -> None:
        """One event."""
        match event["type"]:
            case "message_start":
                self._head = event["message"]
                self._usage = dict(self._head.get("usage") or {})
            case "content_block_start":
                block = dict(event["content_block"])
                self._blocks.append(block)

                if block["type"] == "tool_use":
                    self._raw[len(self._blocks) - 1] = ""
            case "content_block_delta":
                self._add(event["index"], event["delta"])
            case "message_delta":
                self._finish = event["delta"].get("stop_reason") or ""
                self._usage.update((k, v) for k, v in (event.get("usage") or {}).items() if v is not None)
            case "message_stop":
                self.is_whole = True
            case _:
                pass  # pings, and kinds that are not there yet

    def _add(self, index: int, delta: Any) -> None:
        block = self._blocks[index]

        match delta["type"]:
            case "text_delta":
                block["text"] += delta["text"]
                self._on_delta(Delta(text=delta["text"]))
            case "thinking_delta":
                block["thinking"] += delta["thinking"]
                self._on_delta(Delta(text=delta["thinking"], kind="thinking"))
            case "signature_delta":
                block["signature"] = delta["signature"]
            case "input_json_delta":
                if text := delta["partial_json"]:
                    self._raw[index] += text
                    self._on_delta(Delta(text=text, kind="arguments"))
            case _:
                pass  # citations, and kinds that are not there yet

    def reply(self, writer: Writer) -> ModelReply:
        """The whole reply."""
        return _reply(self._head, self._blocks, self._raw, self._finish, self._usage, writer)
