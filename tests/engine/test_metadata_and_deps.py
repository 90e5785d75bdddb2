"""`execute(metadata=…)` and `CrewExecutor(deps=factory)`: what another process needs in order to continue a run."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from crew import Agent, Context, Crew, CrewExecutor, Parallel, RunInfo, RunResult, ScriptedProvider, call, tool
from crew.errors import DefinitionError, InvalidInput, RunError, RunExists, UnknownRun
from crew.messages import ToolMessage
from crew.store import SQLiteStore
from tests.support.runs import collect, executor_for

any_: Any = lambda given: given  # noqa: E731 - hides wrong types from the type checker


def recorder() -> tuple[list[Context[Any]], Any]:
    """A list of the contexts that a tool was called with, and that tool, which needs an approval."""
    seen: list[Context[Any]] = []

    @tool(approval=True)
    def pay(context: Context[Any]) -> str:
        """Pay."""
        seen.append(context)
        return f"paid for {context.metadata.get('customer')}"

    return seen, pay


def payer(pay: Any, path: Path | str, **options: Any) -> CrewExecutor:
    """An executor in the place of one process: with its own model and its own connection to the file."""
    return executor_for(ScriptedProvider(call("pay"), "done", call("pay")), pay, store=SQLiteStore(path), **options)


def first_result(result: RunResult) -> str:
    """The text of the first tool result."""
    return next(message.results[0].text for message in result.transcript if isinstance(message, ToolMessage))


# ------------------------------------------------------------------------------------------ metadata


async def test_metadata_reaches_tools_and_result_and_survives_a_resume(tmp_path: Path) -> None:
    """Another executor that resumes the run from the file has the metadata of the start."""
    seen, pay = recorder()
    given = {"customer": 42, "tags": ["a", None, 1.5, True], "nested": {"x": {}}}
    paused = await payer(pay, tmp_path / "runs.db").execute("Pay.", run_id="r", metadata=given)
    assert paused.metadata == given

    result = await payer(pay, tmp_path / "runs.db").resume("r", {paused.pauses[0].id: True})
    assert seen[0].metadata == result.metadata == result.state.metadata == given
    assert first_result(result) == "paid for 42"


async def test_metadata_is_the_same_for_all_ways_to_execute() -> None:
    """Streamed, sync and async; a run without metadata has none, also if it continues a run that has some."""
    executor = executor_for(ScriptedProvider(lambda request: "done"))
    _, streamed = await collect(executor.execute_stream("Go.", metadata={"a": 1}))
    assert streamed.metadata == {"a": 1}
    assert executor.execute_sync("Go.", metadata={"a": 2}).metadata == {"a": 2}
    assert (await executor.execute("Go.", history=streamed)).metadata == {}


async def test_branches_and_called_agents_inherit_the_metadata() -> None:
    """A tool does not need to know in which part of the tree of runs it is called."""
    seen: list[tuple[str, object]] = []

    @tool
    def note(context: Context[None]) -> str:
        """Note the metadata."""
        seen.append((context.run_id, context.metadata["customer"]))
        return "noted"

    inner = Agent("inner", model=ScriptedProvider(call("note"), "done"), tools=[note])
    left = Agent("left", model=ScriptedProvider(call("note"), "done"), tools=[note])
    right = Agent("right", model=ScriptedProvider(call("ask_inner", request="Note."), "done"), tools=[inner.as_tool()])
    crew = Crew("c", agents=[left, right], groups=[Parallel("both", branches=["left", "right"])], entry="both")
    await CrewExecutor(crew).execute("Go.", run_id="r", metadata={"customer": 42})
    assert len(seen) == 2
    assert {customer for _, customer in seen} == {42}
    assert {run_id.count("/") for run_id, _ in seen} == {1, 2}


async def test_the_metadata_of_a_run_does_not_change(tmp_path: Path) -> None:
    """Neither the caller afterwards, nor a tool, nor the owner of a result: each has a copy."""
    seen, pay = recorder()
    given: dict[str, Any] = {"list": [1]}
    executor = payer(pay, tmp_path / "runs.db", deps=lambda info: info.metadata["list"].append(4))
    stream = executor.execute_stream("Pay.", run_id="r", metadata=given)
    given["list"].append(2)
    _, paused = await collect(stream)
    paused.metadata["list"] = 3
    result = await executor.resume("r", {paused.pauses[0].id: True})
    any_(seen[0].metadata["list"]).append(5)
    assert result.metadata == result.state.metadata == {"list": [1]}


CYCLE: dict[str, Any] = {}
CYCLE["again"] = CYCLE


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"when": object()}, r"metadata\['when'\] has the type object, not a JSON value: accepted are None, bool"),
        ({"pair": (1, 2)}, r"metadata\['pair'\] has the type tuple"),
        ({"deep": [{"x": b"y"}]}, r"metadata\['deep'\]\[0\]\['x'\] has the type bytes"),
        ({"n": float("nan")}, r"metadata\['n'\] is nan: JSON has only finite numbers"),
        ({1: "x"}, "metadata has the key 1: the keys must be strings"),
        ({"x": "\ud800"}, "a lone surrogate"),
        ({"key": SecretStr("hunter2-hunter2")}, r"metadata\['key'\] has the type SecretStr"),
        (CYCLE, "nested too deeply: at most 20 levels"),
        ([1], r"metadata must be a dict such as .* not \[1\]"),
        ("x", "metadata must be a dict such as .* not 'x'"),
    ],
)
async def test_metadata_that_is_not_json_is_refused(metadata: Any, words: str) -> None:
    """The place is named, no model is called, and the run id stays free."""
    executor = executor_for(ScriptedProvider("done"))

    with pytest.raises(InvalidInput, match=words) as caught:
        await executor.execute("Go.", run_id="r", metadata=metadata)

    assert {violation.rule for violation in caught.value.violations} == {"metadata"}
    assert (await executor.execute("Go.", run_id="r")).output == "done"


async def test_secrets_are_removed_from_metadata(tmp_path: Path) -> None:
    """Those of the executor, and those in the deps that the factory builds; nothing reaches the file."""
    _, pay = recorder()
    executor = payer(
        pay, tmp_path / "runs.db", secrets=["first-secret"], deps=lambda info: {"key": SecretStr("second-secret")}
    )
    await executor.execute("Pay.", metadata={"a": ["first-secret"], "b": "my second-secret"}, run_id="r")
    stored = await SQLiteStore(tmp_path / "runs.db").load("r")
    assert stored.state.metadata == {"a": ["[secret]"], "b": "my [secret]"}
    content = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert b"first-secret" not in content
    assert b"second-secret" not in content


# ------------------------------------------------------------------------------------------ the deps factory


@dataclass
class Services:
    """The deps of one run."""

    customer: object
    key: SecretStr = field(default_factory=lambda: SecretStr("service-password"))


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_factory_builds_deps_at_start_and_at_every_resume(tmp_path: Path, is_async: bool) -> None:
    """So that another process, which has only the file and the run id, continues the run."""
    seen, pay = recorder()
    infos: list[RunInfo] = []

    def build(info: RunInfo) -> Services:
        infos.append(info)
        return Services(info.metadata["customer"])

    async def build_later(info: RunInfo) -> Services:
        await asyncio.sleep(0)
        return build(info)

    deps: Callable[[RunInfo], Any] = build_later if is_async else build
    first = payer(pay, tmp_path / "runs.db", deps=deps)
    paused = await first.execute("Pay.", run_id="r", metadata={"customer": 42})
    result = await payer(pay, tmp_path / "runs.db", deps=deps).resume("r", {paused.pauses[0].id: True})
    assert result.output == "done"
    assert seen[0].deps == Services(42)
    assert infos == [RunInfo(run_id="r", conversation_id="r", metadata={"customer": 42})] * 2

    await first.execute("Pay again.", history=result, run_id="s", metadata={"customer": 43})
    assert infos[2] == RunInfo(run_id="s", conversation_id="r", metadata={"customer": 43})


async def test_a_plain_value_wins_over_the_factory(tmp_path: Path) -> None:
    """For `execute` and for `resume`: the factory is not called."""
    seen, pay = recorder()
    executor = payer(pay, tmp_path / "runs.db", deps=lambda info: pytest.fail("the factory was called"))
    paused = await executor.execute("Pay.", run_id="r", deps="mine")
    await executor.resume("r", {paused.pauses[0].id: True}, deps="also mine")
    assert seen[0].deps == "also mine"


async def test_a_secret_in_built_deps_is_removed(tmp_path: Path) -> None:
    """As with deps that are passed to `execute`."""

    @tool
    def leak(context: Context[Services]) -> str:
        """Show the key."""
        return f"the key is {context.deps.key.get_secret_value()}"

    executor = executor_for(ScriptedProvider(call("leak"), "done"), leak, deps=lambda info: Services(1))
    result = await executor.execute("Go.")
    assert first_result(result) == "the key is [secret]"


def exits(info: RunInfo) -> None:
    """Ends the process, or would."""
    sys.exit(3)


async def refuses(info: RunInfo) -> None:
    """Fails, with a secret in its error."""
    raise ConnectionError("no route to db, password first-secret")


async def gives_up(info: RunInfo) -> None:
    """A cancellation that was not requested."""
    raise asyncio.CancelledError


class Broken:
    """A callable object."""

    def __call__(self, info: RunInfo) -> None:
        raise ValueError("broken")


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        (refuses, r"its deps factory refuses failed: ConnectionError: no route to db, password \[secret\]"),
        (exits, "its deps factory exits failed: SystemExit: 3"),
        (gives_up, "its deps factory gives_up failed: CancelledError"),
        (Broken(), "its deps factory Broken failed: ValueError: broken"),
        (dict, "its deps factory dict failed: TypeError"),
    ],
)
async def test_a_factory_that_fails_consumes_nothing(tmp_path: Path, factory: Any, words: str) -> None:
    """A `RunError` that names it: no run is stored at the start, and an answer to a pause is not used up."""
    seen, pay = recorder()
    path = tmp_path / "runs.db"
    failing = payer(pay, path, deps=factory, secrets=["first-secret"])

    with pytest.raises(RunError, match=f"Run 'r' was not started, and nothing is stored: {words}") as caught:
        await failing.execute("Pay.", run_id="r")

    assert caught.value.result is None

    with pytest.raises(UnknownRun):
        await SQLiteStore(path).load("r")

    paused = await payer(pay, path).execute("Pay.", run_id="r")
    before = await SQLiteStore(path).load("r")

    with pytest.raises(RunError, match=f"Run 'r' was not resumed, and it is unchanged: {words}") as caught:
        await failing.resume("r", {paused.pauses[0].id: True})

    assert caught.value.result.stop_reason == "paused"
    assert "first-secret" not in repr(caught.value.__cause__)
    assert await SQLiteStore(path).load("r") == before
    assert (await payer(pay, path).resume("r", {paused.pauses[0].id: True})).output == "done"
    assert len(seen) == 1


async def test_a_run_can_be_cancelled_while_its_deps_are_built() -> None:
    """The cancellation reaches the factory, and the run id stays free."""
    waiting = asyncio.Event()

    async def wait(info: RunInfo) -> None:
        waiting.set()
        await asyncio.Event().wait()

    executor = executor_for(ScriptedProvider("done"), deps=wait)
    running = asyncio.ensure_future(executor.execute("Go.", run_id="r"))
    await waiting.wait()
    running.cancel()

    with pytest.raises(asyncio.CancelledError):
        await running

    assert (await executor.execute("Go.", run_id="r", deps=1)).output == "done"

    with pytest.raises(RunExists):
        await executor.execute("Go.", run_id="r", deps=1)


def test_deps_of_an_executor_must_be_a_function() -> None:
    """A value belongs to `execute`."""
    with pytest.raises(DefinitionError, match=r"deps must be a function .* not {'db': 1}; pass .* execute\(deps=…\)"):
        executor_for(ScriptedProvider("done"), deps={"db": 1})
