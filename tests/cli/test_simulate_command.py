"""`crew simulate`: from a file to a table, JSON and a picture."""

import argparse
import importlib.util
import json
import os
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from crew.cli.simulate_command import add_simulate_parser, parse_policy, simulate_command

TRANSCRIPTS = Path(__file__).parents[2] / "examples" / "transcripts"
POLICIES = ["-p", "unbounded", "-p", "sliding=rolling:limit=50,prune_to=50", "-p", "rolling"]


def command(*words: str) -> int:
    parser = argparse.ArgumentParser(prog="crew")
    add_simulate_parser(parser.add_subparsers())
    args = parser.parse_args(["simulate", *words])
    return simulate_command(args)


@pytest.mark.parametrize("name", ["coding", "support", "research"])
def test_the_examples_are_simulated_and_a_sliding_window_is_dearer_than_none(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The honest row: a window that slides by one costs more than no window, and more than one that moves by blocks."""
    picture = tmp_path / "tokens.svg"
    assert (
        command(str(TRANSCRIPTS / f"{name}.json"), *POLICIES, "--json", "--svg", str(picture), "--fixed-tokens", "1500")
        == 0
    )
    unbounded, sliding, rolling = json.loads(capsys.readouterr().out)["policies"]
    assert sliding["cost_usd"] > rolling["cost_usd"]
    # Branches of two dozen steps end before a window has anything to save, and are dearer for it all the same.
    assert name == "research" or rolling["cost_usd"] < unbounded["cost_usd"]
    assert unbounded["cost_usd"] < sliding["cost_usd"]

    for row in (unbounded, sliding, rolling):
        assert row["valid_requests"] == row["requests"]
        assert row["goal_visible"] == 1.0

    assert ET.parse(picture).getroot().tag.endswith("svg")


def test_the_table_has_a_line_for_each_policy(capsys: pytest.CaptureFixture[str]) -> None:
    """For the terminal."""
    assert command(str(TRANSCRIPTS / "support.json"), *POLICIES, "--fact", "C-88123") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["policy", "unbounded", "sliding", "rolling"]
    assert "1/1" in lines[1]


def test_policies_are_written_as_words() -> None:
    """A name, options, a label, a chain."""
    assert parse_policy("rolling") == ("rolling", {"name": "rolling"})
    assert parse_policy("x=rolling:limit=4") == ("x", {"name": "rolling", "limit": 4})
    assert parse_policy("rolling:limit=4")[0] == "rolling:limit=4"
    chained = {"name": "chain", "policies": [{"name": "mask_tool_results", "keep_recent": 5}, {"name": "rolling"}]}
    assert parse_policy("mask_tool_results:keep_recent=5+rolling")[1] == chained


@pytest.mark.parametrize(
    "words", [["nowhere.json"], [str(TRANSCRIPTS / "support.json"), "-p", "roling"], [str(TRANSCRIPTS / "generate.py")]]
)
def test_what_can_t_be_simulated_is_said_in_one_line(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """No traceback; the exit code says it too."""
    assert command(*words) == 2
    assert capsys.readouterr().err.startswith("crew simulate: ")


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    """How a policy is written, what the columns mean, and what to try."""
    with pytest.raises(SystemExit):
        command("--help")

    text = capsys.readouterr().out
    assert all(word in text for word in ("prune_to=40", "breaks", "examples:"))


async def test_the_committed_transcripts_are_those_that_the_script_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deterministic, and small enough to be kept."""
    spec = importlib.util.spec_from_file_location("generate", TRANSCRIPTS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    monkeypatch.setattr(script, "HERE", tmp_path)
    await script.main()

    for name in ("coding", "support", "research"):
        made = (tmp_path / f"{name}.json").read_bytes()
        assert made == (TRANSCRIPTS / f"{name}.json").read_bytes(), f"run python {TRANSCRIPTS}/generate.py"
        assert len(made) < 400_000


def test_the_picture_in_the_docs_is_what_the_command_draws(tmp_path: Path) -> None:
    """CREW_WRITE_DOCS=1 draws it anew after token estimates changed."""
    docs = Path(__file__).parents[2] / "docs"
    drawn = docs / "tokens.svg" if os.environ.get("CREW_WRITE_DOCS") else tmp_path / "tokens.svg"
    shown = ["-p", "unbounded", "-p", "sliding=rolling:prune_to=50", "-p", "rolling", "-p", "tight=rolling:limit=25"]
    assert command(str(TRANSCRIPTS / "coding.json"), "--fixed-tokens", "1500", *shown, "--svg", str(drawn)) == 0
    assert drawn.read_text() == (docs / "tokens.svg").read_text()
