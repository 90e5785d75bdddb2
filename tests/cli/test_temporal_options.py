"""`--temporal` and its options without a server: wrong usage is one line, and the process ends with its exit code."""

import logging
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from crew.cli import main
from crew.cli.temporal_log import REPEAT_SECONDS, LineHandler
from crew.errors import StoreError

TARGET = "tests/support/temporal_crews.py:refunding"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--task-queue", "other"], "--task-queue: has no effect without --temporal"),
        (["--namespace", "other"], "--namespace: has no effect without --temporal"),
        (["--temporal", "http://127.0.0.1:9"], "must be HOST:PORT, such as 127.0.0.1:7233, not 'http://127.0.0.1:9'"),
        (["--temporal", "temporal.internal"], "must be HOST:PORT"),
        (["--temporal", "127.0.0.1:9"], "can't connect to '127.0.0.1:9': connection refused. Is the server running?"),
    ],
)
def test_wrong_options_are_refused_before_a_run_is_stored(
    options: list[str], expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line, exit code 2, and nothing in the store."""
    pytest.importorskip("temporalio")
    store = str(tmp_path / "runs.db")
    assert main(["run", TARGET, "Go.", "--store", store, *options]) == 2
    assert expected in capsys.readouterr().err
    assert main(["runs", "--store", store]) in (0, 2)
    assert "refunding" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"TEMPORAL_API_KEY": "key"}, "can't connect to '127.0.0.1:9' with TLS"),
        (
            {"TEMPORAL_CONFIG_FILE": "{folder}/temporal.toml"},
            "Temporal's settings in the environment (TEMPORAL_…) or in its file are wrong",
        ),
    ],
)
def test_settings_of_temporal_are_those_of_its_own_tools(
    settings: dict[str, str],
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The environment and the configuration file have the API key and TLS; what is wrong there is named."""
    pytest.importorskip("temporalio")
    (tmp_path / "temporal.toml").write_text("[profile")

    for name, value in settings.items():
        monkeypatch.setenv(name, value.format(folder=tmp_path))

    assert main(["run", TARGET, "Go.", "--store", str(tmp_path / "runs.db"), "--temporal", "127.0.0.1:9"]) == 2
    error = capsys.readouterr().err
    assert expected in error
    assert "Traceback" not in error


ENDING = """
import atexit, sys
from crew.cli import __main__ as process

class Late:
    def __del__(self):
        print("the interpreter was taken down", flush=True)

late = Late()
if {loaded}:
    sys.modules["temporalio.bridge"] = sys

def register():
    atexit.register(print, "exit functions ran")

process.main = lambda: register() or 7
process.run()
"""


@pytest.mark.parametrize("loaded", [True, False])
def test_a_process_with_the_sdk_ends_without_taking_the_interpreter_down(loaded: bool) -> None:
    """Threads of the SDK would hang or abort the process then. Exit functions run, and the exit code stays."""
    done = subprocess.run(
        [sys.executable, "-c", ENDING.format(loaded=loaded)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 7, done.stderr
    assert "exit functions ran" in done.stdout
    assert ("taken down" in done.stdout) is not loaded


def test_the_log_of_the_sdk_is_printed_without_repetitions(capsys: pytest.CaptureFixture[str]) -> None:
    """A server that does not answer is one line, once in a while, whatever the SDK tries. Other errors are one line
    each, with the error and without its stack."""
    now = 0.0
    handler = LineHandler(clock=lambda: now)
    refused = 'Status { code: Unavailable, source: Os { code: 111, kind: ConnectionRefused, message: "…" } }'

    def log(message: str, **fields: str) -> None:
        record = logging.LogRecord("temporalio", logging.WARNING, "", 0, message, (), None)
        record.temporal_log = SimpleNamespace(message=message, fields=fields)
        handler.emit(record)

    for attempt in range(5, 9):
        log(f"gRPC call poll_activity_task_queue retried {attempt} times", error=refused)

    log(f"Error when recording heartbeat: {refused}")
    log("Failing workflow task", failure="the same as in the line before")
    error = StoreError("r", "The store has no record.\nDo all workers use it?")
    failed = logging.LogRecord("temporalio", logging.ERROR, "", 0, "Failed %s", ("task",), (StoreError, error, None))
    handler.emit(failed)
    handler.emit(failed)
    assert capsys.readouterr().err.splitlines() == [
        "! The Temporal server does not answer: connection refused",
        "! Failed task: StoreError: The store has no record. Do all workers use it?",
    ]
    now = REPEAT_SECONDS
    log("gRPC call poll_workflow_task_queue retried 20 times", error=refused)
    assert "does not answer" in capsys.readouterr().err
