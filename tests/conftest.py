"""How much the tests do: a quick, repeatable sample by default, the long versions under CREW_SOAK=1."""

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.support.checked_runs import JsonStore, Watch

SOAK = os.environ.get("CREW_SOAK") == "1"
SOAK_EXAMPLES = int(os.environ.get("CREW_SOAK_EXAMPLES", "100000"))

# Deadlines and the too_slow check would fail on a busy machine for what is not the code's fault.
# The suites in contracts/ are inherited on purpose, and each class that inherits one runs it for itself.
settings.register_profile(
    "base", deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.differing_executors]
)
# Derandomized: the same examples on every run, so that a red test is about the change and nothing else.
settings.register_profile("fast", settings.get_profile("base"), derandomize=True, max_examples=100)
# Random on purpose: each soak looks somewhere else, and prints what repeats a failure.
settings.register_profile("soak", settings.get_profile("base"), max_examples=SOAK_EXAMPLES, print_blob=True)
settings.load_profile("soak" if SOAK else "fast")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the tests marked `soak` out unless CREW_SOAK=1."""
    if SOAK:
        return

    soaking = [item for item in items if item.get_closest_marker("soak")]
    if soaking:
        config.hook.pytest_deselected(items=soaking)
        items[:] = [item for item in items if not item.get_closest_marker("soak")]


@pytest.fixture
def watch() -> Iterator[Watch]:
    """Models that check every request they receive; the test fails at its end if a request broke an invariant."""
    watching = Watch()
    yield watching
    assert not watching.complaints, "\n".join(watching.complaints)


@pytest.fixture
def store() -> Iterator[JsonStore]:
    """A store that checks every committed state; the test fails at its end if a state broke an invariant."""
    keeping = JsonStore()
    yield keeping
    assert not keeping.complaints, "\n".join(keeping.complaints)
