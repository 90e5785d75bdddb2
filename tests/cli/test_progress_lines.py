"""Progress of tools in the terminal: readable, and not a line for each of a thousand steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from crew.cli import main
from crew.cli.terminal import ProgressLines, event_line
from crew.messages import ToolResult
from crew.runs.events import Event, ToolProgress, ToolReturned
from crew.runs.progress_text import progress_text

CREW = """\
from crew import Agent, Context, ScriptedProvider, call, tool

@tool
async def copy(context: Context) -> str:
    "Copy."
    context.emit("starting")

    for n in range(1, 1_001):
        context.emit({"message": "Copying", "progress": n, "total": 1_000})

    return "copied"

agent = Agent("worker", model=ScriptedProvider(call("copy"), "Done."), tools=[copy])
"""


def test_progress_reaches_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first and the last progress of the call are printed; `--quiet` prints none."""
    path = tmp_path / "progress_crew.py"
    path.write_text(CREW, encoding="utf-8")
    assert main(["run", f"{path}:agent", "copy"]) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if "…" in line]
    assert (lines[0], lines[-1]) == ("  … copy: starting", "  … copy: Copying: 1000/1000")
    assert len(lines) < 20
    assert main(["run", f"{path}:agent", "copy", "--quiet"]) == 0
    assert "…" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ("half way", "half way"),
        ("red\x1b[31m", "red\\u001b[31m"),
        (0.25, "25%"),
        ({"message": "Copying", "progress": 3, "total": 10}, "Copying: 3/10"),
        ({"done": 3}, "3"),
        ({"progress": 3, "rows": 7}, '{"progress": 3, "rows": 7}'),
        ([1, 2], "[1, 2]"),
        (object, "\"<class 'object'>\""),
    ],
)
def test_the_text_of_progress(data: object, text: str) -> None:
    """Known forms are short; anything else is JSON, without control characters."""
    assert progress_text(data) == text


def test_each_call_has_its_own_lines() -> None:
    """At most one line in half a second for each call; the last progress is printed before the result."""
    lines = ProgressLines()

    def step(key: str, at: float, data: int) -> ToolProgress:
        return ToolProgress(call_id=key, key=key, tool=key, data=data, at=at)

    def shown(event: Event) -> list[str | None]:
        return [event_line(one) for one in lines.due(event)]

    assert shown(step("a", 10.0, 1)) == ["  … a: 1"]
    assert shown(step("b", 10.1, 1)) == ["  … b: 1"]
    assert shown(step("a", 10.2, 2)) == []
    assert shown(step("a", 10.6, 3)) == ["  … a: 3"]
    assert shown(step("a", 10.7, 4)) == []
    returned = ToolReturned(result=ToolResult(call_id="a", name="a", text="ok"), tokens=1, key="a")
    assert shown(returned) == ["  … a: 4", "  ✓ a: ok"]
