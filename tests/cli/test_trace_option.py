"""`crew run --trace` shows where time, tokens and messages went, with no server."""

import re
from pathlib import Path

import pytest

from crew.cli import main

CREW = """
from crew import Agent, Crew, ScriptedProvider, call, tool

@tool
async def look(order_id: str) -> str:
    \"\"\"Look an order up.\"\"\"
    return f"order {order_id} is on its way"

script = [call("look", order_id=str(number)) for number in range(8)]
crew = Crew("shop", agents=[Agent("clerk", model=ScriptedProvider(*script, "It left."), tools=[look])])
"""


def test_the_tree_is_printed_at_the_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """To stderr, so that the answer alone is on stdout."""
    (tmp_path / "shop.py").write_text(CREW)
    code = main(["run", str(tmp_path / "shop.py"), "Go", "--trace", "--quiet", "--max-messages", "10"])
    out, err = capsys.readouterr()
    assert (code, out) == (0, "It left.\n")
    lines = err.splitlines()
    assert lines[0].startswith("invoke_workflow")
    assert re.search(r"completed  \d+ → \d+ tokens", lines[0])
    assert sum("execute_tool look" in line for line in lines) == 8
    assert sum("chat scripted" in line for line in lines) == 9
    assert sum("11 → 5 messages" in line for line in lines) == err.count("crew.history.prune") > 0


def test_a_run_that_fails_shows_its_tree_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """That is when one wants it."""
    (tmp_path / "shop.py").write_text(CREW.replace('"It left."', 'RuntimeError("no line")'))
    assert main(["run", str(tmp_path / "shop.py"), "Go", "--trace", "--quiet"]) == 1
    assert "failed: " in capsys.readouterr().err
