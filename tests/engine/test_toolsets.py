"""Toolsets: listed at activation, frozen for a run, bound again by a resume, and never the end of a run."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from crew import Agent, Approve, Context, Crew, CrewExecutor, Parallel, Route, call, tool, toolset
from crew.errors import DefinitionError, InvalidInput
from crew.history.policies import Rolling
from crew.interfaces import policy_options
from crew.messages import ToolMessage
from crew.runs.events import AgentPrepared, Warned
from crew.store import SQLiteStore
from crew.tools import ConsentRequired, Tool
from tests.support.providers import RecordingProvider


@tool(effect="read")
def read(key: str) -> str:
    """Read a key."""
    return f"value of {key}"


@tool
def write(key: str) -> str:
    """Write a key."""
    return f"wrote {key}"


@tool(name="read", effect="read")
def changed_read(key: str) -> str:
    """Read a key, differently."""
    return f"new value of {key}"


class Listed:
    """A toolset that lists one after another of the given things; the last one again and again."""

    def __init__(self, *lists: Any, name: str = "files") -> None:
        self.name, self.lists, self.calls = name, list(lists), 0

    async def list_tools(self, context: Context[Any]) -> Sequence[Tool]:
        self.calls += 1
        listed = self.lists.pop(0) if len(self.lists) > 1 else self.lists[0]

        if isinstance(listed, Exception):
            raise listed

        return listed  # type: ignore[no-any-return]


class Guarded:
    """A toolset that asks for a consent first."""

    name = "guarded"

    async def list_tools(self, context: Context[Any]) -> Sequence[Tool]:
        if "guarded:1" not in context.consents:
            raise ConsentRequired(key="guarded:1", question="May the crew use guarded?")

        return [read]


def results(transcript: Any) -> list[str]:
    return [result.text for message in transcript if isinstance(message, ToolMessage) for result in message.results]


def warnings(events: list[Any]) -> list[str]:
    return [event.text for event in events if isinstance(event, Warned)]


async def test_tools_of_a_toolset_are_offered_and_called() -> None:
    """With a prefix; the event holds each spec once."""
    model, events = RecordingProvider(call("kv_read", key="a"), "Done."), list[Any]()
    agent = Agent("a", model=model, tools=[toolset("kv", [read, write], prefix="kv_")])
    result = await CrewExecutor(agent, observers=[events.append]).execute("Go")
    assert results(result.transcript) == ["value of a"]
    assert [spec.name for spec in model.requests[0].tools] == ["kv_read", "kv_write"]
    [event] = [event for event in events if isinstance(event, AgentPrepared)]
    assert {spec.name for spec in event.specs.values()} == {"kv_read", "kv_write"}


async def test_the_filter_decides_for_each_activation() -> None:
    """By the context; a tool that it refuses is unknown to the model and can't be called."""
    model = RecordingProvider(call("write", key="a"), "Done.")
    group = toolset(
        "kv", [read, write], filter=lambda context, one: context.metadata["role"] == "owner" or one.effect == "read"
    )
    executor = CrewExecutor(Agent("a", model=model, tools=[group]))
    result = await executor.execute("Go", metadata={"role": "guest"})
    assert [spec.name for spec in model.requests[0].tools] == ["read"]
    assert results(result.transcript)[0].startswith("Unknown tool 'write'.")
    await executor.execute("Go", metadata={"role": "owner"})
    assert [spec.name for spec in model.requests[-1].tools] == ["read", "write"]


@pytest.mark.parametrize(
    ("approval", "held"),
    [("never", []), ("writes", ["write"]), ("always", ["read", "write"]), ("function", ["read"])],
)
async def test_the_approval_of_a_toolset_adds_to_that_of_its_tools(approval: Any, held: list[str]) -> None:
    """`writes` asks for writes and never for reads."""
    policy = (
        (lambda one, arguments: one.name == "read" and arguments["key"] == "a") if approval == "function" else approval
    )
    model = RecordingProvider([call("read", key="a"), call("write", key="b")], "Done.")
    agent = Agent("a", model=model, tools=[toolset("kv", [read, write], approval=policy)])
    result = await CrewExecutor(agent).execute("Go")
    assert [pause.call.name for pause in result.pauses if pause.call] == held


