"""`TemporalExecutor` without a server: what can be said offline is said at once, and nothing is lost."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import SecretStr
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from crew import Agent, ScriptedProvider
from crew.errors import InvalidInput, RunError
from crew.runs.events import Warned
from crew.runs.interfaces import RunInfo
from crew.store import SQLiteStore
from crew.temporal import TemporalExecutor
from crew.temporal.activities import CrewActivities
from crew.temporal.encoding import EffectInput, decode_outcome, decode_snapshot, encode_event
from crew.temporal.record_codec import CachedRecords
from crew.temporal.runtime import WorkerRuntime
from tests.support.providers import RecordingProvider


async def test_a_run_is_stored_before_its_workflow_is_started(tmp_path: Path) -> None:
    """If the server is not there, the error says how to start the run later; this process never drives it."""
    client = await Client.connect("127.0.0.1:9", lazy=True)
    store = SQLiteStore(tmp_path / "runs.db")
    executor = TemporalExecutor(client, Agent("clerk", model=ScriptedProvider("Hi.")), store=store)

    with pytest.raises(RunError, match="could not be started") as raised:
        await executor.execute("Hello.", run_id="r")

    assert "resume('r')" in str(raised.value)

    for request in (executor.resume("r"), executor.cancel("r")):
        with pytest.raises(RunError, match=r"server does not answer.*'r' is as it was"):
            await request

    record = await store.run("r")
    assert (record.info.status, record.state.driver, len(record.state.transcript)) == ("running", "temporal", 1)
    await executor.aclose()
    store.close()


async def test_deps_are_refused_before_anything_is_stored(tmp_path: Path) -> None:
    """They can't be sent to the workers; the error names the factory."""
    client = await Client.connect("127.0.0.1:9", lazy=True)
    store = SQLiteStore(tmp_path / "runs.db")
    executor = TemporalExecutor(client, Agent("clerk", model=ScriptedProvider("Hi.")), store=store)

    with pytest.raises(InvalidInput, match="factory"):
        await executor.execute("Hello.", run_id="r", deps=17)

    assert not (await store.runs()).runs
    await executor.aclose()
    store.close()


async def test_an_effect_whose_outcome_is_stored_is_not_performed_again(tmp_path: Path) -> None:
    """A worker may be lost after an effect and before its report: the next attempt returns the stored outcome."""
    client = await Client.connect("127.0.0.1:9", lazy=True)
    store, model = SQLiteStore(tmp_path / "runs.db"), RecordingProvider("Hi.")
    crew = Agent("clerk", model=model)
    executor, runtime = TemporalExecutor(client, crew, store=store), WorkerRuntime(crew, store=store)

    with pytest.raises(RunError):
        await executor.execute("Hello.", run_id="r")

    given = EffectInput(
        run_id="r", fingerprint=runtime.fingerprint, entries=[], kind="ask_model", path="r", key="r:1.ask_model@2"
    )
    outcomes = []

    for _ in range(2):  # each time in a worker that knows nothing of the other
        activities = CrewActivities(runtime, CachedRecords(store.effects()))
        outcomes.append(await ActivityEnvironment().run(activities.perform, given))

    assert len(model.requests) == 1
    assert outcomes[0] == outcomes[1]
    data = await store.effects().get("r", given.key)
    assert data is not None
    assert [event["kind"] for _, event in decode_outcome(data).events] == ["asked", "replied"]

    with pytest.raises(ApplicationError, match="another definition"):
        await ActivityEnvironment().run(activities.perform, replace(given, fingerprint="other"))

    await executor.aclose()
    await runtime.aclose()
    store.close()


async def test_looking_for_an_outcome_stores_what_the_run_recorded(tmp_path: Path) -> None:
    """The worker of a lost write may have been killed before it stored anything, and the workflow sends entries only
    until an activity has completed."""
    client = await Client.connect("127.0.0.1:9", lazy=True)
    store, crew = SQLiteStore(tmp_path / "runs.db"), Agent("clerk", model=ScriptedProvider("Hi."))
    executor, runtime = TemporalExecutor(client, crew, store=store), WorkerRuntime(crew, store=store)

    with pytest.raises(RunError):
        await executor.execute("Hello.", run_id="r")

    first, key = (await store.run("r")).state.sequence + 1, "r:1.ask_model@2"
    records = CachedRecords(store.effects())
    given = EffectInput(run_id="r", fingerprint=runtime.fingerprint, entries=[], kind="ask_model", path="r", key=key)
    await ActivityEnvironment().run(CrewActivities(runtime, records).perform, given)
    entries = [[False, first, key, 0, 0.0, 0.0], [True, first + 1, key, 1, 0.0, 0.0]]
    found = await ActivityEnvironment().run(
        CrewActivities(runtime, records).find, replace(given, entries=entries, key="r:2.run_call@9")
    )
    assert not found
    record = await store.run("r")
    assert (record.info.status, len(record.state.transcript)) == ("completed", 2)
    await executor.aclose()
    await runtime.aclose()
    store.close()


