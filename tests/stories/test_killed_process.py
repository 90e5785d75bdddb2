"""Processes that are killed at random moments, on SQLite and on PostgreSQL: every write happens once, none is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.postgres import PostgresUnavailable, running_postgres
from tests.support.servers import server_missing

ROOT = Path(__file__).parents[2]
KILLS = int(os.environ.get("CREW_KILLS", "500"))


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a PostgreSQL server; empty for a file."""
    if request.param == "sqlite":
        yield ""
        return

    try:
        with running_postgres() as server:
            yield server.url()
    except PostgresUnavailable as reason:
        server_missing("postgres", str(reason))


@pytest.mark.parametrize(
    "kills", [pytest.param(20, marks=pytest.mark.servers), pytest.param(KILLS, marks=pytest.mark.soak)]
)
def test_every_write_happens_once_despite_kills(tmp_path: Path, url: str, kills: int) -> None:
    """Invariant 10: no run is lost, no state is damaged, committed work is not repeated, calls in doubt pause the run.

    The runs have tools, an approval, a handoff, branches and summaries; see tests/support/killed_processes.py.
    """
    command = [sys.executable, "-m", "tests.support.killed_processes", str(tmp_path), str(kills), url]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1_800, check=False)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    sys.stdout.write(done.stdout)  # shown by -rP
    assert figures["kills"] >= kills
