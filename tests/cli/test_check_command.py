"""`crew check`: toolsets that do not list their tools in time."""

from __future__ import annotations

from pathlib import Path

import pytest

from crew.cli import main

CREW = """
import asyncio
from crew import Agent, ScriptedProvider

class Slow:
    name = "slow"
    list_seconds = 0.05

    async def list_tools(self, context):
        await asyncio.Event().wait()

crew = Agent("solo", model=ScriptedProvider("Done."), tools=[Slow()])
"""


def test_a_toolset_has_the_time_that_it_asks_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same as in a run; the problem names the time."""
    path = tmp_path / "crewfile.py"
    path.write_text(CREW)
    assert main(["check", str(path)]) == 1
    assert "! toolset slow: it did not list its tools within 0.05 s" in capsys.readouterr().out
