"""A reverse proxy in front of a service in this process, which tests cut and let fail."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass
class Gateway:
    """Forwards connections. While `status` is set, it answers each request with that status itself."""

    port: int
    status: int | None = None
    accepted: int = 0
    refused: int = 0
    _open: dict[asyncio.Task[None], asyncio.StreamWriter] = field(default_factory=dict)

    def cut(self) -> None:
        """Cut all connections."""
        for writer in self._open.values():
            writer.transport.abort()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open[task] = writer

        try:
            await (self._forward(reader, writer) if self.status is None else self._refuse(reader, writer))
        except (OSError, asyncio.CancelledError):
            pass  # either side is gone, or the test has ended
        finally:
            writer.transport.abort()
            del self._open[task]

    async def _refuse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.refused += 1
        await reader.readuntil(b"\r\n\r\n")
        page = b"<html>Bad gateway</html>"
        head = f"HTTP/1.1 {self.status} Bad\r\nContent-Length: {len(page)}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode() + page)
        await writer.drain()
        await reader.read()  # until the client closes: an earlier close could discard the answer

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        upstream, out = await asyncio.open_connection("127.0.0.1", self.port)

        async with asyncio.TaskGroup() as group:
            group.create_task(_copy(reader, out))
            group.create_task(_copy(upstream, writer))

    async def aclose(self) -> None:
        for task in (tasks := [*self._open]):
            task.cancel()

        await asyncio.gather(*tasks, return_exceptions=True)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(4_096):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass  # either side is gone
    finally:
        writer.close()


@asynccontextmanager
async def gateway(url: str) -> AsyncIterator[tuple[Gateway, str]]:
    """A gateway to the service at this address, and its own address."""
    made = Gateway(int(url.rpartition(":")[2]))
    listening = await asyncio.start_server(made.accept, "127.0.0.1", 0)

    try:
        yield made, f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    finally:
        listening.close()
        await made.aclose()
