"""`crew mcp` in a process of its own, used by the client of the official SDK over stdio and HTTP."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.types import ElicitResult

from crew.cli import main
from crew.store import SQLiteStore
from tests.support.mcp_clients import cancel_when_it_waits

pytestmark = pytest.mark.servers
ROOT = Path(__file__).parent.parent.parent
TARGET = "tests/support/mcp_crew.py:crew"
TOKEN = "0123456789abcdef"
ERAS = pytest.mark.parametrize("mode", ["auto", "legacy"])
HEADERS = {"Authorization": f"Bearer {TOKEN}"}


async def approve(context: object, params: object) -> ElicitResult:
    return ElicitResult(action="accept", content={"approve": True})


@asynccontextmanager
async def stdio_client(*options: str, **settings: Any) -> AsyncIterator[Client]:
    command = ["-m", "crew.cli", "mcp", TARGET, *options]

    async with Client(StdioServerParameters(command=sys.executable, args=command, cwd=ROOT), **settings) as client:
        yield client


@contextmanager
def http_server(*options: str) -> Iterator[str]:
    """The URL of a server process."""
    command = [sys.executable, "-m", "crew.cli", "mcp", TARGET, "--http", "--port", "0", *options]
    environment = os.environ | {"CREW_MCP_TOKEN": TOKEN}
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None

    try:
        yield process.stderr.readline().split()[-1]
        process.terminate()
        assert process.wait(60) == 0, process.stderr.read()
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


async def check_client(client: Client) -> None:
    """Call, see progress, approve, cancel, and call again."""
    seen: list[str | None] = []

    async def progress(number: float, total: float | None, text: str | None) -> None:
        seen.append(text)

    result = await client.call_tool("support", {"input": "Hello"}, progress_callback=progress)
    assert result.content[0].text == "You said: Hello"  # type: ignore[union-attr]
    assert any("clerk asks" in (text or "") for text in seen)
    result = await client.call_tool("support", {"input": "refund"})
    assert result.content[0].text == "Result: refunded 3"  # type: ignore[union-attr]

    await cancel_when_it_waits(client)
    assert not (await client.call_tool("support", {"input": "Hello"})).is_error


async def check_cancelled(path: Path) -> None:
    """The cancelled run is stored as such."""
    with closing(SQLiteStore(path)) as store:
        for _ in range(600):
            statuses = sorted(run.status for run in (await store.runs()).runs)

            if "running" not in statuses:
                break

            await asyncio.sleep(0.05)

    assert statuses == ["cancelled", "completed", "completed", "completed"]


@ERAS
async def test_a_client_uses_a_crew_over_stdio(mode: str, tmp_path: Path) -> None:
    """Progress, approval and cancellation work; what the crew prints does not disturb the protocol."""
    path = tmp_path / "runs.db"

    async with stdio_client("--store", str(path), mode=mode, elicitation_callback=approve) as client:
        await check_client(client)
        await check_cancelled(path)


@ERAS
async def test_a_client_uses_a_crew_over_http(mode: str, tmp_path: Path) -> None:
    """The same over streamable HTTP, with a token."""
    path = tmp_path / "runs.db"

    with http_server("--store", str(path)) as url:
        async with httpx2.AsyncClient(headers=HEADERS) as http:
            transport = streamable_http_client(url, http_client=http)

            async with Client(transport, mode=mode, elicitation_callback=approve) as client:
                await check_client(client)
                await check_cancelled(path)


async def test_http_requests_from_elsewhere_are_refused() -> None:
    """No token, another host name (DNS rebinding, also by GET) and a foreign web page."""
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    accept = {"Accept": "application/json, text/event-stream"}

    with http_server() as url:
        async with httpx2.AsyncClient(headers=accept) as http:
            assert (await http.post(url, json=body)).status_code == 401
            assert (await http.post(url, json=body, headers={"Authorization": "Bearer wrong"})).status_code == 401

            for extra, status in [({"Host": "evil.example"}, 421), ({"Origin": "https://evil.example"}, 403)]:
                assert (await http.post(url, json=body, headers={**HEADERS, **extra})).status_code == status
                assert (await http.get(url, headers={**HEADERS, **extra})).status_code == status


async def test_a_paused_run_is_answered_with_the_printed_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that can't ask leaves the run paused in the store; `crew resume` answers it."""
    monkeypatch.chdir(ROOT)
    path = tmp_path / "runs.db"

    async with stdio_client("--store", str(path)) as client:
        result = await client.call_tool("support", {"input": "refund"})

    text = result.content[0].text  # type: ignore[union-attr]
    assert result.is_error
    command = text.rpartition("answer it with: ")[2].split()
    assert command[:3] == ["crew", "resume", TARGET]
    assert await asyncio.to_thread(main, [*command[1:], "--answer", "yes", "--quiet"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "Result: refunded 3"


async def test_the_process_ends_with_its_client_and_on_sigterm() -> None:
    """No process stays behind when stdin is closed, or on SIGTERM while the client waits."""
    for end in ("close", "terminate"):
        process = await asyncio.create_subprocess_exec(
            *[sys.executable, "-m", "crew.cli", "mcp", TARGET],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b'{"jsonrpc": "2.0", "id": 1, "method": "nothing"}\n')
        await process.stdin.drain()
        await asyncio.wait_for(process.stdout.readline(), 60)
        process.stdin.close() if end == "close" else process.terminate()
        _, errors = await asyncio.wait_for(process.communicate(), 60)
        assert process.returncode == (0 if end == "close" else 143), errors


def test_a_server_without_a_token_listens_on_loopback_only(capsys: pytest.CaptureFixture[str]) -> None:
    """`--insecure-no-token` is refused for an address that other machines reach."""
    assert main(["mcp", TARGET, "--http", "--host", "0.0.0.0", "--insecure-no-token"]) == 2
    assert "not a loopback address" in capsys.readouterr().err
