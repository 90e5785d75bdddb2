"""Every example runs offline as a reader would run it, and asserts its own outcome."""

from __future__ import annotations

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
