"""Anthropic's Messages: counts the prompt with its cache breakpoints, renders the answer and its stream."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tests.wire.billing import Usage
from tests.wire.cache import Segment
from tests.wire.messages_rules import blocks_of
from tests.wire.messages_thinking import REDACTED, mode
from tests.wire.model import Json, Model
from tests.wire.replies import CallSpec, Reply, named, raw
from tests.wire.request_context import Event, RequestContext, dump, scaled, weigh_text
from tests.wire.signing import Signed
from tests.wire.tokens import count_schema

PER_BLOCK = 3
FINISH = {"stop": "end_turn", "length": "max_tokens", "content_filter": "refusal", "refusal": "refusal"}


def prompt(body: Json, model: Model) -> list[Segment]:
    """Split the prompt: tools, system, thinking and tool choice, then every block of the messages."""
    segments: list[Segment] = []
    for place, tool in enumerate(body.get("tools") or ()):
        text = dump(_bare(tool))
        extra = 0 if place else _tool_prompt(body, model)
        segments.append(Segment(text, scaled(count_schema(text), model) + extra, _mark(tool)))
    segments.extend(_segment("system", part, model) for part in blocks_of(body.get("system") or ()))
    front = dump([body.get("thinking"), body.get("tool_choice"), (body.get("output_config") or {}).get("format")])
    for message in body["messages"]:
        for part in blocks_of(message["content"]):
            segments.append(_segment(front + message["role"], part, model))
            front = ""
    if body.get("cache_control") and segments:
        segments[-1] = segments[-1]._replace(mark=_mark(body))
    return segments


def _segment(front: str, part: Json, model: Model) -> Segment:
    text = dump(_bare(part))
    return Segment(front + text, weigh_text(text, model) + PER_BLOCK, _mark(part))


def _tool_prompt(body: Json, model: Model) -> int:
    """The tokens of the text that the service adds to a request with tools."""
    chosen, forced = model.tool_prompts
    return forced if (body.get("tool_choice") or {}).get("type") in ("any", "tool") else chosen


def _bare(value: Json) -> Json:
    return {key: inner for key, inner in value.items() if key != "cache_control"}


def _mark(value: Any) -> str | None:
    control = value.get("cache_control")
    inner = value.get("content")
    if control is None and isinstance(inner, list):
        control = next((part["cache_control"] for part in inner if part.get("cache_control")), None)
    return control.get("ttl", "5m") if control else None


def usage_json(usage: Usage) -> Json:
    """Report usage as Anthropic does: the input tokens exclude cache reads and writes."""
    return {
        "input_tokens": usage.fresh,
        "cache_creation_input_tokens": usage.write + usage.write_1h,
        "cache_read_input_tokens": usage.read,
        "cache_creation": {"ephemeral_5m_input_tokens": usage.write, "ephemeral_1h_input_tokens": usage.write_1h},
        "output_tokens": usage.output,
        "output_tokens_details": {"thinking_tokens": usage.reasoning},
        "service_tier": "standard",
    }


def fitting(body: Json, model: Model, reply: Reply) -> Reply:
    """Adapt the reply to the thinking mode: no thinking if it is off, thinking before every call if it is on."""
    kind = mode(body)
    if kind == "disabled":
        return replace(reply, thinking=None)
    if kind == "enabled" and reply.calls and not reply.thoughts:
        first = not any(part["type"] == "tool_result" for part in blocks_of(body["messages"][-1]["content"]))
        if model.interleaved or first:
            return replace(reply, thinking="Let me work out the next step.")
    return reply


def content(context: RequestContext, reply: Reply) -> list[Json]:
    """Render the blocks of an answer: thinking, text, calls."""
    if reply.nothing:
        return []
    thoughts = reply.thoughts
    blocks = [
        _thought(context, thought, Signed(context.turn, place, len(thoughts))) for place, thought in enumerate(thoughts)
    ]
    if reply.text and reply.finish not in ("refusal", "content_filter"):
        blocks.append({"type": "text", "text": reply.text, "citations": None})
    for place, call in enumerate(reply.calls):
        call_id = named(call, f"toolu_01{context.turn}{place:02x}")
        blocks.append({"type": "tool_use", "id": call_id, "name": call[0], "input": _input(call)})
    return blocks


def _thought(context: RequestContext, thought: str, signed: Signed) -> Json:
    """Render a thinking block: hidden if it starts with `[redacted]`, only a signature with `display: omitted`."""
    if thought.startswith("[redacted]"):
        return {"type": "redacted_thinking", "data": context.signer.sign(context.name, REDACTED, signed)}
    shown = "" if (context.body.get("thinking") or {}).get("display") == "omitted" else thought
    return {"type": "thinking", "thinking": shown, "signature": context.signer.sign(context.name, shown, signed)}


def _input(call: CallSpec) -> Any:
    """Parse the arguments, as the service does; invalid JSON becomes an empty object."""
    try:
        return json.loads(raw(call))
    except ValueError:
        return {}


def payload(context: RequestContext, reply: Reply) -> Json:
    """Render an answer that is not streamed."""
    return {
        **_head(context),
        "content": content(context, reply),
        "stop_reason": finish(reply),
        "stop_details": _details(reply),
        "usage": usage_json(context.usage),
    }


def finish(reply: Reply) -> str:
    """Return the stop reason."""
    return FINISH[reply.finish] if reply.finish else ("tool_use" if reply.calls else "end_turn")


def _details(reply: Reply) -> Json | None:
    return {"type": "refusal", "category": None, "explanation": None} if finish(reply) == "refusal" else None


def _head(context: RequestContext) -> Json:
    return {
        "id": f"msg_01{context.turn}",
        "type": "message",
        "role": "assistant",
        "model": context.name,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
    }


def events(context: RequestContext, reply: Reply) -> Iterator[Event]:
    """Render the answer as events, with one ping."""
    yield _event(
        "message_start", message={**_head(context), "usage": {**usage_json(context.usage), "output_tokens": 1}}
    )
    raws = iter(reply.calls)
    for index, part in enumerate(content(context, reply)):
        hollow: dict[str, Json] = {
            "text": {"text": ""},
            "tool_use": {"input": {}},
            "thinking": {"thinking": "", "signature": ""},
        }
        begun = {**part, **hollow.get(part["type"], {})}
        yield _event("content_block_start", index=index, content_block=begun)
        if index == 0:
            yield _event("ping")
        for delta in _deltas(context, part, raws):
            yield _event("content_block_delta", index=index, delta=delta)
        yield _event("content_block_stop", index=index)
    delta = {"stop_reason": finish(reply), "stop_sequence": None, "stop_details": _details(reply)}
    yield _event("message_delta", delta=delta, usage=usage_json(context.usage))
    yield _event("message_stop")


def _event(name: str, **fields: Any) -> Event:
    return name, {"type": name, **fields}


def _deltas(context: RequestContext, part: Json, raws: Iterator[CallSpec]) -> Iterator[Json]:
    if part["type"] == "text":
        for piece in context.pieces(part["text"]):
            yield {"type": "text_delta", "text": piece}
    elif part["type"] == "thinking":
        for piece in context.pieces(part["thinking"]):
            yield {"type": "thinking_delta", "thinking": piece}
        yield {"type": "signature_delta", "signature": part["signature"]}
    elif part["type"] == "tool_use":
        yield {"type": "input_json_delta", "partial_json": ""}
        for piece in context.pieces(raw(next(raws))):
            yield {"type": "input_json_delta", "partial_json": piece}
