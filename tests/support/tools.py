"""Tools that tests of several packages call."""

from __future__ import annotations

from collections import Counter
from typing import Any

from crew import tool


@tool(effect="read")
async def look(n: int = 0) -> str:
    """Look something up."""
    return f"found {n}"


class CountedTools:
    """Makes tools and counts how often each one ran."""

    def __init__(self) -> None:
        self.times: Counter[str] = Counter()

    def tool(self, name: str, **options: Any) -> Any:
        """A tool that returns its name."""

        async def work() -> str:
            """Work."""
            self.times[name] += 1
            return f"{name} done"

        return tool(name=name, **options)(work)
