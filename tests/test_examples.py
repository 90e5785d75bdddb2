"""Every example runs offline as a reader would run it, and asserts its own outcome."""

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
def test_the_example_runs_offline_and_asserts_its_outcome(path: Path, tmp_path: Path) -> None:
    """No key, no network, no leftover: it ends well, says something, and holds at least one assertion."""
    keys = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY")
    environment = {name: value for name, value in os.environ.items() if name not in keys}
    environment["PYTHONPATH"] = str(ROOT)
    command = [sys.executable, str(path)]
    done = subprocess.run(
        command, check=False, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert "assert " in path.read_text(encoding="utf-8")


def test_the_command_draws_the_trace_of_the_jaeger_example_without_a_jaeger() -> None:
    """Loading the file starts and configures nothing: the run is not exported, and stops where a person is asked."""
    options = ["--max-messages", "10", "--json", "--quiet", "--trace"]
    command = [sys.executable, "-m", "crew.cli", "run", "examples/jaeger.py", *options, "Please pay order 3 back."]
    environment = os.environ | {"PYTHONIOENCODING": "utf-8"}
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    done = subprocess.run(
        command, check=False, cwd=ROOT, env=environment, text=True, encoding="utf-8", timeout=120, **pipes
    )
    assert (done.returncode, json.loads(done.stdout)["trace_id"]) == (3, "")
    assert done.stderr.startswith("crew: waits for")
    assert "invoke_workflow support" in done.stderr
    assert done.stderr.count("crew.history.prune") == 3
