"""The process of a stdio server: starts it, exchanges messages over its pipes, and always ends it."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import weakref
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams

GRACE_SECONDS = 2.0
"""How long a server may take to exit after its input is closed, and again after SIGTERM."""

STDERR_CHARS = 1_000
_CHUNK = 65_536
_ENDS = 300

_ID = rb'"id"\s*:\s*(\d+|"[^"\\]{1,80}")'
_VERSION = rb'"jsonrpc"\s*:\s*"2\.0"'
_ID_AT_START = re.compile(rb"^\s*\{\s*(?:" + _VERSION + rb"\s*,\s*)?" + _ID)
_ID_AT_END = re.compile(rb"\}\s*,\s*(?:" + _VERSION + rb"\s*,\s*)?" + _ID + rb"\s*(?:,\s*" + _VERSION + rb"\s*)?\}\s*$")


@dataclass(slots=True, kw_only=True)
class TransportWatch:
    """How a transport reports the end of its server: it calls `on_end` with the reason, and sets `is_alive`."""

    on_end: Callable[[str], None]
    is_alive: Callable[[], bool] = lambda: True


@dataclass(frozen=True, slots=True, kw_only=True)
class StdioCommand:
    """The command of a server, its environment and its working directory; `max_bytes` bounds one message."""

    command: Sequence[str]
    environment: Mapping[str, str]
    folder: str | Path | None
    max_bytes: int


@asynccontextmanager
async def stdio_transport(command: StdioCommand, watch: TransportWatch) -> AsyncIterator[TransportStreams]:
    """The streams of a new server process, which ends with this context. `watch` reports if it ends by itself.

    The SDK's own transport has no bound for a message, and prints what the server writes to its error output.
    """
    import anyio
    from mcp.shared.message import SessionMessage

    process = await ServerProcess.start(command)
    watch.is_alive = process.is_alive
    received, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outgoing, to_send = anyio.create_memory_object_stream[SessionMessage](0)

    async def read() -> None:
        async with received:
            with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):  # the session is closed
                async for line in process.lines(command.max_bytes):
                    await received.send(parse_line(line))

            # Before the stream is closed: then the session fails, and its error has no reason.
            watch.on_end(await process.end_text())

    async def write() -> None:
        async with to_send:
            async for message in to_send:
                text = message.message.model_dump_json(by_alias=True, exclude_unset=True)

                if not await process.send(text.encode() + b"\n"):
                    return  # the reader sees the end of the output

    tasks = [asyncio.ensure_future(work) for work in (read(), write(), process.keep_errors())]

    try:
        yield incoming, outgoing
    finally:
        with anyio.CancelScope(shield=True):
            await _finish(process.end(), process.kill)
            await _finish(_cancel(tasks), process.kill)

        for stream in (received, incoming, outgoing, to_send):
            stream.close()


class ServerProcess:
    """A server process, which leads a process group."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._errors, self._errors_end = bytearray(), asyncio.Event()
        # Also ends the process where its event loop was closed without a chance to do so, and at exit.
        self._finalizer = weakref.finalize(self, _kill_group, process.pid)

    @classmethod
    async def start(cls, command: StdioCommand) -> ServerProcess:
        """Start the command. Raises OSError or ValueError."""
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *command.command,
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            env=dict(command.environment),
            cwd=command.folder,
            start_new_session=True,
        )
        return cls(process)

    async def lines(self, max_bytes: int) -> AsyncIterator[Line]:
        """What the server writes, line by line; of a line that is too long, the beginning and the end."""
        assert self._process.stdout is not None
        line = Line()

        while chunk := await self._process.stdout.read(_CHUNK):
            first, *others = chunk.split(b"\n")
            line.extend(first, max_bytes)

            for part in others:
                yield line
                line = Line()
                line.extend(part, max_bytes)

    async def send(self, data: bytes) -> bool:
        """Write to the server's input; False if it is closed."""
        assert self._process.stdin is not None

        try:
            self._process.stdin.write(data)
            await self._process.stdin.drain()
        except (OSError, RuntimeError):
            return False

        return True

    async def keep_errors(self) -> None:
        """Read the error output, and keep its end for messages."""
        assert self._process.stderr is not None

        while chunk := await self._process.stderr.read(_CHUNK):
            self._errors += chunk
            del self._errors[: -4 * STDERR_CHARS]

        self._errors_end.set()

    def is_alive(self) -> bool:
        """Whether the process runs. Its end may not have reached the event loop yet."""
        if sys.platform == "win32" or self._process.returncode is not None:
            return self._process.returncode is None

        try:
            return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
        except ChildProcessError:
            return False  # the event loop is about to report it

    async def end_text(self) -> str:
        """Why the server's output ended."""
        await self._exits(0.5)

        with suppress(TimeoutError):  # another process may hold its error output open
            async with asyncio.timeout(0.2):
                await self._errors_end.wait()

        code = self._process.returncode
        ended = "its output ended" if code is None else f"its process ended ({_exit_text(code)})"
        errors = self._errors.decode("utf-8", "replace").strip()[-STDERR_CHARS:]
        return f"{ended}. The end of its error output:\n{errors}" if errors else ended

    async def end(self) -> None:
        """Close the input of the process, and end it and all processes that it started."""
        assert self._process.stdin is not None
        self._process.stdin.close()

        if not await self._exits(GRACE_SECONDS):
            _signal_group(self._process.pid, signal.SIGTERM)
            await self._exits(GRACE_SECONDS)

        self.kill()
        await self._exits(GRACE_SECONDS)
        # A process outside the group may hold a pipe open; there is no public method that closes our end.
        transport: Any = self._process._transport  # type: ignore[attr-defined]
        transport.close()

    def kill(self) -> None:
        """End the process group at once."""
        self._finalizer()

    async def _exits(self, seconds: float) -> bool:
        """Whether the process exits within this time. `wait` would also wait for pipes that its children hold open."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds

        while self._process.returncode is None and loop.time() < deadline:  # noqa: ASYNC110 - asyncio has no such event
            await asyncio.sleep(0.01)

        return self._process.returncode is not None


@dataclass(slots=True)
class Line:
    """One line of output. If it is longer than the limit, which is `cut` then, `data` and `tail` are its two ends."""

    data: bytearray = field(default_factory=bytearray)
    tail: bytes = b""
    cut: int = 0

    def extend(self, part: bytes, max_bytes: int) -> None:
        if not self.cut and len(self.data) + len(part) <= max_bytes:
            self.data += part
            return

        if not self.cut:
            self.data += part[:_ENDS]

        self.cut = max_bytes
        self.tail = (self.tail + self.data[_ENDS:] + part)[-_ENDS:]
        del self.data[_ENDS:]

    def request_id(self) -> int | str | None:
        """The id of the request that this line answers, also if the rest of the line can't be read."""
        found = _ID_AT_START.search(self.data) or _ID_AT_END.search(self.tail or bytes(self.data[-_ENDS:]))

        if found is None:
            return None

        return int(found[1]) if found[1].isdigit() else found[1][1:-1].decode("utf-8", "replace")


