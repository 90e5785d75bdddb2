"""Runs the command `crew` as a process, also as `python -m crew.cli`."""

from __future__ import annotations

import atexit
import os
import sys
from typing import NoReturn

from crew.cli import main

_UNSAFE_AT_EXIT = "temporalio.bridge"
"""Its threads may call Python while the interpreter ends; the process then hangs or aborts."""


def run() -> NoReturn:
    """Run the command, and end the process with its exit code."""
    code: int | str | None = 1

    def leave() -> None:
        if _UNSAFE_AT_EXIT in sys.modules:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code if isinstance(code, int) else 0 if code is None else 1)

    atexit.register(leave)  # the first one that is registered is called last

    try:
        code = main()
    except SystemExit as stop:
        code = stop.code
        raise

    sys.exit(code)


if __name__ == "__main__":
    run()
