"""Chat Completions: counts the prompt, renders the answer and its stream."""

from collections.abc import Iterator, Sequence

from tests.wire.billing import Usage
from tests.wire.cache import Segment
from tests.wire.model import Json, Model
from tests.wire.replies import Reply, named, raw
from tests.wire.request_context import Event, RequestContext, dump, scaled, weigh_text
from tests.wire.signing import item_id
from tests.wire.tokens import count_openai_tools, count_schema

PER_MESSAGE, PRIMING = 4, 3
FINISH = {"stop": "stop", "length": "length", "content_filter": "content_filter", "refusal": "stop"}


def prompt(body: Json, model: Model) -> list[Segment]:
    """Split the prompt: schema and tools, then the messages."""
    segments = tool_segments(body.get("response_format"), body.get("tools") or (), model)
    for message in body["messages"]:
        text = dump(message)
        segments.append(Segment(text, weigh_text(text, model) + PER_MESSAGE))
    text, tokens, _ = segments[-1]
    segments[-1] = Segment(text, tokens + PRIMING)
    return segments


def tool_segments(schema: Json | None, tools: Sequence[Json], model: Model) -> list[Segment]:
    """The front of a prompt of Chat or Responses: the output schema, and the tools."""
    schemas = [Segment(text := dump(schema), scaled(count_schema(text), model))] if schema else []
    return [*schemas, *([Segment(dump(tools), scaled(count_openai_tools(tools), model))] if tools else [])]


def usage_json(usage: Usage) -> Json:
    """Report usage as Chat does: the prompt tokens include the cached ones."""
    return {
        "prompt_tokens": usage.input,
        "completion_tokens": usage.output,
        "total_tokens": usage.input + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.read, "cache_write_tokens": usage.write, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": usage.reasoning,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }


def calls_json(context: RequestContext, reply: Reply) -> list[Json]:
    """Render the tool calls of an answer."""
    return [
        {
            "id": named(call, f"call_{context.turn}{place:02x}"),
            "type": "function",
            "function": {"name": call[0], "arguments": raw(call)},
        }
        for place, call in enumerate(reply.calls)
    ]


def payload(context: RequestContext, reply: Reply) -> Json:
    """Render an answer that is not streamed. Chat shows no reasoning."""
    message: Json = {"role": "assistant", "content": reply.text or None, "refusal": None, "annotations": []}
    if reply.finish == "refusal":
        message.update(content=None, refusal=reply.text or "I'm sorry, I can't help with that.")
    elif reply.calls:
        message["tool_calls"] = calls_json(context, reply)
    elif not reply.text:
        message["content"] = ""
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish(reply)}
    return {
        **_head(context, "chat.completion"),
        "choices": [] if reply.nothing else [choice],
        "usage": usage_json(context.usage),
    }


def finish(reply: Reply) -> str:
    """Return the finish reason."""
    return FINISH[reply.finish] if reply.finish else ("tool_calls" if reply.calls else "stop")


def events(context: RequestContext, reply: Reply) -> Iterator[Event]:
    """Render the answer as chunks; the last one holds the usage if the request asks for it."""
    head = _head(context, "chat.completion.chunk")
    counted = (context.body.get("stream_options") or {}).get("include_usage")

    def chunk(delta: Json, why: str | None = None) -> Event:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": why}
        return None, {**head, "choices": [choice], **({"usage": None} if counted else {})}

    if not reply.nothing:
        yield chunk({"role": "assistant", "content": "", "refusal": None})
        field = "refusal" if reply.finish == "refusal" else "content"
        for piece in context.pieces(reply.text or ("I can't help with that." if field == "refusal" else "")):
            yield chunk({field: piece})
        for place, call in enumerate(calls_json(context, reply)):
            function = call["function"]
            start = {"index": place, **call, "function": {"name": function["name"], "arguments": ""}}
            yield chunk({"tool_calls": [start]})
            for piece in context.pieces(function["arguments"]):
                yield chunk({"tool_calls": [{"index": place, "function": {"arguments": piece}}]})
        yield chunk({}, finish(reply))
    if counted:
        yield None, {**head, "choices": [], "usage": usage_json(context.usage)}


def _head(context: RequestContext, kind: str) -> Json:
    return {
        "id": "chatcmpl-" + item_id("c", context.turn, 0, reasoned=False)[2:],
        "object": kind,
        "created": context.created,
        "model": context.name,
        "service_tier": "default",
        "system_fingerprint": "fp_wire",
    }