async def test_the_list_is_frozen_for_a_run() -> None:
    """A later activation gets the specs of the first one: no new tool, no new description; the warnings say so."""
    source = Listed([read], [changed_read, write])
    model = RecordingProvider("On [X]", call("read", key="a"), call("write", key="b"), "Done.")
    events = list[Any]()
    agent = Agent("a", model=model, tools=[source], routes=[Route("[X]", to="a")])
    result = await CrewExecutor(agent, observers=[events.append]).execute("Go")
    assert source.calls == 2
    assert {tuple(spec.description for spec in request.tools) for request in model.requests} == {("Read a key.",)}
    assert results(result.transcript)[0] == "new value of a"
    assert results(result.transcript)[1].startswith("Unknown tool 'write'.")
    assert [text.partition(";")[0] for text in warnings(events)] == [
        "The toolset 'files' now also has write",
        "The toolset 'files' changed read",
    ]


async def test_branches_share_the_frozen_list() -> None:
    """Also those that start after the list changed."""
    source = Listed([read], [read, write])
    models = {name: RecordingProvider("ok") for name in ("first", "left", "right")}
    agents = {name: Agent(name, model=model, tools=[source]) for name, model in models.items()}
    group = Parallel("g", branches=[agents["left"], agents["right"]])
    first = Agent("first", model=models["first"], tools=[source], then=group)
    crew = Crew("c", agents=[first, agents["left"], agents["right"]], groups=[group])
    await CrewExecutor(crew).execute("Go")
    assert {tuple(spec.name for spec in m.requests[0].tools) for m in models.values()} == {("read",)}


async def test_a_toolset_that_fails_leaves_the_agent_without_its_tools() -> None:
    """With a warning; the next activation tries again."""
    source = Listed(ConnectionError("server is down"), [read])
    model, events = RecordingProvider("On [X]", "Done."), list[Any]()
    agent = Agent("a", model=model, tools=[source, write], routes=[Route("[X]", to="a")])
    result = await CrewExecutor(agent, observers=[events.append]).execute("Go")
    assert result.output == "Done."
    assert [[spec.name for spec in request.tools] for request in model.requests] == [["write"], ["write", "read"]]
    [text] = [text for text in warnings(events) if "without the toolset" in text]
    assert text == "'a' works without the toolset 'files': ConnectionError: server is down"


async def test_a_resume_in_another_process_binds_the_functions_again(tmp_path: Path) -> None:
    """Specs come from the stored run, functions from the toolset; what vanished is an error result."""
    path, model = tmp_path / "runs.db", RecordingProvider([call("read", key="a"), call("write", key="b")], "Done.")

    held = toolset("files", [read, write], approval="always")
    first = CrewExecutor(Agent("a", model=model, tools=[held]), store=SQLiteStore(path))
    paused = await first.execute("Go", run_id="r")
    assert len(paused.pauses) == 2
    second = CrewExecutor(Agent("a", model=model, tools=[Listed([changed_read])]), store=SQLiteStore(path))
    done = await second.resume("r", {pause.id: True for pause in paused.pauses})
    assert results(done.transcript) == [
        "new value of a",
        "The tool 'write' is not available: 'files' no longer has it. Continue without it.",
    ]
    assert [spec.description for spec in model.requests[1].tools] == ["Read a key.", "Write a key."]


async def test_a_resume_goes_on_if_the_toolset_fails(tmp_path: Path) -> None:
    path, model = tmp_path / "runs.db", RecordingProvider(call("read", key="a"), "Done.")
    held = toolset("files", [read], approval="always")
    paused = await CrewExecutor(Agent("a", model=model, tools=[held]), store=SQLiteStore(path)).execute(
        "Go", run_id="r"
    )
    broken = CrewExecutor(Agent("a", model=model, tools=[Listed(OSError("down"))]), store=SQLiteStore(path))
    done = await broken.resume("r", {paused.pauses[0].id: True})
    assert results(done.transcript) == ["The tool 'read' is not available: OSError: down. Continue without it."]
    assert done.output == "Done."


async def test_a_call_of_a_toolset_may_be_approved_with_other_arguments() -> None:
    """They are checked when the call runs: arguments that do not match are an error result."""
    for arguments, expected in (({"key": "b"}, "value of b"), ({"nokey": 1}, "The arguments are not valid")):
        model = RecordingProvider(call("read", key="a"), "Done.")
        executor = CrewExecutor(Agent("x", model=model, tools=[toolset("kv", [read], approval="always")]))
        paused = await executor.execute("Go")
        done = await executor.resume(paused.run_id, {paused.pauses[0].id: Approve(arguments=arguments)})
        assert expected in results(done.transcript)[0]


