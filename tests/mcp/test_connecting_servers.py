"""Servers that take long to connect, or are checked: calls do not wait for ever, and closing leaves no process."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from crew import Agent, CrewExecutor, call
from crew.engine import toolsets
from crew.engine.toolsets import list_seconds
from crew.mcp import MCPServer, ServerError, ToolSettings, server_session
from crew.tools.context import Context
from tests.support.mcp_clients import (
    caller,
    is_alive,
    living,
    log_lines,
    processes,
    raw_server,
    run_steps,
    stdio_server,
)

ADD = call("test_add", a=1, b=2)
NOT_SENT = "The call was not sent"


def silent_server(folder: Path, **settings: Any) -> MCPServer:
    """A server whose process runs and never answers; the file `pid` has its number."""
    command = ["sh", "-c", f"echo $$ > {folder}/new && mv {folder}/new {folder}/pid; exec sleep 600"]
    return MCPServer(name="test", stdio=command, pins=folder / "pins.json", connect_timeout=300, **settings)


async def started_process(folder: Path) -> int:
    """The number of the process of a silent server, once it runs."""
    while not (folder / "pid").exists():
        await asyncio.sleep(0.02)

    return int((folder / "pid").read_text())


def gated_server(folder: Path, gate: Path, **settings: Any) -> MCPServer:
    """A server that does not start while the file `gate` exists."""
    command = stdio_server(folder).stdio or ()
    waiting = ["sh", "-c", f'while test -e {gate}; do sleep 0.05; done; exec "$@"', "sh", *command]
    return MCPServer(name="test", stdio=waiting, pins=folder / "pins.json", **settings)


@pytest.mark.parametrize("end", ["cancel", "aclose"])
async def test_a_server_that_is_still_connecting_can_be_closed(tmp_path: Path, end: str) -> None:
    """The run ends at once, nothing is abandoned, and neither a process nor a task is left."""
    before = asyncio.all_tasks()
    executor = CrewExecutor(Agent("worker", model=caller(), tools=[silent_server(tmp_path)]))
    running = asyncio.create_task(executor.execute("Go.", run_id="r1"))
    process = await started_process(tmp_path)

    if end == "cancel":
        await executor.cancel("r1")
        result = await running
        assert (result.stop_reason, result.orphans) == ("cancelled", ())

    await executor.aclose()
    assert not is_alive(process)
    await asyncio.wait([running])
    assert asyncio.all_tasks() == before


async def test_a_caller_that_waits_for_a_closed_server_gets_an_error(tmp_path: Path) -> None:
    """It is not cancelled, and it does not open a connection that nobody would close."""
    server = silent_server(tmp_path)

    async with server.lifetime():
        listing = asyncio.create_task(server.list_tools(Context(deps=None, run_id="r1", agent="")))  # type: ignore[arg-type,var-annotated]
        process = await started_process(tmp_path)

    with pytest.raises(ServerError, match="it was closed"):
        await listing

    assert not is_alive(process)


async def test_the_timeout_of_a_server_is_not_cut_by_that_of_other_toolsets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connecting and listing may take `connect_timeout` each."""
    monkeypatch.setattr(toolsets, "LIST_SECONDS", 0.01)
    assert await run_steps(raw_server(tmp_path, "hints"), call("raw_ask")) == [("ok", "fine")]
    assert list_seconds(MCPServer(stdio=["server"], connect_timeout=120)) > 240


@pytest.mark.servers
async def test_a_server_that_starts_slower_than_a_call_may_take_is_used_later(tmp_path: Path) -> None:
    """A write that could not be sent is an error and not in doubt; the next calls find the same connection open."""
    gate = tmp_path / "gate"
    server = gated_server(tmp_path, gate, timeout=2, tools={"crash": ToolSettings(timeout=60)})
    found = await run_steps(server, ADD, gate.touch, call("test_crash"), ADD, ADD, gate.unlink, *[ADD] * 20)
    assert [outcome for outcome, _ in found[:2]] == ["ok", "unknown"]
    waited = [text for outcome, text in found[2:] if outcome == "error"]
    assert len(waited) >= 2
    assert all(NOT_SENT in text for text in waited)
    assert found[2 + len(waited) :] == [("ok", "3")] * (20 + 2 - len(waited))
    assert found[-1] == ("ok", "3")
    assert log_lines(tmp_path).count("call add") == found.count(("ok", "3"))
    assert len(processes(tmp_path)) == 2
    assert living(tmp_path) == []


@pytest.mark.servers
async def test_a_hung_server_is_replaced_also_if_calls_have_short_timeouts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check of the server takes longer than a call may wait; it goes on after the call has ended."""
    monkeypatch.setattr(server_session, "SIGN_OF_LIFE_SECONDS", 3.0)
    server = stdio_server(tmp_path, timeout=2, effect="read")
    found = await run_steps(server, ADD, call("test_hang", seconds=600), *[ADD] * 20)
    assert found[:2] == [("ok", "3"), ("error", "test_hang timed out after 2 s.")]
    assert NOT_SENT in found[2][1]
    assert found[-1] == ("ok", "3")
    assert len(processes(tmp_path)) == 2
    assert living(tmp_path) == []
