"""`crew simulate`: reads a transcript, prints a table or JSON, draws a chart."""

import dataclasses
import importlib.util
import json
import os
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from crew.cli.arguments import create_parser
from crew.cli.simulate_arguments import PRICES_HELP
from crew.cli.simulate_command import parse_policy, simulate_command
from crew.simulator import Prices

TRANSCRIPTS = Path(__file__).parents[2] / "examples" / "transcripts"
POLICIES = ["-p", "unbounded", "-p", "sliding=rolling:limit=50,prune_to=50", "-p", "rolling"]


def command(*arguments: str) -> int:
    return simulate_command(create_parser().parse_args(["simulate", *arguments]))


@pytest.mark.parametrize("name", ["coding", "support", "research"])
def test_a_sliding_window_costs_more_than_no_window(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On every example, a window that slides by one costs more than no window and than one that moves by blocks."""
    chart = tmp_path / "tokens.svg"
    assert (
        command(str(TRANSCRIPTS / f"{name}.json"), *POLICIES, "--json", "--svg", str(chart), "--fixed-tokens", "1500")
        == 0
    )
    unbounded, sliding, rolling = json.loads(capsys.readouterr().out)["policies"]
    assert sliding["cost_usd"] > rolling["cost_usd"]
    # Branches of two dozen steps end before a window saves anything.
    assert name == "research" or rolling["cost_usd"] < unbounded["cost_usd"]
    assert unbounded["cost_usd"] < sliding["cost_usd"]

    for row in (unbounded, sliding, rolling):
        assert row["valid_requests"] == row["requests"]
        assert row["goal_visible"] == 1.0

    assert ET.parse(chart).getroot().tag.endswith("svg")


def test_the_table_has_a_line_for_each_policy(capsys: pytest.CaptureFixture[str]) -> None:
    """And a column for the facts."""
    assert command(str(TRANSCRIPTS / "support.json"), *POLICIES, "--fact", "C-88123") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["policy", "unbounded", "sliding", "rolling"]
    assert "1/1" in lines[1]


@pytest.mark.parametrize("option", ["--input", "--output", "--cache-read", "--cache-write", "--fixed-tokens"])
def test_a_negative_price_or_size_is_refused(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(str(TRANSCRIPTS / "support.json"), option, "-3") == 2
    assert f"{option[2:].replace('-', '_')} must be 0 or a positive" in capsys.readouterr().err


def test_policies_are_parsed_from_text() -> None:
    """A name, options, a label, and a chain."""
    assert parse_policy("rolling") == ("rolling", {"name": "rolling"})
    assert parse_policy("x=rolling:limit=4") == ("x", {"name": "rolling", "limit": 4})
    assert parse_policy("rolling:limit=4")[0] == "rolling:limit=4"
    chained = {"name": "chain", "policies": [{"name": "mask_tool_results", "keep_recent": 5}, {"name": "rolling"}]}
    assert parse_policy("mask_tool_results:keep_recent=5+rolling")[1] == chained


@pytest.mark.parametrize(
    "arguments",
    [["nowhere.json"], [str(TRANSCRIPTS / "support.json"), "-p", "roling"], [str(TRANSCRIPTS / "generate.py")]],
)
def test_an_invalid_simulation_is_one_clear_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """No traceback, exit code 2."""
    assert command(*arguments) == 2
    err = capsys.readouterr().err
    assert err.startswith("crew simulate: ")
    assert arguments != ["nowhere.json"] or err == "crew simulate: nowhere.json: no such file\n"


def test_help_explains_policies_and_columns(capsys: pytest.CaptureFixture[str]) -> None:
    """With examples."""
    with pytest.raises(SystemExit):
        command("--help")

    text = capsys.readouterr().out
    assert all(word in text for word in ("prune_to=40", "breaks", "examples:"))


async def test_the_script_reproduces_the_committed_transcripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is deterministic, and its files are small."""
    spec = importlib.util.spec_from_file_location("generate", TRANSCRIPTS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    monkeypatch.setattr(script, "HERE", tmp_path)
    await script.main()

    for name in ("coding", "support", "research"):
        written = (tmp_path / f"{name}.json").read_bytes()
        assert written == (TRANSCRIPTS / f"{name}.json").read_bytes(), f"run python {TRANSCRIPTS}/generate.py"
        assert len(written) < 400_000


def test_the_command_reproduces_the_chart_in_the_docs(tmp_path: Path) -> None:
    """CREW_WRITE_DOCS=1 rewrites it after token estimates changed."""
    docs = Path(__file__).parents[2] / "docs"
    drawn = docs / "tokens.svg" if os.environ.get("CREW_WRITE_DOCS") else tmp_path / "tokens.svg"
    shown = ["-p", "unbounded", "-p", "sliding=rolling:prune_to=50", "-p", "rolling", "-p", "tight=rolling:limit=25"]
    assert command(str(TRANSCRIPTS / "coding.json"), "--fixed-tokens", "1500", *shown, "--svg", str(drawn)) == 0
    assert drawn.read_text() == (docs / "tokens.svg").read_text()


def test_help_shows_the_default_prices() -> None:
    """The help repeats the defaults of `Prices`, because it does not import the simulator."""
    defaults = {f"--{field.name.replace('_', '-')}": field.default for field in dataclasses.fields(Prices)}
    assert {option: price for option, (_, price) in PRICES_HELP.items()} | {"--cache-step": 1} == defaults