async def test_policies_see_which_files_the_tools_of_a_toolset_touch() -> None:
    """`@tool(touches=…)` counts in a toolset too."""
    seen = list[Any]()

    @dataclass(frozen=True)
    class Watching:
        policy: Rolling
        name: str = "watching"

        @property
        def options(self) -> Any:
            return policy_options(self.policy)

        def prune(self, history: Any, budget: Any) -> Any:
            seen.append(dict(budget.touches))
            return self.policy.prune(history, budget)

    @tool(touches="path", effect="read")
    def open_file(path: str) -> str:
        """Open."""
        return path

    model = RecordingProvider(*[call("open_file", path="a")] * 4, "Done.")
    agent = Agent("x", model=model, tools=[toolset("files", [open_file])])
    await CrewExecutor(agent, history=Watching(Rolling(limit=4))).execute("Go")
    assert seen
    assert seen[-1] == {"open_file": "path"}


async def test_names_that_collide_are_left_out() -> None:
    """The agent's own tool wins, then the first toolset."""
    model, events = RecordingProvider("Done."), list[Any]()
    agent = Agent("a", model=model, tools=[read, Listed([changed_read, write]), Listed([write], name="more")])
    await CrewExecutor(agent, observers=[events.append]).execute("Go")
    assert [spec.description for spec in model.requests[0].tools] == ["Read a key.", "Write a key."]
    assert sum("its name is taken" in text for text in warnings(events)) == 2


async def test_a_toolset_asks_for_consent_and_the_run_waits(tmp_path: Path) -> None:
    """Another process resumes it; an answer that is no consent is refused; the key is in the context then."""
    path, model = tmp_path / "runs.db", RecordingProvider(call("read", key="a"), "Done.")

    def executor() -> CrewExecutor:
        return CrewExecutor(Agent("a", model=model, tools=[Guarded()]), store=SQLiteStore(path))

    paused = await executor().execute("Go", run_id="r")
    [pause] = paused.pauses
    assert (paused.stop_reason, pause.reason, pause.text) == ("paused", "consent", "May the crew use guarded?")
    assert pause.id == "r:1.guarded.consent"

    with pytest.raises(InvalidInput, match="ambiguous"):
        await executor().resume("r", {pause.id: "yes"})

    assert (await executor().resume("r")).pauses == paused.pauses
    done = await executor().resume("r", {pause.id: True})
    assert (done.output, results(done.transcript)) == ("Done.", ["value of a"])


async def test_a_refused_consent_leaves_the_toolset_out() -> None:
    """For the rest of the run, without asking again."""
    model, events = RecordingProvider("On [X]", "Done."), list[Any]()
    agent = Agent("a", model=model, tools=[Guarded(), write], routes=[Route("[X]", to="a")])
    executor = CrewExecutor(agent, observers=[events.append])
    paused = await executor.execute("Go")
    done = await executor.resume(paused.run_id, {paused.pauses[0].id: False})
    assert done.output == "Done."
    assert [[spec.name for spec in request.tools] for request in model.requests] == [["write"], ["write"]]
    assert warnings(events) == ["'a' works without the toolset 'guarded': a person refused its consent"] * 2


async def test_consents_of_branches_are_asked_together_and_kept_for_the_run() -> None:
    """Each branch pauses; after the join no other agent asks again."""
    models = {name: RecordingProvider("ok") for name in ("left", "right", "last")}
    agents = {name: Agent(name, model=model, tools=[GUARDED]) for name, model in models.items()}
    group = Parallel("g", branches=[agents["left"], agents["right"]], then=agents["last"])
    executor = CrewExecutor(Crew("c", agents=[*agents.values()], groups=[group], entry="g"))
    paused = await executor.execute("Go")
    assert sorted(pause.run_id.rpartition("/")[2] for pause in paused.pauses) == ["left", "right"]
    done = await executor.resume(paused.run_id, {pause.id: True for pause in paused.pauses})
    assert done.stop_reason == "completed"
    assert all([spec.name for spec in model.requests[0].tools] == ["read"] for model in models.values())


GUARDED = Guarded()


class Connection:
    """Counts what is open."""

    def __init__(self) -> None:
        self.open, self.opened, self.tasks = 0, 0, list[Any]()

    @asynccontextmanager
    async def __call__(self) -> AsyncIterator[str]:
        self.open, self.opened = self.open + 1, self.opened + 1
        self.tasks.append(asyncio.current_task())

        try:
            yield "connected"
        finally:
            self.open -= 1
            self.tasks.append(asyncio.current_task())


def connected(connection: Connection) -> Any:
    def status() -> str:
        """The status."""
        return f"{made}, {connection.open} open"

    made = ""

    def make(opened: str) -> list[Any]:
        nonlocal made
        made = opened
        return [status]

    return toolset("c", make, lifetime=connection)


