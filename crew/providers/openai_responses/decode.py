"""From an answer of Responses, whole or in pieces, to a reply."""

from __future__ import annotations

from typing import Any

from crew.doors import Delta, FinishReason, ModelReply, OnDelta
from crew.errors import ContentRefused, ProviderError
from crew.messages import ProviderData, ToolCall, Usage
from crew.providers.billing import billed
from crew.providers.openai_responses.render import Writer
from crew.providers.refusals import Refusal, error_for

_REASONING = ("type", "id", "summary", "content", "encrypted_content")
_KINDS = {
    "response.output_text.delta": "text",
    "response.refusal.delta": "text",
    "response.reasoning_summary_text.delta": "thinking",
    "response.reasoning_text.delta": "thinking",
    "response.function_call_arguments.delta": "arguments",
}


def from_wire(answer: Any, writer: Writer) -> ModelReply:
    """The reply in a whole answer."""
    if answer.get("status") == "failed":
        raise failure(answer.get("error"), writer)

    output = answer["output"]
    parts = [part for item in output if item["type"] == "message" for part in item["content"]]
    text = "".join(_words(part) for part in parts)
    calls = tuple(
        ToolCall(id=item["call_id"], name=item["name"], arguments=item["arguments"] or "")
        for item in output
        if item["type"] == "function_call"
    )
    reason = _finish(answer, parts, calls)

    if reason == "filter" and not text and not calls:
        raise ContentRefused(
            f"The content filter of {writer[0]} stopped the reply of {writer[1]!r}.",
            provider=writer[0],
            model=writer[1],
        )

    return ModelReply(
        text=text,
        calls=calls,
        usage=usage_of(answer.get("usage") or {}, writer),
        finish_reason=reason,
        provider_data=_original(output, writer),
        model=answer.get("model") or writer[1],
        response_id=answer.get("id") or "",
    )


def failure(error: Any, writer: Writer) -> ProviderError:
    """The error that an answer or an event speaks of."""
    return error_for(Refusal.read(200, error), provider=writer[0], model=writer[1])


def _words(part: Any) -> str:
    return str(part.get("text") or part.get("refusal") or "")


def _finish(answer: Any, parts: list[Any], calls: tuple[ToolCall, ...]) -> FinishReason:
    if answer.get("status") == "incomplete":
        reason = (answer.get("incomplete_details") or {}).get("reason")
        return "filter" if reason == "content_filter" else "length"

    if any(part["type"] == "refusal" for part in parts):
        return "refusal"

    return "calls" if calls else "stop"


def _original(output: list[Any], writer: Writer) -> ProviderData | None:
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
                length = sum(len(_words(part)) for part in item["content"])
                items.append({"type": "message", "id": item["id"], "length": length})
            case "function_call":
                items.append({"type": "function_call", "id": item["id"], "call_id": item["call_id"]})
            case _:
                pass  # what we never ask for

    return ProviderData(provider=writer[0], model=writer[1], items=tuple(items))


def usage_of(bill: Any, writer: Writer) -> Usage:
    """What Responses bills: its input includes what was cached."""
    read = bill.get("input_tokens_details") or {}
    written = bill.get("output_tokens_details") or {}
    return billed(
        *writer,
        input=bill.get("input_tokens") or 0,
        output=bill.get("output_tokens") or 0,
        read=read.get("cached_tokens") or 0,
        write=read.get("cache_write_tokens") or 0,
        reasoning=written.get("reasoning_tokens") or 0,
    )


class Gathering:
    """Passes the pieces of a streamed answer on; its last event holds the whole."""

    def __init__(self, on_delta: OnDelta, writer: Writer) -> None:
        self._on_delta, self._writer = on_delta, writer
        self.answer: Any = None

    def take(self, event: Any) -> None:
        """One event."""
        kind = event["type"]

        if kind in _KINDS:
            self._on_delta(Delta(text=event["delta"], kind=_KINDS[kind]))  # type: ignore[arg-type]  # a Literal's value
        elif kind in ("response.completed", "response.incomplete"):
            self.answer = event["response"]
        elif kind == "response.failed":
            raise failure(event["response"].get("error"), self._writer)
        elif kind == "error":
            raise failure(event, self._writer)
