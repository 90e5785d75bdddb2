"""The crews of the example files."""

from __future__ import annotations

import asyncio
import re
import runpy
from collections.abc import Callable
from functools import partial
from pathlib import Path

from crew import Crew
from crew.cli.target import load_crew

EXAMPLES = Path(__file__).parent.parent.parent / "examples"

_NAMES = {"agents_as_tools": ":planner"}
"""Which agent of a file is meant, where it has several and no crew."""


def _load(path: Path) -> Crew:
    if path.stem != "incident":
        return load_crew(f"{path}{_NAMES.get(path.stem, '')}")

    names = runpy.run_path(str(path))
    names["pace"]["sleep"] = lambda seconds: asyncio.sleep(0)  # its model and tools take their time
    found = names["crew"]
    assert isinstance(found, Crew)
    return found


EXAMPLE_CREWS: dict[str, Callable[[], Crew]] = {
    path.stem: partial(_load, path)
    for path in sorted(EXAMPLES.glob("*.py"))
    if re.search(r"^\w+ = (Agent|Crew)\(", path.read_text(encoding="utf-8"), re.MULTILINE)
}
"""Functions that load the crew of an example anew, by the name of its file; some files build it in a function."""
