"""The guarantees that every observer has: a function, an object with all optional methods, a factory."""

import asyncio
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import pytest

from crew import Agent, Crew, CrewExecutor, RunError, ScriptedProvider, call, tool
from crew.interfaces import ModelRequest
from crew.messages import ToolCall
from crew.runs import Observer, RunObserver, RunState


class Full:
    """An observer with every optional part."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.inside: list[str] = []
        self.closed: list[BaseException | None] = []

    def __call__(self, event: Any) -> None:
        self.events.append(event)

    @contextmanager
    def call_context(self, run_id: str, what: ModelRequest | ToolCall) -> Any:
        name = what.name if isinstance(what, ToolCall) else what.agent
        self.inside.append(f"> {name}")

        try:
            yield
        finally:
            self.inside.append(f"< {name}")

    def close(self, error: BaseException | None, state: RunState | None) -> None:
        self.closed.append(error)


@tool
async def look() -> str:
    """Look."""
    return "seen"


def agent(*script: Any) -> Agent:
    return Agent("a", model=ScriptedProvider(*(script or (call("look"), "Done."))), tools=[look])


async def test_an_observer_sees_every_event_in_order() -> None:
    """The same events that the stream gives, numbered without a gap in what is stored."""
    full = Full()
    executor = CrewExecutor(agent(), observers=[full])

    async with executor.execute_stream("Go") as events:
        streamed = [event async for event in events]

    assert full.events == streamed
    assert [event.sequence for event in streamed] == sorted({event.sequence for event in streamed})
    assert {event.run_id for event in streamed} == {events.result.run_id}


async def test_a_plain_function_is_an_observer() -> None:
    """The interface is one call; everything else is optional."""
    seen: list[Any] = []
    observer: Observer = seen.append
    await CrewExecutor(agent(), observers=[observer]).execute("Go")
    assert [seen[0].kind, seen[-1].kind] == ["run_started", "run_finished"]


async def test_around_encloses_every_call_and_close_comes_once_and_last() -> None:
    """The model and the tools are called inside; `close` gets no error where the run returned."""
    full = Full()
    await CrewExecutor(agent(), observers=[full]).execute("Go")
    assert full.inside == ["> a", "< a", "> look", "< look", "> a", "< a"]
    assert full.closed == [None]


async def test_a_run_observer_may_implement_one_of_its_optional_methods() -> None:
    """Inheriting from RunObserver provides the other one; an unrelated `close` alone is never called."""

    class Closes(RunObserver):
        stopped: RunState | None = None

        def __call__(self, event: Any, /) -> None:
            pass

        def close(self, error: BaseException | None, state: RunState | None, /) -> None:
            self.stopped = state

    class Unrelated:
        closed = False

        def __call__(self, event: Any) -> None:
            pass

        def close(self) -> None:
            self.closed = True

    closes, unrelated = Closes(), Unrelated()
    result = await CrewExecutor(agent(), observers=[closes, unrelated]).execute("Go")
    assert closes.stopped is result.state
    assert not unrelated.closed


async def test_a_factory_makes_one_observer_for_each_run() -> None:
    """A factory need not be callable; it learns whether the run resumes."""

    class Factory:
        def __init__(self) -> None:
            self.made: list[tuple[str, bool, Full]] = []

        def observe(self, crew: Crew, state: RunState, *, resumes: bool) -> Observer:
            self.made.append((state.run_id, resumes, Full()))
            return self.made[-1][2]

    factory = Factory()
    executor = CrewExecutor(Agent("a", model=ScriptedProvider("One.", "Two.")), observers=[factory])
    await executor.execute("Go", run_id="first")
    await executor.execute("Go", run_id="second")
    assert [(run_id, resumes) for run_id, resumes, _ in factory.made] == [("first", False), ("second", False)]
    assert [{event.run_id for event in full.events} for _, _, full in factory.made] == [{"first"}, {"second"}]
    assert [full.closed for _, _, full in factory.made] == [[None], [None]]


@pytest.mark.parametrize("way", ["fails", "cancelled"])
async def test_close_is_told_of_every_other_way_out(way: str) -> None:
    """What the run failed with, or that it was cancelled."""
    full, started = Full(), asyncio.Event()

    @tool
    async def wait() -> str:
        """Wait for ever."""
        started.set()
        await asyncio.Event().wait()
        return ""

    model = ScriptedProvider(RuntimeError("no")) if way == "fails" else ScriptedProvider(call("wait"))
    task = asyncio.create_task(CrewExecutor(Agent("a", model=model, tools=[wait]), observers=[full]).execute("Go"))

    if way == "cancelled":
        await started.wait()
        task.cancel()

    with pytest.raises(RunError if way == "fails" else asyncio.CancelledError):
        await task

    (error,) = full.closed
    assert isinstance(error, RunError if way == "fails" else asyncio.CancelledError)
    assert full.inside.count("> a") == full.inside.count("< a")


def breaks(where: str) -> Callable[..., Any]:
    """An observer that fails in one of its parts."""

    class Broken(Full):
        def __call__(self, event: Any) -> None:
            super().__call__(event)

            if where == "event":
                raise ValueError("no")

        @contextmanager
        def call_context(self, run_id: str, what: Any) -> Any:
            if where == "enter":
                raise ValueError("no")

            yield

            if where == "exit":
                raise ValueError("no")

        def close(self, error: BaseException | None, state: RunState | None) -> None:
            super().close(error, state)

            if where == "close":
                raise ValueError("no")

    return Broken()


@pytest.mark.parametrize("where", ["event", "enter", "exit", "close"])
async def test_one_that_fails_changes_nothing_and_is_switched_off_with_one_warning(
    where: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The run comes to the same result and the other observers see all of it; it is told once, and closed once."""
    broken, good, alone = breaks(where), Full(), Full()
    expected = await CrewExecutor(agent(), observers=[alone]).execute("Go", run_id="r")
    result = await CrewExecutor(agent(), observers=[broken, good]).execute("Go", run_id="r")
    assert (result.output, result.usage) == (expected.output, expected.usage)
    assert [event.kind for event in good.events] == [event.kind for event in alone.events]
    warnings = [record for record in caplog.records if "disabled for run r" in record.getMessage()]
    assert len(warnings) == 1
    assert len(broken.closed) == 1

    if where == "event":
        assert len(broken.events) == 1