async def test_a_lifetime_lasts_until_the_executor_is_closed() -> None:
    """It is opened once, lazily, and left in the task that entered it."""
    connection = Connection()
    model = RecordingProvider(call("status"), "Done.", call("status"), "Done.")

    async with CrewExecutor(Agent("a", model=model, tools=[connected(connection)])) as executor:
        assert connection.opened == 0
        first, second = await executor.execute("Go"), await executor.execute("Go")
        assert results(first.transcript) == results(second.transcript) == ["connected, 1 open"]

    assert (connection.open, connection.opened) == (0, 1)
    assert connection.tasks[0] is connection.tasks[1] is not asyncio.current_task()


async def test_executors_share_an_open_toolset() -> None:
    """It is closed by the last of them."""
    connection = Connection()
    group = connected(connection)
    one = CrewExecutor(Agent("a", model=RecordingProvider("Done."), tools=[group]))
    two = CrewExecutor(Agent("a", model=RecordingProvider("Done."), tools=[group]))
    await asyncio.gather(one.execute("Go"), two.execute("Go"))
    assert (connection.open, connection.opened) == (1, 1)
    await one.aclose()
    assert connection.open == 1
    await two.aclose()
    assert connection.open == 0
    await two.execute("Go")
    assert (connection.open, connection.opened) == (1, 2)
    await two.aclose()


async def test_a_toolset_that_is_closed_is_opened_again_afterwards() -> None:
    """An executor may use it while the last other one closes it: the two lifetimes do not overlap."""
    connection, closing, may_close = Connection(), asyncio.Event(), asyncio.Event()

    @asynccontextmanager
    async def slow() -> AsyncIterator[str]:
        async with connection() as opened:
            yield opened
            closing.set()
            await may_close.wait()

    group = toolset("c", [read], lifetime=slow)
    one = CrewExecutor(Agent("a", model=RecordingProvider("Done."), tools=[group]))
    two = CrewExecutor(Agent("a", model=RecordingProvider("Done."), tools=[group]))
    await one.execute("Go")
    closed = asyncio.ensure_future(one.aclose())
    await closing.wait()
    running = asyncio.ensure_future(two.execute("Go"))
    await asyncio.sleep(0.01)
    assert (connection.open, connection.opened) == (1, 1)
    may_close.set()
    await asyncio.gather(closed, running)
    assert (connection.open, connection.opened) == (1, 2)
    await two.aclose()
    assert connection.open == 0


async def test_a_closed_toolset_is_not_kept_in_memory() -> None:
    """A process that makes an executor with a toolset for each request does not grow."""
    group = connected(Connection())
    gone = weakref.ref(group.lifetime.__self__.opens)
    executor = CrewExecutor(Agent("a", model=RecordingProvider("Done."), tools=[group]))
    await executor.execute("Go")
    await executor.aclose()
    del executor, group
    gc.collect()
    assert gone() is None


def test_a_lifetime_ends_with_its_event_loop() -> None:
    """Without `aclose`; the next loop opens it again."""
    connection = Connection()
    executor = CrewExecutor(Agent("a", model=RecordingProvider("Done."), tools=[connected(connection)]))
    asyncio.run(_execute(executor))
    assert (connection.open, connection.opened) == (0, 1)
    asyncio.run(_execute(executor))
    assert (connection.open, connection.opened) == (0, 2)


async def _execute(executor: CrewExecutor) -> None:
    await executor.execute("Go")


async def test_a_lifetime_that_fails_to_open_is_a_warning() -> None:
    """And is tried again at the next activation."""

    @asynccontextmanager
    async def broken() -> AsyncIterator[None]:
        raise ConnectionError("refused")
        yield

    events = list[Any]()
    agent = Agent("a", model=RecordingProvider("Done."), tools=[toolset("c", [read], lifetime=broken)])
    result = await CrewExecutor(agent, observers=[events.append]).execute("Go")
    assert result.output == "Done."
    assert "ConnectionError: refused" in warnings(events)[0]


def test_wrong_toolsets_are_refused() -> None:
    """When they are defined."""
    model = RecordingProvider("x")

    with pytest.raises(DefinitionError, match="the name must be 1–64 of"):
        toolset("a b", [read])

    with pytest.raises(DefinitionError, match="tools is a function, which needs lifetime="):
        toolset("a", lambda opened: [read])

    with pytest.raises(DefinitionError, match="approval must be 'never', 'writes', 'always'"):
        toolset("a", [read], approval="reads")  # type: ignore[arg-type]

    with pytest.raises(DefinitionError, match="two toolsets are named 'kv'"):
        Crew("c", agents=[Agent("a", model=model, tools=[toolset("kv", [read]), toolset("kv", [write])])])
