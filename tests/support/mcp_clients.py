"""MCP servers in processes of their own, for tests, and agents that use them."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from mcp import Client

from crew import Agent, CrewExecutor, RunResult, ScriptedProvider
from crew.mcp import MCPServer
from crew.messages import ToolMessage

SCRIPT = Path(__file__).parent / "mcp_server.py"


def stdio_server(folder: Path, *options: str, name: str = "test", **settings: Any) -> MCPServer:
    """A server that is started with the first connection; it logs to this folder, where its pins are too."""
    command = [sys.executable, str(SCRIPT), str(folder), *options]
    return MCPServer(name=name, stdio=command, **{"pins": folder / "pins.json", **settings})


def log_lines(folder: Path) -> list[str]:
    """What a server logged."""
    path = folder / "log"
    return path.read_text().splitlines() if path.exists() else []


def processes(folder: Path) -> list[int]:
    """The ids of the server processes of this folder that were started, in order."""
    return [int(line.split()[1]) for line in log_lines(folder) if line.startswith("start ")]


def is_alive(process: int) -> bool:
    """Whether a process exists and has not ended."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False

    return state not in ("Z", "X")


def living(folder: Path) -> list[int]:
    """The server processes of this folder that are alive."""
    return [process for process in processes(folder) if is_alive(process)]


def wait_until(condition: Callable[[], Any], seconds: float = 10.0) -> None:
    """Wait for something that another process does."""
    deadline = time.monotonic() + seconds

    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


async def cancel_when_it_waits(client: Client) -> None:
    """Call the crew of mcp_crew.py so that its tool waits, and cancel the call then."""
    is_waiting = asyncio.Event()

    async def progress(number: float, total: float | None, text: str | None) -> None:
        if "calls wait" in (text or ""):
            is_waiting.set()

    calling = asyncio.ensure_future(client.call_tool("support", {"input": "wait"}, progress_callback=progress))
    await asyncio.wait_for(is_waiting.wait(), 60)
    calling.cancel()
    await asyncio.wait([calling])
    assert calling.cancelled()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class HttpServer:
    """A server process with streamable HTTP on a port that stays the same over restarts."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.url = f"http://127.0.0.1:{self.port}/mcp"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, str(SCRIPT), str(self.folder), "--http", str(self.port)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(self._listens, 30)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _listens(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 0.2):
            return True

        return False


@contextmanager
def http_server(folder: Path) -> Iterator[HttpServer]:
    """A running server."""
    server = HttpServer(folder)

    try:
        server.start()
        yield server
    finally:
        server.stop()


def kill(process: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


def caller(*calls: Any, done: str = "Done.") -> ScriptedProvider:
    """A model that makes these calls one after the other, and then answers."""
    lines = iter(calls)
    return ScriptedProvider(lambda request: next(lines, done))


async def run_calls(server: Any, *calls: Any, **options: Any) -> RunResult:
    """Run an agent with this server, or these servers, whose model makes these calls."""
    servers = server if isinstance(server, list) else [server]
    agent = Agent("worker", model=caller(*calls), tools=servers)

    async with CrewExecutor(agent, **options) as executor:
        return await executor.execute("Go.")


def acting(*steps: Any) -> ScriptedProvider:
    """A model that makes the calls among these steps; functions among them are called before the next one."""
    rest = iter(steps)

    def answer(request: object) -> Any:
        for step in rest:
            if not callable(step):
                return step

            step()

        return "Done."

    return ScriptedProvider(answer)


async def run_steps(server: Any, *steps: Any, **options: Any) -> list[tuple[str, str]]:
    """The tool results of a run whose model makes these steps."""
    servers = server if isinstance(server, list) else [server]

    async with CrewExecutor(Agent("worker", model=acting(*steps), tools=servers), **options) as executor:
        result = await executor.execute("Go.")

    assert (result.stop_reason, result.output) == ("completed", "Done.")
    return results(result)


def results(result: RunResult) -> list[tuple[str, str]]:
    """The outcomes and texts of all tool results of a run."""
    messages = [message for message in result.transcript if isinstance(message, ToolMessage)]
    return [(one.outcome, one.text) for message in messages for one in message.results]


def raw_server(folder: Path, mode: str, **settings: Any) -> MCPServer:
    """A server that answers wrongly on purpose."""
    command = [sys.executable, str(SCRIPT.with_name("mcp_raw_server.py")), mode]
    return MCPServer(name="raw", stdio=command, **{"pins": folder / "pins.json", **settings})
