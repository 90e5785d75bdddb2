"""Renders an answer to bytes, plain or streamed, and applies a transport fault to them."""

import json
import zlib
from collections.abc import Callable
from functools import cache
from typing import Any

from tests.wire import chat, messages, responses
from tests.wire.connection import Answer, chunk, head, plain, streamed
from tests.wire.faults import Fault
from tests.wire.model import Protocol
from tests.wire.rejections import Refused, error_json
from tests.wire.replies import Reply
from tests.wire.request_context import Event, RequestContext

WIRE: dict[Protocol, Any] = {"chat": chat, "responses": responses, "messages": messages}
HTML = b"<html><head><title>502 Bad Gateway</title></head><body><h1>502 Bad Gateway</h1></body></html>"


def rendered(context: RequestContext, reply: Reply, headers: dict[str, str], fault: Fault | None = None) -> list[bytes]:
    """Render the answer without transport faults: head and body, or head, events and the last chunk."""
    wire = WIRE[context.protocol]
    rewrite = fault.rewrite if fault and fault.rewrite else lambda value: value
    if not context.body.get("stream") or (fault and fault.kind == "unstreamed"):
        return plain(200, json.dumps(rewrite(wire.payload(context, reply))).encode(), headers)
    events = [_sse((name, rewrite(data))) for name, data in wire.events(context, reply)]
    if context.protocol == "chat":
        events.append(b"data: [DONE]\n\n")
    return [*streamed(events, headers), chunk(b"")]


def _sse(event: Event) -> bytes:
    name, data = event
    line = f"data: {json.dumps(data)}\n\n"
    return (f"event: {name}\n{line}" if name else line).encode()


def broken(context: RequestContext, parts: list[bytes], fault: Fault | None) -> Answer:
    """Apply a transport fault to the rendered answer."""
    kind = fault.kind if fault else None
    if fault is None or kind == "slow":
        return Answer(parts, delay=fault.seconds if fault else 0.0)
    simple: dict[str, Callable[[], Answer]] = {
        "reset": lambda: Answer([], end="reset"),
        "hang": lambda: Answer([], end="hang"),
        "html_page": lambda: Answer(plain(502, HTML, {}, "text/html")),
        "garbage": lambda: Answer(_garbage(context)),
        "not_http": lambda: Answer([b"\x16\x03\x01 not http at all\r\n\r\n"], end="close"),
        "bomb": lambda: Answer(_bomb_answer(context, fault)),
        "endless": lambda: _endless(context, parts),
        "redirect": lambda: Answer(plain(fault.status or 307, b"moved", {"location": fault.location})),
        "error_body": lambda: Answer(plain(200, json.dumps(fault.error).encode(), {})),
    }
    if kind in simple:
        return simple[kind]()
    if kind not in ("cut", "cut_clean", "reset_mid_stream", "hang_mid_stream", "error_event", "failed_event"):
        return Answer(parts)
    return _broken_inside(context, parts, fault)


@cache
def bomb(size: int = 200 * 2**20) -> bytes:
    """A gzip body of many spaces."""
    block, packer = b" " * 2**20, zlib.compressobj(1, wbits=31)
    return b"".join(packer.compress(block) for _ in range(size // len(block))) + packer.flush()


def _bomb_answer(context: RequestContext, fault: Fault) -> list[bytes]:
    kind = "text/event-stream; charset=utf-8" if context.body.get("stream") else "application/json"
    return plain(fault.status or 200, bomb(), {"content-encoding": "gzip"}, kind)


def _endless(context: RequestContext, parts: list[bytes]) -> Answer:
    """Repeat the event in the middle of a stream, which is a piece of its text, or spaces in a plain body."""
    if context.body.get("stream"):
        events = parts[1:-1]
        return Answer([parts[0], *events[: len(events) // 2 + 1]], end="repeat")
    fields = {"content-type": "application/json", "transfer-encoding": "chunked"}
    return Answer([head(200, fields), chunk(b" " * 2**16)], end="repeat")


def _garbage(context: RequestContext) -> list[bytes]:
    noise = b'\x00\xff\xfe{"choices": [nonsense\x80'
    if not context.body.get("stream"):
        return plain(200, noise, {})
    event = b"event: message_start\n" if context.protocol == "messages" else b""
    return [*streamed([event + b"data: {nonsense\n\n"], {}), chunk(b"")]


def _broken_inside(context: RequestContext, parts: list[bytes], fault: Fault) -> Answer:
    """Break off after a share of the answer: of a stream's events, or of a plain body's bytes."""
    if not context.body.get("stream"):
        if fault.kind in ("error_event", "failed_event"):
            failed = Refused("fault", "Internal server error", status=500, kind="api_error")
            return Answer(plain(500, failed.body(context.protocol, "req_wire"), {}))
        first, body = parts
        kept = [first, body[: int(len(body) * fault.at)]]
        if fault.kind == "cut_clean":
            return Answer(plain(200, kept[1], {}))
    else:
        events = parts[1:-1]
        kept = [parts[0], *events[: max(1, int(len(events) * fault.at))]]
        if fault.kind in ("error_event", "failed_event"):
            return Answer([*kept, chunk(_sse(_failure(context, fault, len(kept)))), chunk(b"")])
        if fault.kind == "cut_clean":
            return Answer([*kept, chunk(b"")])
    if fault.kind == "hang_mid_stream":
        return Answer(kept, end="hang")
    if fault.kind == "reset_mid_stream":
        return Answer([*kept, b""], pace=0.01, end="reset")
    return Answer(kept, end="close")


def _failure(context: RequestContext, fault: Fault, number: int) -> Event:
    if context.protocol == "messages":
        return "error", error_json("messages", Refused("fault", "Overloaded", kind="overloaded_error"), "req_wire")
    text = "The server had an error while processing your request. Sorry about that!"
    if context.protocol == "chat":
        return None, error_json("chat", Refused("fault", text, kind="server_error"), "")
    if fault.kind == "failed_event":
        whole = responses.payload(context, Reply(nothing=True))
        failed = {**whole, "status": "failed", "error": {"code": "server_error", "message": text}, "usage": None}
        return "response.failed", {"type": "response.failed", "response": failed, "sequence_number": number}
    event = {"type": "error", "code": "server_error", "message": text, "param": None, "sequence_number": number}
    return "error", event
