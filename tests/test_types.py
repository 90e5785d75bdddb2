"""Types: a misspelt field of a state, a step or an event is an error for mypy, not a surprise at run time."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent

MISSPELT = """
from dataclasses import replace

from crew.fast_replace import fast_replace
from crew.runs.events import HistoryPruned
from crew.runs.state import RunState
from crew.transitions.step import Step


def change(step: Step, state: RunState) -> None:
    step.nxet = state.next
    step.emit(HistoryPruned, plicy="rolling")
    replace(state, nxet=state.next)
    fast_replace(state, nxet=state.next)
"""


def test_mypy_reports_misspelt_fields(tmp_path: Path) -> None:
    """Each of the four ways to write a field is checked by name."""
    source = tmp_path / "misspelt.py"
    source.write_text(MISSPELT)
    command = [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", "--no-pretty", str(source)]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    errors = [line for line in found.stdout.splitlines() if ": error:" in line]
    assert [word for line in errors for word in ("nxet", "plicy") if word in line] == [
        "nxet",
        "plicy",
        "nxet",
        "nxet",
    ], found
