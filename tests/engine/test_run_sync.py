"""`execute_sync`: the same run without `await`, on an event loop that each thread keeps."""

from __future__ import annotations

import asyncio
import contextvars
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from crew import Agent, Context, CrewExecutor, RunError, ScriptedProvider, call, tool
from crew.errors import Unavailable
from crew.messages import ToolMessage
from tests.support.runs import executor_for

NUMBER: contextvars.ContextVar[int] = contextvars.ContextVar("NUMBER", default=0)


def test_error_has_no_unrelated_context() -> None:
    """The traceback starts with the error of the run, not with the check for a running event loop."""
    with pytest.raises(RunError) as caught:
        CrewExecutor(Agent("a", model=ScriptedProvider(Unavailable("down")))).execute_sync("go")

    chain: list[BaseException] = [caught.value]

    while (following := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(following)

    assert [type(error) for error in chain] == [RunError, Unavailable]


async def test_inside_a_running_loop_it_uses_a_thread() -> None:
    """In a notebook, for example."""
    assert CrewExecutor(Agent("a", model=ScriptedProvider("done"))).execute_sync("go").output == "done"


async def record(context: Context[list[Any]]) -> str:
    """Record the event loop and the value of the context variable, and change it."""
    context.deps.append((asyncio.get_running_loop(), NUMBER.get()))
    NUMBER.set(99)
    return "fine"


def execute_twice() -> list[tuple[asyncio.AbstractEventLoop, int]]:
    """The loops of two calls, and the values of the context variable in them, which the caller set to 1 and 2."""
    seen: list[Any] = []

    for number in (1, 2):
        NUMBER.set(number)
        executor_for(ScriptedProvider(call("record"), "done"), record).execute_sync("go", deps=seen)
        assert NUMBER.get() == number

    return seen


def test_calls_of_a_thread_share_a_loop_and_have_the_context_of_the_caller() -> None:
    """What a tool does to a context variable stays in its run."""
    (first, one), (second, two) = execute_twice()
    assert first is second
    assert (one, two) == (1, 2)


async def test_calls_inside_a_loop_share_another_one_and_have_the_context() -> None:
    """The loop of the background thread is kept too."""
    (first, one), (second, two) = execute_twice()
    assert first is second is not asyncio.get_running_loop()
    assert (one, two) == (1, 2)


def test_loop_is_closed_when_its_thread_ends() -> None:
    """Before `join` returns. The loop of another thread stays open."""
    mine = execute_twice()[0][0]
    found: list[asyncio.AbstractEventLoop] = []
    thread = threading.Thread(target=lambda: found.append(execute_twice()[0][0]))
    thread.start()
    thread.join()
    assert found[0] is not mine
    assert found[0].is_closed()
    assert not mine.is_closed()


def test_loop_is_closed_with_its_thread_although_an_error_refers_to_it() -> None:
    """A traceback keeps the frames of the call, and with them the loop, beyond the end of the thread."""
    errors: list[BaseException] = []
    loops: list[asyncio.AbstractEventLoop] = []

    async def fail() -> str:
        """Stop the run."""
        loops.append(asyncio.get_running_loop())
        raise SystemExit

    def work() -> None:
        try:
            executor_for(ScriptedProvider(call("fail")), fail).execute_sync("go")
        except RunError as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert errors[0].__traceback__ is not None
    assert loops[0].is_closed()


def test_loop_that_was_closed_is_replaced() -> None:
    """A tool, or other code of the thread, may close it."""
    first = execute_twice()[0][0]
    first.close()
    assert execute_twice()[0][0] is not first


def test_tasks_that_a_tool_leaves_behind_are_cancelled() -> None:
    """Between two calls the loop does not run, so that they would wait for the next call."""
    left: list[asyncio.Task[bool]] = []

    async def leave() -> str:
        """Start a task and return."""
        left.append(asyncio.get_running_loop().create_task(asyncio.Event().wait()))
        return "fine"

    executor_for(ScriptedProvider(call("leave"), "done"), leave).execute_sync("go")
    assert left[0].cancelled()


@pytest.mark.parametrize("outside", ["sync", "loop"])
def test_nested_calls_never_wait_for_the_loop_that_they_come_from(outside: str) -> None:
    """A tool of a run calls `execute_sync`, whose tool calls it again: on threads, and inside running loops."""
    calls: list[str] = []

    def in_thread(depth: int, context: Context[None]) -> str:
        """Run a crew on a tool's thread."""
        calls.append("in_thread")
        return nested("in_loop", depth - 1) if depth else "bottom"

    async def in_loop(depth: int, context: Context[None]) -> str:
        """Run a crew inside the loop of the run, which is blocked meanwhile."""
        calls.append("in_loop")
        return nested("in_thread", depth - 1) if depth else "bottom"

    def nested(name: str, depth: int) -> str:
        script = ScriptedProvider(call(name, depth=depth), lambda request: request.messages[-1].results[0].text)
        return str(executor_for(script, in_thread, in_loop).execute_sync("go").output)

    async def inside() -> str:
        return nested("in_loop", 5)

    assert (nested("in_loop", 5) if outside == "sync" else asyncio.run(inside())) == "bottom"
    assert calls == ["in_loop", "in_thread"] * 3


@pytest.mark.parametrize("way", ["cancel", "aclose"])
def test_run_of_another_thread_is_cancelled_from_any_loop(way: str) -> None:
    """`cancel` ends the run with its result; `aclose` stops it, and it stays resumable."""
    started, outcomes = threading.Event(), []

    async def slow() -> str:
        """Wait until it is cancelled."""
        started.set()
        await asyncio.Event().wait()
        return ""

    executor = executor_for(ScriptedProvider(call("slow"), "done"), slow)

    def work() -> None:
        try:
            outcomes.append(executor.execute_sync("go", run_id="r").stop_reason)
        except asyncio.CancelledError:
            outcomes.append("stopped")

    thread = threading.Thread(target=work)
    thread.start()
    assert started.wait(10)
    asyncio.run(executor.cancel("r") if way == "cancel" else executor.aclose())
    thread.join()
    assert outcomes == ["cancelled" if way == "cancel" else "stopped"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_child_process_makes_its_own_loops() -> None:
    """After a fork: the child uses loops of its own, ends silently, and the loops of the parent still work."""
    found = run_script(FORK)
    assert (found.stdout.split("\n"), found.stderr) == (["child True True done", "parent True done", ""], "")


FORK = """
import asyncio, os, sys, warnings
warnings.simplefilter("error")
warnings.filterwarnings("ignore", "This process", DeprecationWarning)
from crew import Agent, Context, CrewExecutor, ScriptedProvider, call, tool

@tool
async def where(context: Context[list]) -> str:
    "Record the loop."
    context.deps.append(asyncio.get_running_loop())
    return "fine"

def loop_of_call():
    seen = []
    executor = CrewExecutor(Agent("a", model=ScriptedProvider(call("where"), "done"), tools=[where]))
    executor.execute_sync("go", deps=seen)
    return seen[0]

async def inside():
    return loop_of_call()

mine, background = loop_of_call(), asyncio.run(inside())
child = os.fork()

if child == 0:
    print("child", loop_of_call() is not mine, asyncio.run(inside()) is not background, "done", flush=True)
    sys.exit(0)

assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
mine.call_soon_threadsafe(lambda: None)
print("parent", loop_of_call() is mine and asyncio.run(inside()) is background, "done")
"""


def run_script(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a process of its own."""
    command = [sys.executable, "-W", "error", "-c", script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


INTERRUPTED = """
import asyncio, signal, sys, threading, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts background processes without it
from crew import Agent, CrewExecutor, ScriptedProvider, call, tool
from crew.store import SQLiteStore

@tool(effect="read")
def first() -> str:
    "Return."
    return "fine"

@tool(effect="read")
SLOW
    "Wait for Ctrl-C."
    threading.Timer(0.2, lambda: print("started", flush=True)).start()  # the loop has begun to wait
    WAIT

script = ScriptedProvider(call("first"), call("slow"), "done")
executor = CrewExecutor(Agent("a", model=script, tools=[first, slow]), store=SQLiteStore(sys.argv[1]))

def run():
    try:
        executor.execute_sync("go", run_id="r")
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        raise

async def inside():
    run()

START
"""
TOOLS = {
    "async": ("async def slow() -> str:", "await asyncio.sleep(3600)"),
    "sync": ("def slow() -> str:", "time.sleep(3600)"),
}


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGINT")
@pytest.mark.parametrize("kind", TOOLS)
@pytest.mark.parametrize("start", ["run()", "asyncio.run(inside())"])
def test_ctrl_c_stops_the_run_and_leaves_it_resumable(kind: str, start: str, tmp_path: Path) -> None:
    """SIGINT to a real process: the run stops, its state is committed, and KeyboardInterrupt ends the process."""
    slow, wait = TOOLS[kind]
    script = INTERRUPTED.replace("SLOW", slow).replace("WAIT", wait).replace("START", start)
    command = [sys.executable, "-c", script, str(tmp_path / "runs.db")]

    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=30)

    assert (output, process.returncode) == ("interrupted\n", -signal.SIGINT), errors
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert "never retrieved" not in errors
    assert "was destroyed" not in errors
    resumed = INTERRUPTED.replace("SLOW", slow).replace("WAIT", 'return "woken"')
    resumed = resumed.replace("START", "print(asyncio.run(executor.resume('r')).output)")
    found = run_script(resumed, str(tmp_path / "runs.db"))
    assert found.stdout.splitlines()[0] == "done", found.stderr


def test_paused_run_is_resumed_without_await() -> None:
    """`resume_sync` takes the arguments of `resume`."""

    @tool(approval=True)
    def pay(amount: int) -> str:
        """Pay."""
        return f"Paid {amount}."

    executor = CrewExecutor(Agent("a", model=ScriptedProvider(call("pay", amount=5), "Done."), tools=[pay]))
    paused = executor.execute_sync("Go", run_id="r")
    assert paused.stop_reason == "paused"
    done = executor.resume_sync("r", {paused.pauses[0].id: True}, strict=True)
    assert done.output == "Done."
    assert [m.results[0].text for m in done.transcript if isinstance(m, ToolMessage)] == ["Paid 5."]
