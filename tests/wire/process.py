"""Starts and stops the server in a separate process, for tests and benchmarks."""

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class WireProcess:
    """The URLs of a server process."""

    port: int

    @property
    def url(self) -> str:
        """The base URL of Anthropic clients."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def openai_url(self) -> str:
        """The base URL of OpenAI clients."""
        return f"{self.url}/v1"

    def stats(self) -> dict[str, Any]:
        """Return the counters of the process."""
        with urllib.request.urlopen(f"{self.url}/_wire/stats") as answer:
            figures: dict[str, Any] = json.load(answer)
        return figures


@contextmanager
def wire_process(*arguments: str) -> Iterator[WireProcess]:
    """Run `python -m tests.wire` with these arguments for as long as the block lasts."""
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-m", "tests.wire", "--port", "0", *arguments]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield WireProcess(int(process.stdout.readline()))
        finally:
            process.terminate()
