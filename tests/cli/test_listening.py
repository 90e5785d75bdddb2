"""Commands that serve over HTTP: their socket answers without delay, and an address that can't be had is one line."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from crew.cli import main
from crew.cli.listening import listen
from crew.store import SQLiteStore


async def test_accepted_connections_send_small_answers_at_once() -> None:
    """TCP_NODELAY: a head and a body that are written separately would else wait 40 ms for an acknowledgement."""
    accepted: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.set_result(
            writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY),
        )
        writer.close()

    with listen("crew serve", "127.0.0.1", 0) as listening:
        async with await asyncio.start_server(answer, sock=listening):
            _, writer = await asyncio.open_connection(*listening.getsockname())
            assert await accepted != 0
            writer.close()


@pytest.mark.parametrize("command", ["serve", "inspect", "mcp"])
def test_address_that_can_not_be_had_is_wrong_usage(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A port that is in use, and one that does not exist; all commands open their socket in the same way."""
    target = tmp_path / "crew_that_is_served.py"
    target.write_text("from crew import Agent, ScriptedProvider\ncrew = Agent('a', model=ScriptedProvider('Hi.'))\n")
    SQLiteStore(tmp_path / "runs.db").close()
    start = {
        "serve": ["serve", str(target)],
        "inspect": ["inspect", str(tmp_path / "runs.db")],
        "mcp": ["mcp", str(target), "--http"],
    }[command]

    with socket.create_server(("127.0.0.1", 0)) as used:
        port = used.getsockname()[1]
        assert main([*start, "--port", str(port)]) == 2
        assert f"crew {command}: can't listen at 127.0.0.1:{port}: " in capsys.readouterr().err

    with pytest.raises(SystemExit) as raised:
        main([*start, "--port", "70000"])

    assert raised.value.code == 2
    assert "a port must be a number from 0 to 65535, not '70000'" in capsys.readouterr().err
