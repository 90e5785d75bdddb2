"""How much the tests do: a quick, repeatable sample by default, the long versions under CREW_SOAK=1."""

import gc
import os
import signal
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from crew.secrets.registry import PROCESS_SECRETS, SecretRegistry
from tests.support.providers import CheckedModels
from tests.support.stores import CheckedStore

# A shell starts jobs in the background with SIGINT ignored, and the processes of the tests would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

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


def pytest_collection_finish() -> None:
    """Leave the modules and tests out of garbage collections: each would visit half a million objects."""
    gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the tests marked `soak` out unless CREW_SOAK=1."""
    if SOAK:
        return

    soaking = [item for item in items if item.get_closest_marker("soak")]
    if soaking:
        config.hook.pytest_deselected(items=soaking)
        items[:] = [item for item in items if not item.get_closest_marker("soak")]


ROOT = Path(__file__).parent.parent
_FOLDERS = (Path(tempfile.gettempdir()), ROOT / "examples", ROOT / "tests" / "support")
USER_FOLDERS = tuple(f"{folder.resolve()}{os.sep}" for folder in _FOLDERS)
OUR_FOLDERS = tuple(f"{(ROOT / name).resolve()}{os.sep}" for name in ("crew", ".venv"))
"""Modules that stay, also if the checkout is in the folder for temporary files."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """Forget the files of users that a command of this test loaded, their folders on `sys.path`, and secrets.

    Otherwise the next file with the same name would import this one's neighbours, and the end of a streamed text that
    could begin a secret of another test would be held back.
    """
    path, names, secrets = [*sys.path], {*sys.modules}, {*PROCESS_SECRETS._values}

    try:
        return (yield)
    finally:
        if PROCESS_SECRETS._values != secrets:
            PROCESS_SECRETS._values = secrets
            SecretRegistry._revision += 1

        if sys.path != path:
            sys.path[:] = path

            for name in {*sys.modules} - names:
                file = getattr(sys.modules[name], "__file__", None) or ""

                is_ours = name.startswith("tests.") or file.startswith(OUR_FOLDERS)

                if file.startswith(USER_FOLDERS) and not is_ours:
                    del sys.modules[name]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the statistics of tests that record some."""
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            if name == "statistics" and report.when == "call":
                terminalreporter.write_line(f"{report.nodeid.rpartition('::')[2]}: {value}")


@pytest.fixture
def models() -> Iterator[CheckedModels]:
    """Models that check every request; the test fails at its end if a request broke an invariant."""
    made = CheckedModels()
    yield made
    assert not made.violations, "\n".join(made.violations)


@pytest.fixture
def store() -> Iterator[CheckedStore]:
    """A store that checks every commit; the test fails at its end if a state broke an invariant."""
    made = CheckedStore()
    yield made
    assert not made.violations, "\n".join(made.violations)
