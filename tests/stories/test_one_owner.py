"""Invariant 11 with real processes on one SQLite file: a run under way has one owner."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from crew import CrewExecutor
from crew.cli import main as crew_command
from crew.errors import RunActive
from tests.support.clocks import wait_until
from tests.support.owner_process import LEASE_SECONDS, Ledger, executor, start, write_tool

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

Start = Callable[[str], "subprocess.Popen[str]"]

CREW = """
from pathlib import Path
from tests.support.owner_process import CountedModel, Ledger, write_tool
from crew import Agent, call

ledger = Ledger(Path(__file__).parent)
crew = Agent("writer", model=CountedModel(ledger, call("write"), "done"), tools=[write_tool(ledger)])
"""


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Start]:
    """Starts processes on the file of this test, and ends them."""
    processes: list[subprocess.Popen[str]] = []

    def begin_process(mode: str) -> subprocess.Popen[str]:
        processes.append(start(tmp_path, mode))
        return processes[-1]

    yield begin_process

    for process in processes:
        process.kill()
        process.communicate()


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def own_executor(folder: Path) -> CrewExecutor:
    return executor(folder, write_tool(Ledger(folder)))


async def resume_at_once(folder: Path, begin: Start, rounds: int) -> None:
    """Two processes, then eight, resume one paused run at the same time, for several runs."""
    ledger, outcomes = Ledger(folder), list[str]()
    first = executor(folder, write_tool(ledger, approval=True))
    workers = [begin("resume") for _ in range(8)]
    assert [worker.stdout.readline() for worker in workers] == ["ready\n"] * 8

    for number in range(2 * rounds):
        chosen = workers[:2] if number < rounds else workers
        paused = await first.execute("go", run_id=f"r{number}")
        line = json.dumps([paused.run_id, {paused.pauses[0].id: True}]) + "\n"

        for worker in chosen:
            worker.stdin.write(line)
            worker.stdin.flush()

        ended = [worker.stdout.readline().strip() for worker in chosen]
        assert ended.count("completed") == 1, ended
        outcomes += ended
        assert len(ledger.lines("write", f"r{number}")) == 1
        assert len(ledger.lines("model", f"r{number}")) == 2  # one of them before the pause

    # All but `RunActive`: they came when the first one had already answered or finished it.
    assert set(outcomes) <= {"completed", "RunActive", "RunConflict", "UnknownPause", "UnknownRun"}
    assert outcomes.count("RunActive") > 0


async def test_one_of_many_processes_resumes_a_run(tmp_path: Path, begin: Start) -> None:
    """The others get an error; model calls and effects happen once."""
    await resume_at_once(tmp_path, begin, rounds=5)


@pytest.mark.soak
async def test_one_of_many_processes_resumes_each_of_100_runs(tmp_path: Path, begin: Start) -> None:
    """The same, a hundred times with two and a hundred times with eight processes."""
    await resume_at_once(tmp_path, begin, rounds=100)


async def test_run_of_a_killed_process_can_be_resumed_at_once(tmp_path: Path, begin: Start) -> None:
    """While its owner lives, a resume is refused; after kill -9 it need not wait until the lease lapses."""
    ledger = Ledger(tmp_path)
    owner = begin("wait")
    wait_until(lambda: bool(ledger.lines("write", "r")))

    with pytest.raises(RunActive, match=f"process {owner.pid}"):
        await own_executor(tmp_path).resume("r")

    assert await own_executor(tmp_path).recover() == {}
    owner.kill()  # not waited for: a zombie counts as gone
    killed = time.monotonic()
    wait_until(lambda: Path(f"/proc/{owner.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z")
    recovered = await own_executor(tmp_path).recover()
    assert time.monotonic() - killed < 10
    [pause] = recovered["r"].pauses
    assert pause.reason == "in_doubt"
    done = await own_executor(tmp_path).resume("r", {pause.id: {"done": "written"}})
    assert done.output == "done"
    assert len(ledger.lines("write", "r")) == 1
    assert await own_executor(tmp_path).recover() == {}


async def test_stopped_owner_whose_lease_lapsed_starts_no_write(tmp_path: Path, begin: Start) -> None:
    """It was stopped after the record of the call; another process repeated the call; it gets `RunActive`."""
    owner = begin("stop")
    wait_until(lambda: is_stopped(owner.pid))
    other = own_executor(tmp_path)

    with pytest.raises(RunActive):
        await other.resume("r")

    time.sleep(LEASE_SECONDS + 0.5)  # its process is stopped, and does not renew it
    paused = await other.resume("r")
    assert [pause.reason for pause in paused.pauses] == ["in_doubt"]
    done = await other.resume("r", {paused.pauses[0].id: "run again"})
    assert done.output == "done"
    owner.send_signal(signal.SIGCONT)
    assert owner.communicate(timeout=30)[0] == "RunActive\n"
    assert len(Ledger(tmp_path).lines("write", "r")) == 1


async def test_stopped_owner_goes_on_if_its_run_was_not_taken(tmp_path: Path, begin: Start) -> None:
    """It renews its lapsed lease before the write: a laptop may sleep."""
    owner = begin("stop")
    wait_until(lambda: is_stopped(owner.pid))
    time.sleep(LEASE_SECONDS + 0.5)  # its process is stopped, and does not renew it
    owner.send_signal(signal.SIGCONT)
    assert owner.communicate(timeout=30)[0] == "completed\n"
    assert len(Ledger(tmp_path).lines("write", "r")) == 1


async def test_process_that_took_a_run_over_is_its_only_owner(tmp_path: Path, begin: Start) -> None:
    """With `take_over=True` the owner need not be gone; its next step is refused."""
    owner = begin("stop")
    wait_until(lambda: is_stopped(owner.pid))
    taken = await own_executor(tmp_path).resume("r", take_over=True)
    assert [pause.reason for pause in taken.pauses] == ["in_doubt"]
    time.sleep(LEASE_SECONDS)
    owner.send_signal(signal.SIGCONT)
    assert owner.communicate(timeout=30)[0] == "RunActive\n"
    assert Ledger(tmp_path).lines("write", "r") == []


async def test_cancel_from_another_process_reaches_the_owner(tmp_path: Path, begin: Start) -> None:
    """Within a second; `cancel` returns when the owner has recorded it."""
    owner = begin("wait")
    wait_until(lambda: bool(Ledger(tmp_path).lines("write", "r")))
    started = time.monotonic()
    await own_executor(tmp_path).cancel("r")
    assert time.monotonic() - started < 3  # 0.5 s and a commit, on an idle machine
    assert owner.communicate(timeout=30)[0] == "cancelled\n"


def test_commands_respect_and_override_the_owner(
    tmp_path: Path, begin: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    """`crew resume` is refused, `--take-over` is not, and `crew cancel` reaches the owner."""
    target = tmp_path / "writer.py"
    target.write_text(CREW, encoding="utf-8")
    options = [str(target), "r", "--store", str(tmp_path / "runs.db")]
    owner = begin("wait")
    wait_until(lambda: bool(Ledger(tmp_path).lines("write", "r")))
    assert crew_command(["resume", *options]) == 1
    assert f"running in process {owner.pid}" in capsys.readouterr().err
    assert crew_command(["resume", *options, "--take-over", "--quiet"]) == 3
    assert "in_doubt" in capsys.readouterr().err
    assert crew_command(["cancel", *options]) == 0
    owner.kill()

    (tmp_path / "ledger").unlink()
    (tmp_path / "runs.db").unlink()
    owner = begin("wait")
    wait_until(lambda: bool(Ledger(tmp_path).lines("write", "r")))
    assert crew_command(["cancel", *options]) == 0
    assert owner.communicate(timeout=30)[0] == "cancelled\n"
