"""An answer as bytes: rendered by its protocol, whole and streamed, and broken on the way where a fault says so."""

import json
from collections.abc import Callable
from typing import Any

from tests.wire import chat, messages, responses
from tests.wire.connection import Answer, chunk, plain, streamed
from tests.wire.exchange import Event, Exchange
from tests.wire.faults import Fault
from tests.wire.model import Protocol
from tests.wire.refusal import Refused, error_json
from tests.wire.replies import Reply

WIRE: dict[Protocol, Any] = {"chat": chat, "responses": responses, "messages": messages}
HTML = b"<html><head><title>502 Bad Gateway</title></head><body><h1>502 Bad Gateway</h1></body></html>"


def rendered(x: Exchange, reply: Reply, headers: dict[str, str]) -> list[bytes]:
    """The sound answer: head and body, or head, events and the last chunk."""
    wire = WIRE[x.protocol]
    if not x.body.get("stream"):
        return plain(200, json.dumps(wire.payload(x, reply)).encode(), headers)
    events = [_sse(event) for event in wire.events(x, reply)]
    if x.protocol == "chat":
        events.append(b"data: [DONE]\n\n")
    return [*streamed(events, headers), chunk(b"")]


def _sse(event: Event) -> bytes:
    name, data = event
    line = f"data: {json.dumps(data)}\n\n"
    return (f"event: {name}\n{line}" if name else line).encode()


def broken(x: Exchange, parts: list[bytes], fault: Fault | None) -> Answer:
    """The answer with what goes wrong on the way."""
    kind = fault.kind if fault else None
    if fault is None or kind == "slow":
        return Answer(parts, delay=fault.seconds if fault else 0.0)
    simple: dict[str, Callable[[], Answer]] = {
        "reset": lambda: Answer([], end="reset"),
        "hang": lambda: Answer([], end="hang"),
        "html_page": lambda: Answer(plain(502, HTML, {}, "text/html")),
        "garbage": lambda: Answer(_garbage(x)),
        "not_http": lambda: Answer([b"\x16\x03\x01 not http at all\r\n\r\n"], end="close"),
    }
    if kind in simple:
        return simple[kind]()
    if kind not in ("cut", "cut_clean", "reset_mid_stream", "hang_mid_stream", "error_event", "failed_event"):
        return Answer(parts)
    return _broken_inside(x, parts, fault)


def _garbage(x: Exchange) -> list[bytes]:
    noise = b'\x00\xff\xfe{"choices": [nonsense\x80'
    if not x.body.get("stream"):
        return plain(200, noise, {})
    event = b"event: message_start\n" if x.protocol == "messages" else b""
    return [*streamed([event + b"data: {nonsense\n\n"], {}), chunk(b"")]


def _broken_inside(x: Exchange, parts: list[bytes], fault: Fault) -> Answer:
    """Break after a share of the answer: of the events of a stream, of the bytes of a plain body."""
    if not x.body.get("stream"):
        if fault.kind in ("error_event", "failed_event"):
            failed = Refused("fault", "Internal server error", status=500, kind="api_error")
            return Answer(plain(500, failed.body(x.protocol, "req_wire"), {}))
        first, body = parts
        kept = [first, body[: int(len(body) * fault.at)]]
        if fault.kind == "cut_clean":
            return Answer(plain(200, kept[1], {}))
    else:
        events = parts[1:-1]
        kept = [parts[0], *events[: max(1, int(len(events) * fault.at))]]
        if fault.kind in ("error_event", "failed_event"):
            return Answer([*kept, chunk(_sse(_failure(x, fault, len(kept)))), chunk(b"")])
        if fault.kind == "cut_clean":
            return Answer([*kept, chunk(b"")])
    if fault.kind == "hang_mid_stream":
        return Answer(kept, end="hang")
    if fault.kind == "reset_mid_stream":
        return Answer([*kept, b""], pace=0.01, end="reset")
    return Answer(kept, end="close")


def _failure(x: Exchange, fault: Fault, number: int) -> Event:
    if x.protocol == "messages":
        return "error", error_json("messages", Refused("fault", "Overloaded", kind="overloaded_error"), "req_wire")
    words = "The server had an error while processing your request. Sorry about that!"
    if x.protocol == "chat":
        return None, error_json("chat", Refused("fault", words, kind="server_error"), "")
    if fault.kind == "failed_event":
        whole = responses.payload(x, Reply(nothing=True))
        failed = {**whole, "status": "failed", "error": {"code": "server_error", "message": words}, "usage": None}
        return "response.failed", {"type": "response.failed", "response": failed, "sequence_number": number}
    event = {"type": "error", "code": "server_error", "message": words, "param": None, "sequence_number": number}
    return "error", event
