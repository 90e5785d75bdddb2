"""Counts the files and functions of crew/ that one plain turn crosses: `python scripts/walk.py [--list]`.

A plain turn is one question and one text reply, without tools and without telemetry settings. A first, uncounted turn
fills the caches, so that only what every turn crosses is counted.
"""

import argparse
import asyncio
import sys
from collections.abc import Iterable
from pathlib import Path
from types import FrameType

from crew import Agent, CrewExecutor, ScriptedProvider

ROOT = Path(__file__).resolve().parent.parent
TELEMETRY = "crew/telemetry/"


def crossed_functions() -> set[tuple[str, str]]:
    """The (file, qualified name) pairs of the functions called in one plain turn; comprehensions are not functions."""
    executor = CrewExecutor(Agent("solo", instructions="Answer briefly.", model=ScriptedProvider("Done.")))
    asyncio.run(executor.execute("Hello"))
    package = str(ROOT / "crew")
    found: set[tuple[str, str]] = set()

    def profile(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code

        if event == "call" and code.co_filename.startswith(package) and not code.co_name.startswith("<"):
            found.add((Path(code.co_filename).relative_to(ROOT).as_posix(), code.co_qualname))

    sys.setprofile(profile)
    try:
        asyncio.run(executor.execute("Hello again"))
    finally:
        sys.setprofile(None)

    return found


def count(functions: Iterable[tuple[str, str]]) -> str:
    listed = list(functions)
    return f"{len({file for file, _ in listed})} files, {len(listed)} functions"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list", action="store_true", help="also list every function")
    options = parser.parse_args()
    functions = sorted(crossed_functions())

    if options.list:
        print("\n".join(f"{file} {name}" for file, name in functions))

    print(f"a plain turn: {count(functions)}")
    print(f"  without telemetry: {count(pair for pair in functions if not pair[0].startswith(TELEMETRY))}")


if __name__ == "__main__":
    main()
