"""Every test of crews watches every request and every committed state; a broken law fails it at its end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.crews.recording import JsonStore, Watch


@pytest.fixture
def watch() -> Iterator[Watch]:
    """Models whose requests must be valid everywhere and within the bound."""
    watching = Watch()
    yield watching
    assert not watching.complaints, "\n".join(watching.complaints)


@pytest.fixture
def store() -> Iterator[JsonStore]:
    """A store of JSON alone, whose states must keep the laws in parent and branches."""
    keeping = JsonStore()
    yield keeping
    assert not keeping.complaints, "\n".join(keeping.complaints)
