"""`crew serve`: its options are checked before it listens, and it serves all crews of a configuration file."""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import importlib.util
import json
import signal
import socket
from pathlib import Path

import httpx2
import pytest

from crew import Agent, CrewExecutor, ScriptedProvider
from crew.cli import main
from crew.cli.serve_command import print_address, read_tokens
from crew.cli.target import load_crews
from crew.errors import DefinitionError
from crew.server import ServerSettings, Token
from crew.server.application import create_context
from crew.server.required_packages import check_installed
from tests.support.server_process import SECRET, server_process

ROOT = Path(__file__).parent.parent.parent


def test_tokens_are_read_from_a_file(tmp_path: Path) -> None:
    """A line has the token or its hash, the principal, and the scopes; without scopes it may not see all runs."""
    digest = hashlib.sha256(b"b" * 20).hexdigest()
    path = tmp_path / "tokens"
    path.write_text(
        json.dumps({"token": "a" * 20, "principal": "anna", "scopes": ["read"]})
        + "\n\n"
        + json.dumps({"sha256": digest, "principal": "ben"})
    )
    anna, ben = read_tokens(path)
    assert (anna.principal, anna.scopes) == ("anna", {"read"})
    assert (ben.sha256, ben.scopes) == (digest, {"run", "read", "approve"})


@pytest.mark.parametrize(
    "line",
    [
        "secret-0123456789",
        "[]",
        '{"token": "secret-0123456789"}',
        '{"token": "short", "principal": "a"}',
        '{"token": "secret-0123456789", "principal": "a", "scopes": ["admin"]}',
        '{"token": "secret-0123456789", "sha256": "x", "principal": "a"}',
        '{"token": "secret-0123456789", "principal": "a", "scopes": "read"}',
    ],
)
def test_a_wrong_line_is_refused_without_showing_the_secret(line: str, tmp_path: Path) -> None:
    """The error names the file and the line."""
    path = tmp_path / "tokens"
    path.write_text(f"\n{line}\n")

    with pytest.raises(DefinitionError, match=r"tokens:2") as refused:
        list(read_tokens(path))

    assert "secret-0123456789" not in str(refused.value)


def test_no_token_is_accepted_only_on_loopback(capsys: pytest.CaptureFixture[str]) -> None:
    """Other machines could run the crew."""
    assert main(["serve", "examples/support.py", "--host", "0.0.0.0", "--insecure-no-token"]) == 2
    assert "not a loopback address" in capsys.readouterr().err


