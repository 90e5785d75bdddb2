"""A `CrewExecutor` as the target of a command: it keeps its own settings."""

from __future__ import annotations

import asyncio
import json
import signal
import sqlite3
from io import StringIO
from pathlib import Path

import httpx2
import pytest

from crew.cli import main, mcp_command
from crew.cli.target import load_crews
from crew.mcp_server.crew_tools import CrewTools
from tests.support.server_process import SECRET, server_process

FILE = """\
from crew import Agent, Context, Crew, CrewExecutor, Limits, ScriptedProvider, call, tool

@tool
def look() -> str:
    "Look."
    return "seen"

@tool(approval="always")
def pay(context: Context) -> str:
    "Pay."
    return f"paid for {context.deps['customer']}"

def reply(request):
    return request.messages[-1].results[0].text

looker = Agent("looker", model=ScriptedProvider(call("look"), call("look"), "end"), tools=[look])
limited = CrewExecutor(looker, limits=Limits(rounds=1))
hidden = CrewExecutor(
    Crew("shop", agents=[Agent("clerk", model=ScriptedProvider(call("pay"), reply), tools=[pay])]),
    deps=lambda info: {"customer": "Ada"},
    store="STORE",
)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "executors_for_cli.py"
    path.write_text(FILE.replace("STORE", str(tmp_path / "own.db")), encoding="utf-8")
    return path


def test_an_executor_runs_with_its_own_settings(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its limits hold."""
    assert main(["run", f"{path}:limited", "hi"]) == 4
    assert "does not use" not in capsys.readouterr().err


def test_a_file_whose_executor_is_not_used_has_a_warning(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a name the command runs the only agent, with the settings of the command line; a name is a choice."""
    warning = f"! {path} has a CrewExecutor, whose settings crew run does not use: to use them, pass {path}:limited\n"
    assert main(["run", str(path), "hi"]) == 0
    assert capsys.readouterr().err.startswith(warning)

    for arguments in ([f"{path}:looker", "hi"], [str(path), "hi", "--quiet"]):
        assert main(["run", *arguments]) == 0
        assert "does not use" not in capsys.readouterr().err


def test_a_paused_run_of_an_executor_is_resumed_from_its_own_store(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The printed command needs no --store, and the deps are built again."""
    target = f"{path}:hidden"
    assert main(["run", target, "hi", "--json"]) == 3
    out, err = capsys.readouterr()
    run_id = json.loads(out)["run_id"]
    assert f"crew: resume with: crew resume {target} {run_id} --answer={run_id}:1.0=yes\n" in err
    assert main(["resume", target, run_id, "--answer", "yes"]) == 0
    assert capsys.readouterr().out == "paid for Ada\n"

    assert main(["run", target, "hi"]) == 3
    with sqlite3.connect(tmp_path / "own.db") as database:
        [other] = {row[0] for row in database.execute("SELECT run_id FROM runs")} - {run_id}
    database.close()
    assert main(["cancel", target, other]) == 0


@pytest.mark.parametrize(
    "option",
    [["--store", "x.db"], ["--rounds", "3"], ["--max-messages", "9"], ["--history", "rolling"], ["--trace"]],
)
def test_options_that_configure_an_executor_are_refused(
    option: list[str], path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An option without an effect would mislead."""
    assert main(["run", f"{path}:limited", "hi", *option]) == 2
    expected = f"crew: {option[0]}: {path}:limited is a CrewExecutor, which has its own settings; change them there"
    assert capsys.readouterr().err.startswith(expected)


def test_an_executor_in_memory_has_no_stored_runs(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The error names the parameter that saves them."""
    assert main(["resume", f"{path}:limited", "r"]) == 2
    assert "the executor keeps its runs in memory; pass store=… to it" in capsys.readouterr().err


def test_chat_and_show_accept_an_executor(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A chat uses its settings, the graph its crew."""
    assert main(["show", f"{path}:hidden"]) == 0
    assert "clerk" in capsys.readouterr().out
    monkeypatch.setattr("sys.stdin", StringIO("hi\nyes\n"))
    assert main(["chat", f"{path}:hidden"]) == 0
    assert "paid for Ada" in capsys.readouterr().out


def test_an_executor_is_found_if_the_file_has_no_other_target(tmp_path: Path) -> None:
    """Its agent need not have a name in the file."""
    path = tmp_path / "only_executor_for_cli.py"
    path.write_text(
        "from crew import Agent, CrewExecutor, ScriptedProvider\n"
        "executor = CrewExecutor(Agent('inner', model=ScriptedProvider('x')))\n"
    )
    assert [crew.name for crew in load_crews(str(path))] == ["inner"]


@pytest.mark.servers
def test_an_executor_is_served_with_its_store(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The store of the executor keeps the runs of the service."""
    run_id = asyncio.run(_start_served_run(f"{path}:hidden"))
    assert main(["resume", f"{path}:hidden", run_id, "--answer", "yes"]) == 0
    assert capsys.readouterr().out == "paid for Ada\n"


async def _start_served_run(target: str) -> str:
    """Start a run and wait until it is paused; its id."""
    async with server_process(target=target) as server, httpx2.AsyncClient(trust_env=False) as http:
        headers = {"Authorization": f"Bearer {SECRET}"}
        started = await http.post(f"{server.url}/runs", json={"input": "Hi"}, headers=headers)
        run_id: str = started.json()["run_id"]

        async with asyncio.timeout(30):
            while (await http.get(f"{server.url}/runs/{run_id}", headers=headers)).json()["status"] != "paused":
                await asyncio.sleep(0.05)

        assert not any("in memory" in line for line in server.lines)
        assert await server.stop(signal.SIGINT) == 130

    return run_id


def test_an_executor_is_offered_over_mcp(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The tool runs the executor itself, whose store keeps the runs."""
    schemas: dict[str, object] = {}

    async def serve(tools: CrewTools) -> None:
        schemas.update({tool.name: tool.input_schema for tool in (await tools._list_tools(None, None)).tools})

    monkeypatch.setattr(mcp_command, "serve_stdio", serve)
    assert main(["mcp", f"{path}:hidden"]) == 0
    assert schemas.keys() == {"shop"}
    assert "conversation" in str(schemas)
