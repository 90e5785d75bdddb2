"""`mcp_servers:` in a configuration file, and `crew check`, which lists them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from crew import CrewExecutor
from crew.cli import main
from crew.errors import ConfigError
from crew.mcp import MCPServer, ToolSettings
from tests.support.mcp_clients import SCRIPT

RAW = SCRIPT.with_name("mcp_raw_server.py")
FILE = """
mcp_servers:
  raw:
    stdio: [{python}, {script}, plain]
    pins: pins.json
    effect: read
    approval: writes
    tools: {{ask: {{timeout: 5, approval: never}}}}
crews:
  one:
    agents:
      worker: {{model: "scripted:Hello.", handoffs: [other], tools: [raw]}}
      other: {{model: "scripted:Hello.", tools: [raw]}}
"""


def write(folder: Path, text: str = FILE) -> Path:
    path = folder / "crew.yaml"
    path.write_text(text.format(python=sys.executable, script=RAW))
    return path


async def test_agents_use_servers_of_the_file_by_their_names(tmp_path: Path) -> None:
    """Settings apply, paths are relative to the file, and agents that name one server share it."""
    executor = CrewExecutor.from_config(write(tmp_path), crew="one")
    worker, other = (executor.plan.agents[name].toolsets[0] for name in ("worker", "other"))
    assert worker is other
    assert isinstance(worker, MCPServer)
    assert (worker.name, worker.effect, worker.approval) == ("raw", "read", "writes")
    assert worker.tools == {"ask": ToolSettings(timeout=5, approval="never")}
    assert (worker.pins, worker.folder) == (tmp_path / "pins.json", tmp_path)

    async with executor:
        assert (await executor.execute("Hi")).output == "Hello."

    assert (tmp_path / "pins.json").exists()


def test_a_file_of_others_cannot_add_servers(tmp_path: Path) -> None:
    """They run commands: `allowed_modules` refuses them."""
    with pytest.raises(ConfigError, match="with allowed modules, a file can't add MCP servers"):
        CrewExecutor.from_config(write(tmp_path), crew="one", allowed_modules=[])


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        ("effect: read", "effect: reed", "mcp_servers.raw.effect must be"),
        ("effect: read", "efect: read", "mcp_servers.raw.efect is not a known key. Did you mean 'effect'?"),
        ("effect: read", "name: other", "the name of a server is its key"),
        ("timeout: 5", "timeout: soon", "mcp_servers.raw.tools.ask.timeout must be"),
        ("effect: read", "url: http://127.0.0.1/mcp", "give either stdio="),
        (
            "tools: [raw]}}\n      other",
            "tools: [rawe]}}\n      other",
            "mcp_servers has no server 'rawe'. Did you mean 'raw'?",
        ),
    ],
)
def test_mistakes_are_reported_with_their_place(tmp_path: Path, before: str, after: str, problem: str) -> None:
    """As for any other key of the file."""
    path = write(tmp_path, FILE.replace(before, after))

    with pytest.raises(ConfigError) as caught:
        CrewExecutor.from_config(path, crew="one")

    assert problem in str(caught.value)
    assert f"{path}:" in str(caught.value)


def test_crew_check_lists_agents_models_and_the_tools_of_servers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit code is 0; no process and no connection is left."""
    assert main(["check", str(write(tmp_path))]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "crew one (starts with worker)",
        "  agent worker: scripted:Hello.",
        "    handoffs: other",
        "    toolset raw: raw_ask (read)",
        "  agent other: scripted:Hello.",
        "    toolset raw: raw_ask (read)",
    ]
    assert main(["check", str(write(tmp_path)), "--offline"]) == 0
    assert "    toolset raw: not opened" in capsys.readouterr().out.splitlines()


def test_crew_check_lists_guardrails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Those of the crew and of its agents, with what they check."""
    path = tmp_path / "guarded_crew.py"
    path.write_text(
        """\
from crew import Agent, Crew
from crew.agents import guardrail

@guardrail("input")
def on_topic(context, text): ...

@guardrail("tool")
def small(context, call): ...

crew = Crew("shop", agents=[Agent("clerk", model="scripted:Hi", guardrails=[small])], guardrails=[on_topic])
""",
        encoding="utf-8",
    )
    assert main(["check", str(path)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "crew shop (starts with clerk)",
        "  guardrails: on_topic (input)",
        "  agent clerk: scripted:Hi",
        "    guardrails: small (tool)",
    ]


def test_crew_check_fails_if_a_server_is_down_or_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """1 for a server that can't be used, with the reason or the difference; 2 for a wrong definition."""
    assert main(["check", str(write(tmp_path))]) == 0
    pins = tmp_path / "pins.json"
    pins.write_text(pins.read_text().replace("Asks.", "Asks you."))
    assert main(["check", str(write(tmp_path))]) == 1
    printed = capsys.readouterr().out
    assert "  -Asks you." in printed
    assert "  +Asks." in printed
    assert "To answer, run the crew" in printed
    pins.unlink()
    path = write(tmp_path, FILE.replace("[{python}, {script}, plain]", "[/no/such/program]"))
    assert main(["check", str(path)]) == 1
    assert (
        "! toolset raw: ServerUnavailable: The MCP server 'raw' (/no/such/program) is not available: no such file"
        in capsys.readouterr().out
    )
    assert main(["check", str(write(tmp_path, FILE.replace("scripted:", "nothing:")))]) == 2


def test_crew_check_names_tools_that_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A repeated name, and a schema that is too large."""
    assert main(["check", str(write(tmp_path, FILE.replace("plain]", "bad tools]")))]) == 0
    printed = capsys.readouterr().out
    assert "      left out: the tool 'ask' is listed twice; the first one is used" in printed
    assert "left out: the schema of the tool 'large' is larger than 50,000 characters" in printed