async def test_the_next_execution_continues_after_all_events(tmp_path: Path) -> None:
    """An event that no input event follows is stored before an execution ends, and its number is not used again."""
    client = await Client.connect("127.0.0.1:9", lazy=True)
    store, crew = SQLiteStore(tmp_path / "runs.db"), Agent("clerk", model=ScriptedProvider("Hi."))
    executor, runtime = TemporalExecutor(client, crew, store=store), WorkerRuntime(crew, store=store)

    with pytest.raises(RunError):
        await executor.execute("Hello.", run_id="r")

    number = (await store.run("r")).state.sequence + 1
    warned = Warned(run_id="r", agent="clerk", sequence=number, at=1.0, text="It is late.")
    given = EffectInput(
        run_id="r", fingerprint=runtime.fingerprint, entries=[[False, number, encode_event(warned)]], key="state@1"
    )
    await ActivityEnvironment().run(CrewActivities(runtime, CachedRecords(store.effects())).snapshot, given)
    assert (await store.events("r"))[-1].event == warned
    data = await store.effects().get("r", "state@1")
    assert data is not None
    assert decode_snapshot(data).sequence == number
    await executor.aclose()
    await runtime.aclose()
    store.close()


async def test_deps_are_built_once_and_their_secrets_are_removed_from_outcomes(tmp_path: Path) -> None:
    """Effects of one run at the same time share its deps; what the model or a tool repeats of them is not stored."""
    client = await Client.connect("127.0.0.1:9", lazy=True)
    built: list[str] = []

    async def build(info: RunInfo) -> SecretStr:
        built.append(info.run_id)
        await asyncio.sleep(0.1)
        return SecretStr("password-of-deps")

    store, crew = SQLiteStore(tmp_path / "runs.db"), Agent("clerk", model=ScriptedProvider("It is password-of-deps."))
    executor, runtime = TemporalExecutor(client, crew, store=store), WorkerRuntime(crew, store=store, deps=build)

    with pytest.raises(RunError):
        await executor.execute("Hello.", run_id="r")

    activities = CrewActivities(runtime, CachedRecords(store.effects()))
    given = EffectInput(run_id="r", fingerprint=runtime.fingerprint, entries=[], kind="ask_model", path="r")
    keys = ("r:1.ask_model@2", "r:1.ask_model@3")
    await asyncio.gather(*(ActivityEnvironment().run(activities.perform, replace(given, key=key)) for key in keys))
    assert built == ["r"]

    for key in keys:
        data = await store.effects().get("r", key) or b""
        assert b"It is [secret]." in data
        assert b"password" not in data

    await executor.aclose()
    await runtime.aclose()
    store.close()


async def test_deps_that_could_not_be_built_are_built_again(tmp_path: Path) -> None:
    """The effect fails with the reason, and the next attempt asks the factory once more."""
    client = await Client.connect("127.0.0.1:9", lazy=True)
    built: list[str] = []

    def build(info: RunInfo) -> str:
        built.append(info.run_id)

        if len(built) == 1:
            raise ValueError("no database")

        return "deps"

    store, crew = SQLiteStore(tmp_path / "runs.db"), Agent("clerk", model=ScriptedProvider("Hi."))
    executor, runtime = TemporalExecutor(client, crew, store=store), WorkerRuntime(crew, store=store, deps=build)

    with pytest.raises(RunError):
        await executor.execute("Hello.", run_id="r")

    activities, errors = CrewActivities(runtime, CachedRecords(store.effects())), []

    for key in ("r:1.ask_model@2", "r:1.ask_model@3"):
        given = EffectInput(
            run_id="r", fingerprint=runtime.fingerprint, entries=[], kind="ask_model", path="r", key=key
        )
        await ActivityEnvironment().run(activities.perform, given)
        errors.append(decode_outcome(await store.effects().get("r", key) or b"").error)

    assert "no database" in (errors[0] or {})["text"]
    assert errors[1] is None
    await executor.aclose()
    await runtime.aclose()
    store.close()
