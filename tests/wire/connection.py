"""A minimal HTTP/1.1 server protocol: one write for each answer, and full control over how a connection ends."""

import asyncio
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, cast

End = Literal["keep", "close", "reset", "hang", "repeat"]
REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 429: "Too Many Requests"}


class Request(NamedTuple):
    """An HTTP request as received."""

    method: str
    path: str
    headers: dict[str, str]
    raw: bytes


@dataclass(slots=True)
class Answer:
    """Bytes to write, when, and what happens to the connection; `repeat` writes the last part again and again.

    `on_end` is called with whether all bytes were sent."""

    parts: list[bytes]
    delay: float = 0.0
    pace: float = 0.0
    end: End = "keep"
    on_end: Callable[[bool], None] | None = None


def head(status: int, headers: dict[str, str]) -> bytes:
    """Render status line and headers."""
    lines = [
        f"HTTP/1.1 {status} {REASONS.get(status, 'Status')}",
        *(f"{key}: {value}" for key, value in headers.items()),
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def plain(status: int, body: bytes, headers: dict[str, str], kind: str = "application/json") -> list[bytes]:
    """Render an answer with a Content-Length."""
    return [head(status, {"content-type": kind, "content-length": str(len(body)), **headers}), body]


def status_of(parts: list[bytes]) -> int:
    """Return the status of a rendered answer, 0 if it is not HTTP."""
    return int(parts[0][9:12]) if parts and parts[0].startswith(b"HTTP/1.1 ") else 0


def chunk(data: bytes) -> bytes:
    """Render one chunk of a chunked body; the empty chunk ends it."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def streamed(events: list[bytes], headers: dict[str, str]) -> list[bytes]:
    """Render an event stream without its last chunk."""
    fields = {
        "content-type": "text/event-stream; charset=utf-8",
        "cache-control": "no-cache",
        "transfer-encoding": "chunked",
    }
    return [head(200, {**fields, **headers}), *map(chunk, events)]


class Connection(asyncio.Protocol):
    """Reads the requests of one connection and writes the handler's answers."""

    def __init__(self, handle: Callable[[Request], Answer], opened: set["Connection"]) -> None:
        self._handle, self._opened = handle, opened
        self._buffer = bytearray()
        self._need = 0
        self._answer: Answer | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_full = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        sock = self._transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._opened.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._opened.discard(self)
        if self._timer:
            self._timer.cancel()
        self._notify(False)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while self._answer is None and (request := self._take()):
            self._answer = self._handle(request)
            if self._answer.delay:
                self._later(self._answer.delay, 0)
            else:
                self._play(0)

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        if self._answer and self._answer.end == "repeat":
            self._finish("repeat")

    def drop(self) -> None:
        """Close immediately, even during an answer."""
        self._transport.abort()

    def _take(self) -> Request | None:
        if len(self._buffer) < self._need:
            return None
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return None
        first, *lines = self._buffer[:end].decode("latin-1").split("\r\n")
        headers = {key.lower(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
        self._need = end + 4 + int(headers.get("content-length", 0))
        if len(self._buffer) < self._need:
            return None
        raw = bytes(self._buffer[end + 4 : self._need])
        del self._buffer[: self._need]
        self._need = 0
        method, path, _ = first.split(" ", 2)
        return Request(method, path, headers, raw)

    def _later(self, seconds: float, place: int) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._play, place)

    def _play(self, place: int) -> None:
        answer = self._answer
        if answer is None or self._transport.is_closing():
            return
        if answer.pace and place < len(answer.parts):
            self._transport.write(answer.parts[place])
            self._later(answer.pace, place + 1)
            return
        if not answer.pace and answer.parts:
            self._transport.write(b"".join(answer.parts))
        self._finish(answer.end)

    def _finish(self, end: End) -> None:
        if end == "keep":
            self._notify(True)
            if self._buffer:
                self.data_received(b"")
        elif end == "close":
            self._transport.close()
        elif end == "reset":
            linger = struct.pack("ii", 1, 0)
            self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self._transport.abort()
        elif end == "repeat":
            while self._answer and not self._is_full and not self._transport.is_closing():
                self._transport.write(self._answer.parts[-1])

    def _notify(self, whole: bool) -> None:
        answer, self._answer = self._answer, None
        if answer and answer.on_end:
            answer.on_end(whole)
