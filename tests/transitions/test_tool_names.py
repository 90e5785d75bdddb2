"""A call runs a tool only if its name is exactly the tool's name."""

from __future__ import annotations

import pytest

from crew import Agent, CrewExecutor, ScriptedProvider, tool
from crew.messages import ToolCall


@pytest.mark.parametrize(
    "name", ["look up", "look.up", "Look_up", "look_up ", " look_up", "lооk_up", "look/up", "look_up\n"]
)
async def test_similar_tool_name_runs_nothing(name: str) -> None:
    """Case, spaces, punctuation, other scripts: the error names the right tool, and nothing runs."""
    ran: list[int] = []

    @tool
    def look_up() -> str:
        """Look."""
        ran.append(1)
        return "found"

    agent = Agent("a", model=ScriptedProvider(ToolCall(id="c1", name=name), "done"), tools=[look_up])
    result = await CrewExecutor(agent).execute("go")
    assert ran == []
    assert result.output == "done"
    (answer,) = result.history[2].results  # type: ignore[union-attr]
    assert "Unknown tool" in answer.text
    assert "look_up" in answer.text
