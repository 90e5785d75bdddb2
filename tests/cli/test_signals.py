"""A command that receives a signal commits the run and exports its spans: real processes, real signals."""

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

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signals")
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
    """The running command in this folder; killed at the end."""
    (folder / "crews.py").write_text(CREW, encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "PYTHONIOENCODING": "utf-8"}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "encoding": "utf-8"}
    process = subprocess.Popen(
        [sys.executable, "-m", "crew.cli", *arguments], cwd=folder, env=environment, stdin=stdin, **pipes
    )

    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@SIGNALS
def test_a_signal_cancels_the_run_and_prints_the_resume_command(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    """For `run` and `resume`: the run is resumable and the exported trace is complete. Containers send SIGTERM."""
    arguments = ["run", "crews.py:waiter", "Go", "--store", "runs.db", "--quiet"]

    for _ in range(2):
        with command(tmp_path, *arguments) as process:
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
        hint = err.rsplit("crew: resume with: crew ", 1)[1].splitlines()[0]
        arguments = shlex.split(hint)


def wait_until_blocked(pid: int) -> None:
    """Wait until the process sleeps in a read; it prints the prompt a little earlier."""
    state = Path(f"/proc/{pid}/stat")

    while state.read_text().rpartition(")")[2].split()[0] != "S":
        pass


def answer_prompt(folder: Path, typed: bytes, number: signal.Signals | None = None) -> tuple[int, str]:
    """Exit code and stderr of a command that prompts at a terminal, then receives this text or signal."""
    import pty

    controller, terminal = pty.openpty()

    try:
        with command(folder, "run", "crews.py:payer", "Go", stdin=terminal) as process:
            assert process.stdout is not None
            assert process.stdout.read(len("yes, no")) == "yes, no"

            if number is not None:
                wait_until_blocked(process.pid)
                process.send_signal(number)
            else:
                os.write(controller, typed)

            _, err = process.communicate(timeout=30)
            return process.returncode, err
    finally:
        os.close(controller)
        os.close(terminal)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no /proc to see that the process reads")
@SIGNALS
def test_a_signal_interrupts_a_prompt_at_once(tmp_path: Path, number: signal.Signals, code: int) -> None:
    """Without pressing Enter first."""
    returned, err = answer_prompt(tmp_path, b"", number)
    assert returned == code
    assert "Traceback" not in err


def test_ctrl_d_at_a_prompt_leaves_the_run_paused(tmp_path: Path) -> None:
    """End of input is not an answer."""
    code, err = answer_prompt(tmp_path, b"\x04")
    assert code == 3
    assert "crew: waiting for an answer to" in err
    assert "Traceback" not in err
