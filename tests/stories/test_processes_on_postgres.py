"""Processes that share runs in PostgreSQL: each run has one owner, and a run survives the death of its owner."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

# These tests run here again, on PostgreSQL.
from tests.stories.test_one_owner import (  # noqa: F401
    begin,
    test_cancel_from_another_process_reaches_the_owner,
    test_one_of_many_processes_resumes_a_run,
    test_run_of_a_killed_process_can_be_resumed_at_once,
    test_stopped_owner_goes_on_if_its_run_was_not_taken,
    test_stopped_owner_whose_lease_lapsed_starts_no_write,
)
from tests.support.postgres import Postgres, PostgresUnavailable, running_postgres
from tests.support.servers import server_missing

pytestmark = pytest.mark.servers


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    """A running server on a free port."""
    try:
        with running_postgres() as running:
            yield running
    except PostgresUnavailable as reason:
        server_missing("postgres", str(reason))


@pytest.fixture(autouse=True)
def store_url(server: Postgres, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An empty database for each test."""
    monkeypatch.setenv("CREW_TEST_STORE", server.url())
    yield server.url()
    server.execute("DROP SCHEMA IF EXISTS crew CASCADE")
