"""Sync tools run on daemon threads that are reused, end when they are idle, and never block the exit."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import pytest

from crew import call, tool
from crew.engine.concurrency import DaemonThreads
from tests.support.providers import RecordingProvider
from tests.support.runs import executor_for


async def test_sequential_calls_reuse_threads() -> None:
    """Forty calls, one after the other, use a few threads: one may not be idle yet when the next call comes."""
    used: list[threading.Thread] = []

    @tool(effect="read")
    def where() -> str:
        """Record the thread."""
        used.append(threading.current_thread())
        return threading.current_thread().name

    provider = RecordingProvider(*[call("where")] * 40, "done")
    result = await executor_for(provider, where).execute("go")
    assert result.output == "done"
    assert len(used) == 40
    assert len(set(used)) <= 5
    assert result.transcript[2].results[0].text == "crew-where"  # type: ignore[union-attr]


def test_busy_threads_are_not_shared() -> None:
    """Each of several jobs that run at the same time has a thread."""
    pool, barrier, names = DaemonThreads(idle_seconds=5), threading.Barrier(9), set()

    def job() -> None:
        names.add(threading.get_ident())
        barrier.wait(5)

    for _ in range(8):
        pool.run(job)

    barrier.wait(5)
    assert len(names) == 8


def test_idle_thread_ends() -> None:
    """A thread that gets no job for `idle_seconds` ends; the next job starts another one."""
    pool, threads = DaemonThreads(idle_seconds=0.01), []
    done = threading.Event()

    def job() -> None:
        threads.append(threading.current_thread())
        done.set()

    for _ in range(2):
        done.clear()
        pool.run(job)
        assert done.wait(5)
        threads[-1].join(5)
        assert not threads[-1].is_alive()

    assert threads[0] is not threads[1]


def test_jobs_submitted_while_threads_expire_all_run() -> None:
    """A job that is assigned to a thread at the moment when it would end is not lost."""
    pool, ran = DaemonThreads(idle_seconds=0.0005), threading.Semaphore(0)

    for number in range(500):
        pool.run(ran.release)
        time.sleep(0.0005 if number % 2 else 0)

    for _ in range(500):
        assert ran.acquire(timeout=5)


HANGING = """
import threading, time
from crew import Agent, CrewExecutor, ScriptedProvider, call, tool

@tool(timeout=0.1)
def hang() -> str:
    "Never return."
    time.sleep(3600)

print(CrewExecutor(Agent("a", model=ScriptedProvider(call("hang"), "done"), tools=[hang])).execute_sync("go").output)
"""


def test_hanging_tool_does_not_block_the_exit() -> None:
    """The process ends although a thread of a tool still runs."""
    found = subprocess.run([sys.executable, "-c", HANGING], capture_output=True, text=True, timeout=30, check=False)
    assert (found.stdout.strip(), found.returncode) == ("done", 0), found.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_threads_are_started_anew_after_a_fork() -> None:
    """A child process has none of its parent's threads."""
    pool, done = DaemonThreads(idle_seconds=30), threading.Event()
    pool.run(done.set)
    assert done.wait(5)
    time.sleep(0.01)
    child = os.fork()

    if child == 0:
        ran = threading.Event()
        pool.run(ran.set)
        os._exit(0 if ran.wait(5) else 1)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
