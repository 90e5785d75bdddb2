"""`sys.exit` and Ctrl-C in user code: the first fails its run, the second stops it; other runs go on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from crew import Agent, Crew, CrewExecutor, Parallel, RunError, ScriptedProvider, call, handoff, tool
from crew.errors import StoreError, UnknownRun
from crew.history import Checkpoint
from crew.interfaces import ModelReply, ModelRequest
from crew.runs import Event, RunState, StoredRun
from crew.runs.events import CompactionFailed
from crew.store import MemoryStore
from tests.support.providers import RecordingProvider
from tests.support.runs import executor_for, run_and_collect
from tests.support.stores import JsonStore
from tests.support.tools import look


def raiser(error: BaseException) -> Callable[..., Any]:
    """A function that raises, whatever its arguments are."""

    def function(*given: object, **named: object) -> Any:
        raise error

    return function


def failing_tools(error: BaseException) -> list[Any]:
    """The same failure in a thread, in a coroutine, and in a coroutine that waited."""

    @tool(effect="read")
    def in_thread() -> str:
        """Fail."""
        raise error

    @tool(effect="read")
    async def in_coroutine() -> str:
        """Fail."""
        raise error

    @tool(effect="read")
    async def after_a_wait() -> str:
        """Fail."""
        await asyncio.sleep(0)
        raise error

    @tool(effect="read")
    async def waits() -> str:
        """Wait until it is cancelled."""
        await asyncio.Event().wait()
        return ""

    return [in_thread, in_coroutine, after_a_wait, waits]


TOOLS = ("in_thread", "in_coroutine", "after_a_wait")


async def finishes_beside(work: Callable[[], Any]) -> str:
    """The output of another run of the same event loop, which starts before and ends after this work."""
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def pause(request: ModelRequest) -> str:
        begun.set()
        await go_on.wait()
        return "unharmed"

    class Waiting(RecordingProvider):
        async def complete(self, request: ModelRequest, on_delta: Any = None) -> ModelReply:
            return ModelReply(text=await pause(request))

    other = asyncio.ensure_future(executor_for(Waiting()).execute("other"))
    await begun.wait()
    await work()
    go_on.set()
    return (await other).output


@pytest.mark.parametrize("name", TOOLS)
@pytest.mark.parametrize("beside", [[], [call("waits")]])
async def test_exit_of_a_tool_fails_its_run_only(name: str, beside: list[Any]) -> None:
    """The caller gets a RunError that names the tool; other runs of the process go on."""
    store = JsonStore()

    async def work() -> None:
        executor = executor_for(ScriptedProvider([call(name), *beside]), *failing_tools(SystemExit(3)), store=store)

        with pytest.raises(RunError, match=f"The tool '{name}' raised SystemExit: 3") as caught:
            await executor.execute("go", run_id="r")

        assert isinstance(caught.value.__cause__, SystemExit)
        assert caught.value.result.run_id == "r"

    assert await finishes_beside(work) == "unharmed"
    resumed = executor_for(
        ScriptedProvider(lambda request: "done"),
        *[tool(effect="read", name=each)(lambda: "fine") for each in (*TOOLS, "waits")],
        store=store,
    )
    assert (await resumed.resume("r")).output == "done"


@pytest.mark.parametrize("name", TOOLS)
@pytest.mark.parametrize("beside", [[], [call("waits")]])
async def test_interrupt_in_a_tool_stops_the_run_resumably(name: str, beside: list[Any]) -> None:
    """As Ctrl-C does: the caller gets KeyboardInterrupt, and a resume continues from the last commit."""
    store = JsonStore()
    executor = executor_for(ScriptedProvider([call(name), *beside]), *failing_tools(KeyboardInterrupt()), store=store)

    async def work() -> None:
        with pytest.raises(KeyboardInterrupt):
            await executor.execute("go", run_id="r")

    assert await finishes_beside(work) == "unharmed"
    assert store.newest.next.kind == "call_tools"
    resumed = executor_for(
        ScriptedProvider(lambda request: "done"),
        *[tool(effect="read", name=each)(lambda: "fine") for each in (*TOOLS, "waits")],
        store=store,
    )
    assert (await resumed.resume("r")).output == "done"


async def test_interrupt_reaches_the_reader_of_a_stream() -> None:
    """Events up to the interrupt are read; `result` raises it too."""
    stream = executor_for(ScriptedProvider(call("in_thread")), *failing_tools(KeyboardInterrupt())).execute_stream("go")
    events: list[Event] = []

    async def read() -> None:
        async for event in stream:
            events.append(event)  # noqa: PERF401 - the events before the interrupt are kept

    with pytest.raises(KeyboardInterrupt):
        await read()

    assert events[-1].kind == "tools_started"

    with pytest.raises(KeyboardInterrupt):
        _ = stream.result


def test_interrupt_in_a_tool_reaches_the_caller_of_execute_sync() -> None:
    """The next call works."""
    replies = iter([call("in_coroutine"), "next"])
    executor = executor_for(ScriptedProvider(lambda request: next(replies)), *failing_tools(KeyboardInterrupt()))

    with pytest.raises(KeyboardInterrupt):
        executor.execute_sync("go")

    assert executor.execute_sync("go").output == "next"


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()])
async def test_exit_in_a_branch_is_decided_by_its_group(error: BaseException) -> None:
    """A branch that exits has failed; an interrupt stops the whole run."""

    @tool(approval=raiser(error))
    def held() -> str:
        """Need approval."""
        return ""

    members = [
        Agent("good", model=ScriptedProvider("fine")),
        Agent("bad", model=ScriptedProvider(call("held")), tools=[held]),
    ]
    group = Parallel("panel", branches=members, then="last")
    crew = Crew("c", agents=[*members, Agent("last", model=ScriptedProvider("joined"))], groups=[group], entry=group)

    if isinstance(error, KeyboardInterrupt):
        with pytest.raises(KeyboardInterrupt):
            await CrewExecutor(crew).execute("go")
    else:
        result = await CrewExecutor(crew).execute("go")
        assert result.output == "joined"
        assert [branch.outcome for branch in result.branches] == ["completed", "failed"]


class ExitingStore(MemoryStore):
    """Raises in the second commit and in `load`; suspends, as most stores do."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def commits_immediately(self) -> bool:
        return False

    async def commit(self, run_id: str, version: int, events: Sequence[Event], state: RunState) -> None:
        await asyncio.sleep(0)

        if version:
            raise self.error

        await super().commit(run_id, version, events, state)

    async def load(self, run_id: str) -> StoredRun:
        raise self.error


