"""`crew mcp`: the command with which a paused run is answered."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from crew.cli import main, mcp_command
from crew.cli.arguments import create_parser
from crew.mcp_server import CrewTools

CREW = 'from crew import Agent, ScriptedProvider\ncrew = Agent("solo", model=ScriptedProvider("Done."))\n'
CONFIG = """
store: runs.db
crews:
  sales: {agents: {clerk: {model: "openai:gpt-5-mini"}}}
  support: {agents: {helper: {model: "openai:gpt-5-mini"}}}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test-0123456789")
    (tmp_path / "solo.py").write_text(CREW)
    (tmp_path / "config.yaml").write_text(CONFIG)
    (tmp_path / "settings.yaml").write_text("store: other.db\n")
    return tmp_path


def resume_hint(monkeypatch: pytest.MonkeyPatch, name: str, *options: str) -> list[str]:
    """The words of the command that the server with these options tells its client for the run r1 of a crew."""
    texts: list[str] = []

    async def serve(tools: CrewTools) -> None:
        texts.append(tools._resume_hint(name, "r1"))

    monkeypatch.setattr(mcp_command, "serve_stdio", serve)
    assert main(["mcp", *options]) == 0
    [text] = texts
    words = shlex.split(text)
    create_parser().parse_args(words[1:])  # `crew resume` accepts it
    return words


@pytest.mark.parametrize(
    ("options", "name", "words"),
    [
        (["solo.py", "--store", "my runs.db"], "solo", "solo.py r1 --store 'my runs.db'"),
        (["config.yaml"], "support", "config.yaml:support r1"),
        (["config.yaml:sales"], "sales", "config.yaml:sales r1"),
        (["solo.py", "--config", "settings.yaml"], "solo", "solo.py r1 --config settings.yaml"),
        (
            ["solo.py", "--store", "runs.db", "--max-messages", "20"],
            "solo",
            "solo.py r1 --store runs.db --max-messages 20",
        ),
    ],
)
def test_the_command_names_the_crew_and_has_the_settings_of_the_server(
    folder: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], name: str, words: str
) -> None:
    """A store of the configuration file needs no option: `crew resume` finds it there too."""
    assert resume_hint(monkeypatch, name, *options) == ["crew", "resume", *shlex.split(words)]


@pytest.mark.parametrize(
    ("store", "shown"),
    [
        ("postgresql://crew:topsecret99@127.0.0.1:9/crew", "postgresql://crew:***@127.0.0.1:9/crew"),
        ("postgresql://crew:top@secret99@127.0.0.1:9/crew", "postgresql://crew:***@127.0.0.1:9/crew"),
        ("postgresql://127.0.0.1:9/c?user=u&password=topsecret99", "postgresql://127.0.0.1:9/c?user=u&password=***"),
        ("postgresql://me@corp:topsecret99@127.0.0.1:9/c", "postgresql://me@corp:***@127.0.0.1:9/c"),
        ("postgresql://127.0.0.1:9/c?sslpassword=topsecret99", "postgresql://127.0.0.1:9/c?sslpassword=***"),
        ("postgresql://127.0.0.1:9/c?PASSWORD=topsecret99&user=u", "postgresql://127.0.0.1:9/c?PASSWORD=***&user=u"),
        ("postgresql://me@127.0.0.1:9/c", "postgresql://me@127.0.0.1:9/c"),
    ],
)
def test_the_command_does_not_show_the_password_of_the_database(
    folder: Path, monkeypatch: pytest.MonkeyPatch, store: str, shown: str
) -> None:
    """The command is sent to the client, which is another program, and to its model."""
    assert resume_hint(monkeypatch, "solo", "solo.py", "--store", store)[-1] == shown