def test_an_address_in_use_is_an_error(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the address."""
    monkeypatch.chdir(ROOT)

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["serve", "examples/support.py", "--port", port]) == 2

    assert f"can't listen at 127.0.0.1:{port}" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["serve", "crew.py"], ["inspect", "runs.db"], ["mcp", "crew.py", "--http"]])
@pytest.mark.parametrize("port", ["99999", "-1", "http"])
def test_a_wrong_port_is_an_error(command: list[str], port: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The error names the value and what is accepted."""
    with pytest.raises(SystemExit, match="2"):
        main([*command, "--port", port])

    assert f"a port must be a number from 0 to 65535, not '{port}'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--resume"], "--resume: there are no runs to resume: without --store FILE they are in memory"),
        (["--allow-host", "http://crew.example"], "such as crew.example, not 'http://crew.example'"),
        (["--allow-host", "crew.example:8000"], "such as crew.example, not 'crew.example:8000'"),
        (["--allow-origin", "chat.example"], "such as https://chat.example, not 'chat.example'"),
        (["--allow-origin", "https://chat.example/page"], "such as https://chat.example, not 'https://chat.example/p"),
        (["--token-file", "missing"], "--token-file: can't read 'missing': No such file or directory"),
        (["--token-file", "/dev/null"], "--token-file: '/dev/null' has no tokens"),
        (["--store", "postgresql://127.0.0.1:1/crew"], "Can't connect to postgresql://127.0.0.1:1/crew"),
    ],
)
def test_options_without_effect_are_refused(
    options: list[str], text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host or origin that no header can equal, and a store that can't be reached, are reported before it listens."""
    monkeypatch.chdir(ROOT)
    assert main(["serve", "examples/support.py", "--port", "0", *options]) in (1, 2)
    printed = capsys.readouterr().err
    assert text in printed
    assert "Traceback" not in printed


def test_two_principals_can_not_share_a_token() -> None:
    """One of them would get the rights of the other."""
    tokens = (Token.of("a" * 20, "anna", ["read"]), Token.of("a" * 20, "ben"))

    with pytest.raises(DefinitionError, match="'anna' and 'ben' have the same secret with different rights"):
        ServerSettings(tokens=tokens)

    assert len(ServerSettings(tokens=(tokens[0], tokens[0])).tokens) == 2


def test_the_link_has_the_rights_of_the_token_with_the_most_scopes(capsys: pytest.CaptureFixture[str]) -> None:
    """The person who starts the service opens it; the first token of a file may belong to a program."""
    tokens = (Token.of("a" * 20, "shop", ["run", "read"]), Token.of("b" * 20, "boss", ["read", "approve", "all"]))
    executor = CrewExecutor(Agent("greeter", model=ScriptedProvider("Hello.")))
    context = create_context(executor, ServerSettings(tokens=tokens))
    args = argparse.Namespace(host="127.0.0.1", insecure_no_token=False, location="runs.db")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        print_address(context, args, listening, "")

    address, opened_as = capsys.readouterr().err.splitlines()
    assert opened_as == "crew: the address opens the inspector as boss, with all, approve, read"
    assert context.tokens.exchange(address.rpartition("?token=")[2], "session")
    principal = context.tokens.find_session("session")
    assert principal is not None
    assert principal.name == "boss"


FAILING_CREW = """
import asyncio
from crew import Agent, Crew, ScriptedProvider, call, tool

@tool
async def lookup() -> str:
    "Fails."
    raise RuntimeError("the database is down")

@tool(effect="read")
async def wait() -> str:
    "Waits."
    await asyncio.sleep(60)
    return "Waited."

clerk = Agent("clerk", model=ScriptedProvider(call("lookup"), call("wait")), tools=[lookup, wait])
crew = Crew("clerks", entry=clerk)
"""


@pytest.mark.servers
@pytest.mark.parametrize("is_stored", [True, False])
async def test_the_operator_sees_errors_of_tools_and_the_runs_that_ctrl_c_interrupts(
    is_stored: bool, tmp_path: Path
) -> None:
    """Without options, the service prints the stack trace of a tool, and how to resume what it stopped."""
    path = tmp_path / "failing.py"
    path.write_text(FAILING_CREW)
    options = ["--store", str(tmp_path / "runs.db")] if is_stored else []

    async with server_process(*options, target=str(path)) as server, httpx2.AsyncClient(trust_env=False) as http:
        headers = {"Authorization": f"Bearer {SECRET}", "Idempotency-Key": "slow-1"}
        await http.post(f"{server.url}/runs", json={"input": "Hi"}, headers=headers)

        async with asyncio.timeout(20):
            while not any("tool=lookup" in line for line in server.lines):
                await asyncio.sleep(0.05)

        assert await server.stop(signal.SIGINT) == 130
        printed = "\n".join(server.lines)
        assert 'raise RuntimeError("the database is down")' in printed
        advice = "start the service with --resume to continue" if is_stored else "pass --store FILE to make runs"
        kind = "interrupted" if is_stored else "unfinished"
        assert f"crew: 1 {kind} run: slow-1; {advice}" in printed
        assert ("crew: runs are in memory and end with this process; --store FILE keeps them" in printed) != is_stored


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error has the command that installs it."""
    monkeypatch.setattr("crew.server.required_packages.find_spec", lambda name: None)

    with pytest.raises(DefinitionError, match=r"pip install 'crew-executor\[serve\]'"):
        check_installed()

    assert importlib.util.find_spec("starlette")


TWO_CREWS = """
crews:
  greeter:
    agents: {host: {model: "scripted:Hello."}}
  leaver:
    agents: {host: {model: "scripted:Goodbye."}}
"""


def test_a_configuration_file_without_a_name_has_all_its_crews(tmp_path: Path) -> None:
    """`crew serve crews.yaml` serves them; with a name it serves one."""
    path = tmp_path / "crews.yaml"
    path.write_text(TWO_CREWS)
    assert [crew.name for crew in load_crews(str(path))] == ["greeter", "leaver"]
    assert [crew.name for crew in load_crews(f"{path}:leaver")] == ["leaver"]


@pytest.mark.servers
async def test_all_crews_of_a_file_are_served(tmp_path: Path) -> None:
    """Each run names its crew; the printed address works once."""
    path = tmp_path / "crews.yaml"
    path.write_text(TWO_CREWS)

    async with server_process(target=str(path)) as server, httpx2.AsyncClient(trust_env=False) as http:
        headers = {"Authorization": f"Bearer {SECRET}"}
        crews = (await http.get(f"{server.url}/crew", headers=headers)).json()["crews"]
        assert [crew["name"] for crew in crews] == ["greeter", "leaver"]
        without = await http.post(f"{server.url}/runs", json={"input": "Hi"}, headers=headers)
        assert without.json()["error"]["violations"][0]["rule"] == "crew"
        named = await http.post(f"{server.url}/runs", json={"input": "Hi", "crew": "leaver"}, headers=headers)
        events = await http.get(f"{server.url}/runs/{named.json()['run_id']}/events", headers=headers)
        assert "Goodbye." in events.text
        link = next(line for line in server.lines if "?token=" in line).rpartition(" ")[2]
        assert "set-cookie" in (await http.get(link)).headers
        http.cookies.clear()
        assert (await http.get(link)).status_code == 401
