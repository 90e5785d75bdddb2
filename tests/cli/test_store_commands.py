"""Commands that read stored runs: what they print is what happened."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from crew import Agent, Crew, CrewExecutor, Parallel, RunResult, ScriptedProvider, call, tool
from crew.cli import main
from crew.store import SQLiteStore


@tool(effect="read")
async def look(place: str) -> str:
    """Look."""
    return f"a bicycle in {place}"


@pytest.fixture
async def stored(tmp_path: Path) -> tuple[str, RunResult]:
    """A file with a run whose history was pruned and that had branches, and a second run."""
    path = str(tmp_path / "runs.db")
    store = SQLiteStore(path)
    lines = [*(call("look", place=f"street {n}") for n in range(6)), "Go on."]
    lead = Agent("lead", model=ScriptedProvider(*lines), tools=[look], then="panel")
    panel = Parallel("panel", branches=[Agent(name, model=ScriptedProvider(f"{name}.")) for name in ("x", "y")])
    crew = Crew("search", agents=[lead, *panel.branches], groups=[panel])
    result = await CrewExecutor(crew, store=store, max_messages_per_request=8).execute("Find it.", run_id="r")
    await CrewExecutor(Agent("other", model=ScriptedProvider("Hello.")), store=store).execute("Hi.", run_id="s")
    store.close()
    return path, result


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main([*arguments]) == 0
    return capsys.readouterr().out


def test_runs_are_listed(stored: tuple[str, RunResult], capsys: pytest.CaptureFixture[str]) -> None:
    """As a table, newest first, or as JSON; a page at a time."""
    head, first, second = printed(capsys, "runs", "--store", stored[0]).splitlines()
    assert head.split() == ["run", "status", "crew", "agent", "messages", "updated"]
    assert (first.split()[:3], second.split()[:3]) == (["s", "completed", "other"], ["r", "completed", "search"])
    listed = json.loads(printed(capsys, "runs", "--store", stored[0], "--crew", "search", "--json"))
    assert [info["run_id"] for info in listed] == ["r"]
    assert main(["runs", "--store", stored[0], "--limit", "1"]) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 2
    cursor = err.split("--cursor ")[1].strip().strip("'")
    assert printed(capsys, "runs", "--store", stored[0], "--cursor", cursor).splitlines()[1].startswith("r ")


def test_transcript_shows_what_left_the_request(
    stored: tuple[str, RunResult], capsys: pytest.CaptureFixture[str]
) -> None:
    """Every message, with its treatment in the newest request of each agent; branches follow."""
    lines = printed(capsys, "transcript", "r", "--store", stored[0]).splitlines()
    assert lines[0] == "#0 user: Find it."
    assert lines[2] == "#2 tool: look: a bicycle in street 0  [evicted for lead]"
    assert "r/x:" in lines
    assert sum(line.startswith("#") for line in lines) == len(stored[1].transcript) + sum(
        len(branch.transcript) for branch in stored[1].branches
    )


def test_explain_names_the_rule_that_removed_a_message(
    stored: tuple[str, RunResult], capsys: pytest.CaptureFixture[str]
) -> None:
    """What was sent, what was left out and why, and what moved the prefix."""
    first = printed(capsys, "explain", "r", "--request", "1", "--store", stored[0])
    assert "prefix: none, this is the first request of the agent" in first
    text = printed(capsys, "explain", "r", "--request", "7", "--store", stored[0])
    assert text.startswith("request 7 of 9\nr · lead · scripted:scripted")
    assert "● #0 user: Find it.  kept" in text
    assert "○ #2 tool: look: a bicycle in street 0  evicted by rolling" in text
    branch = printed(capsys, "explain", "r", "--store", stored[0])
    assert "r/y · y" in branch
    assert "● #0 user: Find it.  kept" in branch
    assert main(["explain", "r", "--request", "99", "--store", stored[0]]) == 2
    assert "must be 1 to 9, not 99" in capsys.readouterr().err


def test_trace_draws_the_stored_run(stored: tuple[str, RunResult], capsys: pytest.CaptureFixture[str]) -> None:
    """The tree that --trace prints, from the stored events."""
    text = printed(capsys, "trace", "r", "--store", stored[0])
    assert text.startswith("invoke_workflow search")
    assert text.count("execute_tool look") == 6
    assert "invoke_agent x" in text


def test_export_is_complete_and_forget_erases(
    stored: tuple[str, RunResult], capsys: pytest.CaptureFixture[str]
) -> None:
    """JSON lines for each run, message and event; an erased run is gone."""
    lines = [json.loads(line) for line in printed(capsys, "export", "--store", stored[0]).splitlines()]
    assert {line["type"] for line in lines} == {"run", "message", "event"}
    texts = [line["message"].get("text") for line in lines if line["type"] == "message"]
    assert {"Find it.", "x.", "Hello."} <= set(texts)
    assert printed(capsys, "forget", "r", "--store", stored[0]) == "erased 1 run\n"
    assert main(["transcript", "r", "--store", stored[0]]) == 2
    assert b"bicycle" not in Path(stored[0]).read_bytes()


@pytest.mark.parametrize("command", ["runs", "transcript r", "explain r", "trace r", "export", "forget r"])
def test_missing_file_is_wrong_usage(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is not created."""
    path = tmp_path / "none.db"
    assert main([*command.split(), "--store", str(path)]) == 2
    assert "no such file" in capsys.readouterr().err
    assert not path.exists()