def parse_line(line: Line) -> Any:
    """The message of a line. A line that can't be read is an error of the request that it answers, if any."""
    from mcp.shared.message import SessionMessage
    from mcp.types import INTERNAL_ERROR, ErrorData, JSONRPCError
    from mcp_types import jsonrpc_message_adapter

    problem = f"the answer of the server is larger than {line.cut:,} bytes" if line.cut else ""
    error: Exception = ValueError(problem)

    if not problem:
        try:
            return SessionMessage(jsonrpc_message_adapter.validate_json(bytes(line.data), by_name=False))
        except ValueError as invalid:
            error, problem = invalid, "the answer of the server is not a valid JSON-RPC message"

    if (id := line.request_id()) is None:
        return error

    data = ErrorData(code=INTERNAL_ERROR, message=problem)
    return SessionMessage(JSONRPCError(jsonrpc="2.0", id=id, error=data))


async def _finish(work: Any, hurry: Callable[[], None]) -> None:
    """Run to the end even if this task is cancelled meanwhile; `hurry` is called then."""
    task, cancelled = asyncio.ensure_future(work), False

    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            cancelled = True
            hurry()

    if not task.cancelled():
        task.result()

    if cancelled:
        raise asyncio.CancelledError


async def _cancel(tasks: Sequence[asyncio.Future[None]]) -> None:
    for task in tasks:
        task.cancel()

    await asyncio.wait(tasks)

    for task in tasks:
        if not task.cancelled():
            task.exception()  # mark it as retrieved: the connection has ended anyway


def _kill_group(process: int) -> None:
    _signal_group(process, signal.SIGKILL if sys.platform != "win32" else signal.SIGTERM)


def _signal_group(process: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        if sys.platform == "win32":
            os.kill(process, number)
        else:
            os.killpg(process, number)


def _exit_text(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"

    with suppress(ValueError):
        return f"signal {signal.Signals(-code).name}"

    return f"signal {-code}"
