"""Responses: counts the prompt, renders the answer and its stream."""

from collections.abc import Iterator
from typing import Any

from tests.wire.billing import Usage
from tests.wire.cache import Segment
from tests.wire.chat import PER_MESSAGE, PRIMING, tool_segments
from tests.wire.model import Json, Model
from tests.wire.replies import Reply, named, raw
from tests.wire.request_context import Event, RequestContext, dump, weigh_text
from tests.wire.responses_rules import reasoning_content
from tests.wire.signing import Signed, item_id


def prompt(body: Json, model: Model) -> list[Segment]:
    """Split the prompt: schema and tools, instructions, then the items."""
    segments = tool_segments((body.get("text") or {}).get("format"), body.get("tools") or (), model)
    given = body["input"]
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    for item in [body["instructions"], *items] if body.get("instructions") else items:
        text = dump(item)
        segments.append(Segment(text, weigh_text(text, model) + PER_MESSAGE))
    text, tokens, _ = segments[-1]
    segments[-1] = Segment(text, tokens + PRIMING)
    return segments


def usage_json(usage: Usage) -> Json:
    """Report usage as Responses does: the input tokens include the cached ones."""
    return {
        "input_tokens": usage.input,
        "input_tokens_details": {"cached_tokens": usage.read, "cache_write_tokens": usage.write},
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.input + usage.output,
    }


def output(context: RequestContext, reply: Reply) -> list[Json]:
    """Render the items of an answer: reasoning, message, calls."""
    if reply.nothing:
        return []
    items = [_reasoning(context, place, thought) for place, thought in enumerate(reply.thoughts)]
    reasoned = bool(items)
    if reply.text or reply.finish == "refusal" or not reply.calls:
        text = {"type": "output_text", "annotations": [], "logprobs": [], "text": reply.text}
        no = {"type": "refusal", "refusal": reply.text or "I'm sorry, I can't help with that."}
        items.append(
            {
                "id": item_id("msg", context.turn, len(items), reasoned=reasoned),
                "type": "message",
                "status": "incomplete" if reply.finish in ("length", "content_filter") else "completed",
                "role": "assistant",
                "content": [no if reply.finish == "refusal" else text],
            }
        )
    for place, call in enumerate(reply.calls):
        items.append(
            {
                "id": item_id("fc", context.turn, len(items), reasoned=reasoned),
                "type": "function_call",
                "status": "completed",
                "arguments": raw(call),
                "call_id": named(call, f"call_{context.turn}{place:02x}"),
                "name": call[0],
            }
        )
    return items


def _reasoning(context: RequestContext, place: int, thought: str) -> Json:
    item: Json = {
        "id": item_id("rs", context.turn, place, reasoned=True),
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": thought}] if thought else [],
    }
    if "reasoning.encrypted_content" in (context.body.get("include") or ()):
        signed = Signed(context.turn, place, 1)
        item["encrypted_content"] = context.signer.sign(context.name, reasoning_content(item), signed)
    return item


def payload(context: RequestContext, reply: Reply) -> Json:
    """Render an answer that is not streamed."""
    why = {"length": "max_output_tokens", "content_filter": "content_filter"}.get(reply.finish or "")
    return {
        **_head(context),
        "status": "incomplete" if why else "completed",
        "incomplete_details": {"reason": why} if why else None,
        "output": output(context, reply),
        "usage": usage_json(context.usage),
    }


def _head(context: RequestContext) -> Json:
    body = context.body
    return {
        "id": f"resp_{context.turn}",
        "object": "response",
        "created_at": context.created,
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": body.get("instructions"),
        "max_output_tokens": body.get("max_output_tokens"),
        "model": context.name,
        "output": [],
        "parallel_tool_calls": body.get("parallel_tool_calls", True),
        "previous_response_id": None,
        "prompt_cache_key": body.get("prompt_cache_key"),
        "reasoning": body.get("reasoning") or {"effort": None, "summary": None},
        "service_tier": "default",
        "store": body.get("store", True),
        "temperature": body.get("temperature", 1.0),
        "text": body.get("text") or {"format": {"type": "text"}},
        "tool_choice": body.get("tool_choice", "auto"),
        "tools": [{"strict": False, "description": None, **tool} for tool in body.get("tools") or ()],
        "top_p": body.get("top_p", 1.0),
        "truncation": "disabled",
        "usage": None,
        "user": None,
        "metadata": body.get("metadata") or {},
    }


def events(context: RequestContext, reply: Reply) -> Iterator[Event]:
    """Render the answer as numbered events."""
    for number, event in enumerate(_events(context, reply)):
        yield event["type"], {**event, "sequence_number": number}


def _events(context: RequestContext, reply: Reply) -> Iterator[Json]:
    whole = payload(context, reply)
    yield {"type": "response.created", "response": _head(context)}
    yield {"type": "response.in_progress", "response": _head(context)}
    for index, item in enumerate(whole["output"]):
        hollow: dict[str, Json] = {
            "message": {"content": []},
            "function_call": {"arguments": ""},
            "reasoning": {"summary": []},
        }
        begun = {**item, **hollow[item["type"]]}
        if "status" in item:
            begun["status"] = "in_progress"
        yield {"type": "response.output_item.added", "output_index": index, "item": begun}
        yield from _inside(context, item, {"item_id": item["id"], "output_index": index})
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    yield {"type": f"response.{whole['status']}", "response": whole}


def _inside(context: RequestContext, item: Json, at: Json) -> Iterator[Json]:
    if item["type"] == "function_call":
        for piece in context.pieces(item["arguments"]):
            yield {"type": "response.function_call_arguments.delta", **at, "delta": piece}
        yield {
            "type": "response.function_call_arguments.done",
            **at,
            "arguments": item["arguments"],
            "name": item["name"],
        }
    elif item["type"] == "message":
        part = item["content"][0]
        no = part["type"] == "refusal"
        kind, field = ("refusal", "refusal") if no else ("output_text", "text")
        more: Json = {} if no else {"logprobs": []}
        at = {**at, "content_index": 0}
        yield {"type": "response.content_part.added", **at, "part": {**part, field: ""}}
        yield from _text(context, f"response.{kind}", field, {**at, **more}, part[field])
        yield {"type": "response.content_part.done", **at, "part": part}
    else:
        for place, part in enumerate(item["summary"]):
            here: dict[str, Any] = {**at, "summary_index": place}
            yield {"type": "response.reasoning_summary_part.added", **here, "part": {**part, "text": ""}}
            yield from _text(context, "response.reasoning_summary_text", "text", here, part["text"])
            yield {"type": "response.reasoning_summary_part.done", **here, "part": part}


def _text(context: RequestContext, name: str, field: str, at: Json, text: str) -> Iterator[Json]:
    for piece in context.pieces(text):
        yield {"type": f"{name}.delta", **at, "delta": piece}
    yield {"type": f"{name}.done", **at, field: text}
