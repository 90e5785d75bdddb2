"""`crew run --trace` prints the span tree with time, tokens and prunings, without a server."""

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


def test_the_trace_is_printed_at_the_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """To stderr: stdout has only the answer."""
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


def test_a_failed_run_prints_its_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the span that failed."""
    (tmp_path / "shop.py").write_text(CREW.replace('"It left."', 'RuntimeError("no line")'))
    assert main(["run", str(tmp_path / "shop.py"), "Go", "--trace", "--quiet"]) == 1
    assert "failed: " in capsys.readouterr().err