class ExitingProvider(RecordingProvider):
    """Raises instead of replying."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    async def complete(self, request: ModelRequest, on_delta: Any = None) -> ModelReply:
        raise self.error


def executors(error: BaseException) -> dict[str, CrewExecutor]:
    """Executors whose runs fail in different kinds of user code."""

    @tool(approval=raiser(error))
    def held() -> str:
        """Need approval."""
        return ""

    class Raising:
        name = "raising"
        prune = staticmethod(raiser(error))

    other = Agent("other", model=ScriptedProvider("fine"))
    passing = Agent(
        "a", model=ScriptedProvider(call("transfer_to_other")), handoffs=[handoff(other, history=raiser(error))]
    )
    return {
        "approval": executor_for(ScriptedProvider(call("held")), held),
        "policy": executor_for(
            ScriptedProvider(*[call("look", n=1)] * 4), look, history=Raising(), max_messages_per_request=4
        ),
        "filter": CrewExecutor(Crew("c", agents=[passing, other])),
        "store": executor_for(ScriptedProvider("fine"), store=ExitingStore(error)),
        "provider": executor_for(ExitingProvider(error)),
    }


@pytest.mark.parametrize("where", ["approval", "policy", "filter", "store", "provider"])
@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError("by itself")])
async def test_exit_of_other_user_code_is_a_run_error(where: str, error: BaseException) -> None:
    """`sys.exit`, or a cancellation that was not requested: the run fails, and its caller is not cancelled."""

    async def work() -> None:
        with pytest.raises(RunError, match=r"SystemExit: 3|cancelled|CancelledError"):
            await executors(error)[where].execute("Go on.")

    assert await finishes_beside(work) == "unharmed"


@pytest.mark.parametrize("where", ["approval", "policy", "filter", "store", "provider"])
async def test_interrupt_in_other_user_code_reaches_the_caller(where: str) -> None:
    """Other runs of the event loop go on."""

    async def work() -> None:
        with pytest.raises(KeyboardInterrupt):
            await executors(KeyboardInterrupt())[where].execute("Go on.")

    assert await finishes_beside(work) == "unharmed"


async def test_exit_while_a_run_is_loaded_is_a_store_error() -> None:
    """Resume and cancel load the run first."""
    executor = executors(SystemExit(3))["store"]

    for work in (executor.resume("r"), executor.cancel("r")):
        with pytest.raises(StoreError, match="SystemExit: 3"):
            await work


@pytest.mark.parametrize("error", [SystemExit(3), GeneratorExit(), asyncio.CancelledError()])
async def test_exit_of_an_observer_disables_it(error: BaseException) -> None:
    """Observers never change or break a run."""

    class Factory:
        observe = staticmethod(raiser(error))

    result = await executor_for(ScriptedProvider("fine"), observers=[raiser(error), Factory()]).execute("go")
    assert result.output == "fine"


@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError()])
async def test_exit_of_a_summarizer_is_a_failed_compaction(error: BaseException) -> None:
    """As any other failure of a summarizer."""
    policy = Checkpoint(trigger_at=20, keep_recent=4, summarizer=raiser(error))
    script = ScriptedProvider(*[call("look", n=1)] * 15, "done")
    events, result = await run_and_collect(executor_for(script, look, history=policy))
    assert result.output == "done"
    assert any(isinstance(event, CompactionFailed) for event in events)


async def test_a_run_that_does_not_exist_is_still_unknown() -> None:
    """Errors of a store pass unchanged."""
    with pytest.raises(UnknownRun):
        await executor_for(ScriptedProvider()).resume("nothing")
