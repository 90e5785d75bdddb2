"""Every example runs offline and asserts its own outcome."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def test_there_are_examples() -> None:
    """An empty folder would pass every test."""
    assert EXAMPLES


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_example_runs_offline(path: Path, tmp_path: Path) -> None:
    """Without an API key it exits with 0, prints something, and contains at least one assertion."""
    keys = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY")
    environment = {name: value for name, value in os.environ.items() if name not in keys}
    environment["PYTHONPATH"] = str(ROOT)
    command = [sys.executable, str(path)]
    completed = subprocess.run(
        command, check=False, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout.strip()
    assert "assert " in path.read_text(encoding="utf-8")


def test_crew_run_traces_the_jaeger_example_without_jaeger() -> None:
    """Loading the file exports nothing; the run pauses for the approval."""
    options = ["--max-messages", "10", "--json", "--quiet", "--trace"]
    command = [sys.executable, "-m", "crew.cli", "run", "examples/jaeger.py", *options, "Please pay order 3 back."]
    environment = os.environ | {"PYTHONIOENCODING": "utf-8"}
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    completed = subprocess.run(
        command, check=False, cwd=ROOT, env=environment, text=True, encoding="utf-8", timeout=120, **pipes
    )
    assert (completed.returncode, json.loads(completed.stdout)["trace_id"]) == (3, "")
    assert completed.stderr.startswith("crew: waiting for an answer to")
    assert "invoke_workflow support" in completed.stderr
    assert completed.stderr.count("crew.history.prune") == 3


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_only_as_a_program(path: Path) -> None:
    """`crew run` and `crew show` load the file; its own run must not start then."""
    assert '\nif __name__ == "__main__":\n' in path.read_text(encoding="utf-8")
