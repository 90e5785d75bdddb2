"""Fixtures of the Temporal tests: one server for all tests, a store and a client for each."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from temporalio.client import Client

from crew.temporal import runs, waiting
from scripts.temporal_server import TemporalUnavailable, running_temporal
from tests.support.servers import server_missing
from tests.support.temporal import WorkerProcesses


@pytest.fixture(scope="session")
def temporal_address() -> Iterator[str]:
    """The address of a real server."""
    with contextlib.ExitStack() as stack:
        try:
            address = stack.enter_context(running_temporal())
        except TemporalUnavailable as error:
            server_missing("temporal", str(error))

        yield address


@pytest.fixture
async def client(temporal_address: str) -> Client:
    """A client of the server."""
    return await Client.connect(temporal_address)


@pytest.fixture
def store_file(tmp_path: Path) -> str:
    """The store that client and workers share."""
    return str(tmp_path / "runs.db")


@pytest.fixture
def workers(
    temporal_address: str, store_file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[WorkerProcesses]:
    """Starts `crew worker` processes; sets the folder of their ledger here too."""
    monkeypatch.setattr("tests.support.temporal_crews.FOLDER", tmp_path)
    processes = WorkerProcesses(temporal_address, store_file, "tests/support/temporal_crews.py:counting", tmp_path)
    yield processes
    processes.kill_all()


@pytest.fixture
def early_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that makes no progress says so within a second."""
    monkeypatch.setattr(runs, "QUIET_SECONDS", 0.3)
    monkeypatch.setattr(runs, "FOLLOW_SECONDS", 0.3)
    monkeypatch.setattr(waiting, "UNTAKEN_SECONDS", 0.2)
