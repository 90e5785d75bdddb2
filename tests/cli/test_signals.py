"""A command that is stopped tidies up: real processes, real signals."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there a process can't be sent these signals")
SIGNALS = pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])

CREW = """
import asyncio
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from crew import Agent, ScriptedProvider, call, tool
from crew.telemetry import configure

class File(SpanExporter):
    def export(self, spans):
        with open("spans", "a") as file:
            file.writelines(f"{span.name} {span.attributes.get('crew.stop_reason', '')}\\n" for span in spans)
        return SpanExportResult.SUCCESS

provider = TracerProvider(shutdown_on_exit=False)
provider.add_span_processor(BatchSpanProcessor(File()))
configure(tracer_provider=provider)

@tool(effect="read")
async def wait() -> str:
    "Wait for ever."
    print("waiting", flush=True)
    await asyncio.Event().wait()

@tool(approval="always")
async def pay() -> str:
    "Pay."
    return "paid"

waiter = Agent("waiter", model=ScriptedProvider(call("wait"), "Done."), tools=[wait])
payer = Agent("payer", model=ScriptedProvider(call("pay"), "Done."), tools=[pay])
"""


@contextmanager
def command(folder: Path, *arguments: str, stdin: int = subprocess.DEVNULL) -> Iterator[subprocess.Popen[str]]:
    """The command under way in this folder; ended whatever happens."""
    (folder / "crews.py").write_text(CREW, encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "PYTHONIOENCODING": "utf-8"}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "encoding": "utf-8"}
    begun = [sys.executable, "-m", "crew.cli", *arguments]
    process = subprocess.Popen(begun, cwd=folder, env=environment, stdin=stdin, **pipes)

    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@SIGNALS
def test_a_signal_cancels_the_run_ends_its_spans_and_tells_how_to_go_on(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    """SIGTERM is how a container ends; what was exported until then is a whole trace, for `resume` as for `run`."""
    begin = ["run", "crews.py:waiter", "Go", "--store", "runs.db", "--quiet"]

    for _ in range(2):
        with command(tmp_path, *begin) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "waiting\n"
            process.send_signal(number)
            _, err = process.communicate(timeout=30)

        assert process.returncode == code
        assert "Traceback" not in err
        assert "crew: stopped" in err
        *_, root = (tmp_path / "spans").read_text().splitlines()
        assert root == "invoke_workflow waiter interrupted"
        (tmp_path / "spans").unlink()
        hint = err.rsplit("crew: go on with: crew ", 1)[1].splitlines()[0]
        begin = shlex.split(hint)


def wait_until_it_reads(pid: int) -> None:
    """A question that stands on the screen is not yet one that listens."""
    state = Path(f"/proc/{pid}/stat")

    while state.read_text().rpartition(")")[2].split()[0] != "S":
        pass


def typing(folder: Path, typed: bytes, number: signal.Signals | None = None) -> tuple[int, str]:
    """What becomes of a command that asks at a terminal where this is typed, or that gets this signal."""
    import pty

    ours, theirs = pty.openpty()

    try:
        with command(folder, "run", "crews.py:payer", "Go", stdin=theirs) as process:
            assert process.stdout is not None
            assert process.stdout.read(len("[y]es")) == "[y]es"

            if number is not None:
                wait_until_it_reads(process.pid)
                process.send_signal(number)
            else:
                os.write(ours, typed)

            _, err = process.communicate(timeout=30)
            return process.returncode, err
    finally:
        os.close(ours)
        os.close(theirs)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="it can't be seen when the process reads")
@SIGNALS
def test_a_signal_ends_a_question_at_once(tmp_path: Path, number: signal.Signals, code: int) -> None:
    """Nobody has to press Enter first."""
    ended, err = typing(tmp_path, b"", number)
    assert ended == code
    assert "Traceback" not in err


def test_a_person_who_leaves_leaves_the_run_paused(tmp_path: Path) -> None:
    """Ctrl-D at a question is no answer."""
    code, err = typing(tmp_path, b"\x04")
    assert code == 3
    assert "crew: waits for" in err
    assert "Traceback" not in err
