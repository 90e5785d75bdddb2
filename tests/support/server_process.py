"""`crew serve` as a process that tests start, kill and start again, and a proxy that cuts its connections."""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
CREW = ROOT / "tests" / "support" / "served_crew.py"
SECRET = "test-secret-0123456789"
START_SECONDS = 60


@dataclass
class ServerProcess:
    """The process; `port` stays the same when it is started again."""

    options: tuple[str, ...] = ()
    target: str = str(CREW)
    port: int = 0
    process: asyncio.subprocess.Process | None = None
    lines: list[str] = field(default_factory=list)
    _log: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    async def start(self) -> None:
        arguments = ["-m", "crew.cli", "serve", self.target, "--port", str(self.port), "--token", SECRET, *self.options]
        self.process = await asyncio.create_subprocess_exec(
            sys.executable,
            *arguments,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        assert self.process.stderr is not None

        async with asyncio.timeout(START_SECONDS):
            while line := (await self.process.stderr.readline()).decode():
                self.lines.append(line.rstrip())

                if found := re.search(r"at http://127\.0\.0\.1:(\d+)", line):
                    self.port = int(found[1])
                    break
            else:
                raise AssertionError(f"the server did not start: {self.lines}")

        self._log = asyncio.create_task(self._read_log(self.process.stderr))

    async def _read_log(self, stream: asyncio.StreamReader) -> None:
        while line := await stream.readline():
            self.lines.append(line.decode().rstrip())

    async def stop(self, number: int = signal.SIGKILL) -> int:
        """End the process with a signal; returns its exit code."""
        assert self.process is not None

        if self.process.returncode is None:
            self.process.send_signal(number)

        async with asyncio.timeout(30):
            code = await self.process.wait()

        if self._log is not None:
            await self._log

        return code

    def memory(self) -> float:
        """The memory of the process in megabytes."""
        text = Path(f"/proc/{self.pid}/status").read_text(encoding="utf-8")
        found = re.search(r"VmRSS:\s+(\d+) kB", text)
        assert found is not None
        return int(found[1]) / 1_000


@asynccontextmanager
async def server_process(*options: str, target: str = str(CREW)) -> AsyncIterator[ServerProcess]:
    """A running server with these options, killed at the end."""
    server = ServerProcess(options, target)
    await server.start()

    try:
        yield server
    finally:
        await server.stop()


@dataclass
class CuttingProxy:
    """Forwards connections to a server and cuts each one after a random number of bytes of the answer."""

    server: ServerProcess
    random: random.Random
    shortest: int = 50
    longest: int = 12_000
    cuts: int = 0
    port: int = 0
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    @asynccontextmanager
    async def run(self) -> AsyncIterator[str]:
        listening = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = listening.sockets[0].getsockname()[1]

        try:
            yield f"http://127.0.0.1:{self.port}"
        finally:
            listening.close()

            for task in self._tasks:
                task.cancel()

            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)

        try:
            await self._forward(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass  # either side is gone, or the test has ended
        finally:
            writer.transport.abort()
            self._tasks.discard(task)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream, out = await asyncio.open_connection("127.0.0.1", self.server.port)
        sending = asyncio.create_task(_copy(reader, out))
        left = self.random.randint(self.shortest, self.longest)

        try:
            while data := await upstream.read(4_096):
                writer.write(data[:left])
                await writer.drain()
                left -= len(data)

                if left <= 0:
                    self.cuts += 1
                    return
        finally:
            sending.cancel()
            out.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(4_096):
        writer.write(data)
        await writer.drain()
