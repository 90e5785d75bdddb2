"""Runs in a real PostgreSQL database: the contracts, races, lost connections and lost answers."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from crew import Agent, CrewExecutor, RunError, ScriptedProvider, call, tool
from crew.errors import DefinitionError, RunConflict, RunExists, StoreError, UnknownRun
from crew.messages import Transcript, UserMessage
from crew.runs import Finished, RunState
from crew.runs.interfaces import Cursor
from crew.runs.leases import RunLeases
from crew.store import PostgresStore, postgres_schema
from crew.store.postgres_server import PostgresServer
from tests.contracts.run_leases import RunLeasesContract, lease
from tests.contracts.run_reader import RunReaderContract
from tests.contracts.run_store import RunStoreContract, event, state
from tests.support.postgres import Postgres, PostgresUnavailable, running_postgres, running_proxy
from tests.support.servers import server_missing

pytestmark = pytest.mark.servers

NUMBERS = count()
Open = Callable[..., PostgresStore]


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    """A running server on a free port."""
    try:
        with running_postgres() as running:
            yield running
    except PostgresUnavailable as reason:
        server_missing("postgres", str(reason))


@pytest.fixture
def open_store(server: Postgres) -> Iterator[Open]:
    """Opens stores on one new schema; they are closed at the end."""
    schema, opened = f"test_{next(NUMBERS)}", []

    def open_one(port: int | None = None, **options: Any) -> PostgresStore:
        opened.append(PostgresStore(server.url(port), schema=schema, **options))
        return opened[-1]

    yield open_one

    for store in opened:
        store.close()


class TestPostgresStore(RunStoreContract):
    """The store for several machines."""

    @pytest.fixture
    def store(self, open_store: Open) -> PostgresStore:
        return open_store()


class TestPostgresReader(RunReaderContract):
    """Its reader."""

    @pytest.fixture
    def store(self, open_store: Open) -> PostgresStore:
        return open_store()


class TestPostgresLeases(RunLeasesContract):
    """Its leases; they lapse by the clock of the server."""

    @pytest.fixture
    def store(self, open_store: Open) -> PostgresStore:
        return open_store()

    @pytest.fixture
    def leases(self, store: PostgresStore) -> RunLeases:
        return store.leases()

    @pytest.fixture
    def lapse(self, store: PostgresStore) -> Callable[[], Awaitable[Any]]:
        earlier = "UPDATE {schema}.leases SET expires = expires - interval '16 seconds'"
        return lambda: store._server.run(store._server.fetch(earlier))

    async def test_one_of_eight_processes_takes_a_lease(self, open_store: Open) -> None:
        """At the same time, also one that lapsed."""
        stores = [open_store() for _ in range(8)]

        for run_id in map(str, range(5)):
            outcomes = await asyncio.gather(
                *(one.leases().acquire(lease(str(n), run_id)) for n, one in enumerate(stores))
            )
            assert outcomes.count(None) == 1


def turn(number: int, before: RunState | None = None, run_id: str = "") -> RunState:
    """A finished run that continues another one."""
    older = tuple(before.transcript) if before else ()
    run_id = run_id or f"t{number}"
    fresh = [UserMessage(f"question {number}", id=f"{run_id}:{len(older)}", time=1.0)]
    return replace(
        state(run_id),
        transcript=Transcript([*older, *fresh]),
        inherited_messages=len(older),
        parent_run=before.run_id if before else "",
        conversation_id="t0",
        next=Finished(stop_reason="completed"),
    )


async def rows(store: PostgresStore, table: str) -> int:
    found = await store._server.run(store._server.fetch(f"SELECT count(*) FROM {{schema}}.{table}"))
    return int(found[0][0])


# ------------------------------------------------------------------------------------------ one statement a commit


async def test_commit_is_one_round_trip(server: Postgres, open_store: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also the first commit after a load, and the first commit of a run that continues another one."""
    monkeypatch.setattr(PostgresServer, "notify_soon", lambda self, run_id: None)  # sent later, for many commits
    async with running_proxy(server.port) as proxy:
        store = open_store(proxy.port, pool_size=1)
        counts: list[int] = []

        async def commit(run_id: str, version: int, new: RunState) -> None:
            before = proxy.round_trips
            await store.commit(run_id, version, [event()], new)
            counts.append(proxy.round_trips - before)

        # A connection prepares each statement when it uses it first.
        first = turn(0)
        await commit("t0", 0, first)
        second = turn(1, first)
        await commit("t1", 0, second)
        await commit("r", 0, state())
        await commit("r", 1, state())
        counts.clear()
        await commit("t2", 0, turn(2, second))
        await commit("r", 2, state())
        await commit("s", 0, state("s"))
        other = open_store(proxy.port, pool_size=1)
        await other.commit("x", 0, [], state("x"))
        await other.commit("x", 1, [], state("x"))
        await other.load("r")
        store = other
        await commit("r", 3, state())
        assert counts == [1, 1, 1, 1]
        await asyncio.to_thread(store.close)


async def test_message_of_a_conversation_is_stored_once(open_store: Open) -> None:
    """A run that continues a finished one appends to its messages; a second continuation forks."""
    store = open_store()
    turns = [turn(0)]
    await store.commit("t0", 0, [], turns[0])

    for number in range(1, 20):
        turns.append(turn(number, turns[-1]))
        await store.commit(f"t{number}", 0, [], turns[-1])

    assert await rows(store, "messages") == 20
    fork = turn(7, turns[3], "fork")
    await store.commit("fork", 0, [], fork)
    again = turn(8, fork, "again")
    await store.commit("again", 0, [], again)
    short = turn(9, turns[1], "short")
    await store.commit("short", 0, [], short)
    assert (await rows(store, "messages"), await rows(store, "paths")) == (23, 2)

    for one in (*turns, fork, again, short):
        assert (await store.run(one.run_id)).state == one


async def test_runs_that_continue_one_run_at_once_fork(open_store: Open) -> None:
    """Each one has its own messages after those that they share."""
    stores = [open_store() for _ in range(6)]
    first = turn(0)
    await stores[0].commit("t0", 0, [], first)
    turns = [turn(n, first, f"next{n}") for n in range(6)]
    await asyncio.gather(*(store.commit(one.run_id, 0, [], one) for store, one in zip(stores, turns, strict=True)))
    assert (await rows(stores[0], "messages"), await rows(stores[0], "paths")) == (7, 5)

    for one in turns:
        assert (await stores[0].run(one.run_id)).state == one


async def test_result_of_another_store_is_stored_whole(open_store: Open) -> None:
    """If the run that is continued is not stored here, or is another one with the same id."""
    store = open_store()
    await store.commit("t0", 0, [], turn(5, run_id="t0"))
    unknown, other = turn(1, turn(3)), turn(2, turn(0))

    for one in (unknown, other):
        await store.commit(one.run_id, 0, [], one)
        assert (await store.run(one.run_id)).state == one

    assert await rows(store, "messages") == 5


# ------------------------------------------------------------------------------------------ races


@pytest.mark.parametrize("writers", [2, 8])
async def test_one_of_several_writers_at_a_version_wins(open_store: Open, writers: int) -> None:
    """The others get a conflict, and nothing of theirs is stored."""
    stores = [open_store() for _ in range(writers)]
    created = await asyncio.gather(
        *(store.commit("r", 0, [event()], state()) for store in stores), return_exceptions=True
    )
    assert sum(one is None for one in created) == 1
    assert sum(isinstance(one, RunExists) for one in created) == writers - 1

    for version in range(1, 6):
        outcomes = await asyncio.gather(
            *(store.commit("r", version, [event()], state(sequence=n)) for n, store in enumerate(stores)),
            return_exceptions=True,
        )
        [winner] = [n for n, outcome in enumerate(outcomes) if outcome is None]
        assert sum(isinstance(one, RunConflict) for one in outcomes) == writers - 1
        found = await stores[0].load("r")
        assert (found.version, found.state.sequence) == (version + 1, winner)

    assert await rows(stores[0], "events") == 6


async def test_processes_that_start_at_once_create_the_tables_once(open_store: Open) -> None:
    """One creates them under a lock, the others wait."""
    stores = [open_store() for _ in range(8)]
    await asyncio.gather(*(store.commit(f"r{n}", 0, [], state(f"r{n}")) for n, store in enumerate(stores)))
    assert (await rows(stores[0], "layout"), await rows(stores[0], "runs")) == (1, 8)


async def test_older_layout_is_migrated_once(open_store: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the first of several processes; the runs stay. A layout of a later release is refused."""
    await open_store().commit("r", 0, [], state())

    async def added(connection: Any, schema: str) -> None:
        await connection.execute(f"CREATE TABLE {schema}.added (n integer); INSERT INTO {schema}.added VALUES (1);")

    newest = len(postgres_schema.MIGRATIONS)

    with monkeypatch.context() as later_release:
        later_release.setattr(postgres_schema, "MIGRATIONS", (*postgres_schema.MIGRATIONS, added))
        stores = [open_store() for _ in range(4)]
        found = await asyncio.gather(*(store.load("r") for store in stores))
        assert {one.version for one in found} == {1}
        assert await rows(stores[0], "added") == 1

    with pytest.raises(StoreError, match=rf"has layout {newest + 1} in the schema .* knows layouts up to {newest}"):
        await open_store().load("r")


async def test_migration_may_take_longer_than_a_statement(open_store: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that migrates, and one that waits for it, have no time limit."""
    await open_store().commit("r", 0, [], state())

    async def slow(connection: Any, schema: str) -> None:
        await connection.execute("SELECT pg_sleep(1)")

    monkeypatch.setattr("crew.store.postgres_server.COMMAND_SECONDS", 0.5)
    monkeypatch.setattr(postgres_schema, "MIGRATIONS", (*postgres_schema.MIGRATIONS, slow))
    stores = [open_store(reconnect_seconds=0) for _ in range(2)]
    # Only opened: a statement afterwards may take longer than 0.5 s on a busy machine.
    assert all(await asyncio.gather(*(store._server.run(store._server._open()) for store in stores)))


async def test_tables_that_are_only_read_are_neither_created_nor_migrated_nor_changed(open_store: Open) -> None:
    """`crew inspect` of a database that a running service uses, perhaps of an earlier release."""
    with pytest.raises(StoreError, match="holds no runs in the schema"):
        await open_store(read_only=True).runs()

    writer = open_store()
    await writer.commit("r", 0, [event(1)], state())
    reader = open_store(read_only=True)
    assert [info.run_id for info in (await reader.runs()).runs] == ["r"]
    assert await reader.wait_for_events("r", timeout=5)
    assert await reader.leases().find("r") is None

    with pytest.raises(StoreError, match="read-only transaction"):
        await reader.forget("r")

    await writer._server.run(writer._server.fetch("UPDATE {schema}.layout SET version = 1"))

    with pytest.raises(StoreError, match="has layout 1, which a crew of this release would migrate"):
        await open_store(read_only=True).runs()

    assert (await writer.run("r")).info.version == 1


async def test_metadata_of_an_older_layout_is_found(open_store: Open) -> None:
    """Layout 1 had no table for it."""
    store = open_store()
    executor = CrewExecutor(Agent("a", model=ScriptedProvider("Yes.")), store=store)
    await executor.execute("Ready?", run_id="r", metadata={"shop": "south", "n": 3})
    await store._server.run(store._server.fetch("DROP TABLE {schema}.metadata, {schema}.effects"))
    await store._server.run(store._server.fetch("UPDATE {schema}.layout SET version = 1"))
    migrated = open_store()
    assert [info.run_id for info in (await migrated.runs(metadata={"shop": "south", "n": 3})).runs] == ["r"]
    assert (await migrated.runs(metadata={"shop": "north"})).runs == ()


# ------------------------------------------------------------------------------------------ lost connections


class Ledger:
    """A crew whose tool writes numbers down and then does something to the server or the connection."""

    def __init__(self, writes: int, trouble: Callable[[int], None] = lambda n: None) -> None:
        self.written: list[int] = []

        @tool
        async def write(n: int) -> str:
            """Write a number down."""
            self.written.append(n)
            await asyncio.to_thread(trouble, n)
            return f"wrote {n}"

        script = ScriptedProvider(*(call("write", n=n) for n in range(writes)), "done")
        self.agent = Agent("writer", model=script, tools=[write])


@pytest.mark.parametrize("mode", ["fast", "immediate"])
async def test_run_goes_on_after_the_server_restarted(server: Postgres, open_store: Open, mode: str) -> None:
    """Stopped and started in the middle of a run; `immediate` is a crash."""

    def restart(n: int) -> None:
        if n == 2:
            server.stop(mode)
            server.start()

    ledger, store = Ledger(5, restart), open_store()
    result = await CrewExecutor(ledger.agent, store=store).execute("Write.", run_id="r")
    assert (result.output, ledger.written) == ("done", [0, 1, 2, 3, 4])
    record = await store.run("r")
    assert (record.info.status, record.state) == ("completed", result.state)


async def test_commit_waits_for_a_server_that_is_down(server: Postgres, open_store: Open) -> None:
    """It is down when the commit starts, and up again a moment later."""
    store = open_store()
    await store.commit("r", 0, [event()], state())
    server.stop()
    commit = asyncio.ensure_future(store.commit("r", 1, [event()], state(sequence=7)))
    await asyncio.sleep(0.3)
    assert not commit.done()
    await asyncio.to_thread(server.start)
    await commit
    assert (await store.load("r")).state.sequence == 7


async def test_run_can_be_resumed_if_the_server_stays_down(server: Postgres, open_store: Open) -> None:
    """After `reconnect_seconds` the run fails; no write is repeated. Its lease, not released, lapses or is taken."""
    ledger = Ledger(4, lambda n: server.stop() if n == 1 and len(ledger.written) == 2 else None)
    executor = CrewExecutor(ledger.agent, store=open_store(reconnect_seconds=0.5))

    try:
        with pytest.raises(RunError, match=r"could not be stored: Can't connect to postgresql://127.0.0.1:\d+/"):
            await executor.execute("Write.", run_id="r")
    finally:
        await asyncio.to_thread(server.start)

    other = CrewExecutor(ledger.agent, store=open_store())
    paused = await other.resume("r", take_over=True)
    assert [pause.reason for pause in paused.pauses] == ["in_doubt"]
    result = await other.resume("r", {paused.pauses[0].id: {"done": "it was written"}})
    assert (result.output, ledger.written) == ("done", [0, 1, 2, 3])


@pytest.mark.parametrize("version", [0, 1], ids=["first commit", "later commit"])
async def test_commit_whose_answer_is_lost_is_recognised(server: Postgres, open_store: Open, version: int) -> None:
    """The server stored it and the connection broke: the repeated commit is not a conflict, and is stored once."""
    async with running_proxy(server.port) as proxy:
        store = open_store(proxy.port, pool_size=1)

        for n in range(2):  # prepares the statements
            await store.commit("warm", n, [], state("warm"))

        if version:
            await store.commit("r", 0, [], state())

        proxy.lose_answer = proxy.answers + 1
        await store.commit("r", version, [event()], state(sequence=9))
        assert proxy.answers > proxy.lose_answer
        assert await rows(store, "events") == 1
        found = await store.load("r")
        assert (found.version, found.state.sequence) == (version + 1, 9)
        await store.commit("r", version + 1, [event()], state(sequence=10))
        await store.append_events("r", version + 2, [event()])
        proxy.lose_answer = proxy.answers + 1
        await store.append_events("r", version + 2, [event()])
        assert await rows(store, "events") == 4

        # The commit of another process is still a conflict.
        await open_store().commit("r", version + 2, [], state(sequence=11))
        proxy.lose_answer = proxy.answers + 1

        with pytest.raises(RunConflict):
            await store.commit("r", version + 2, [event()], state(sequence=12))

        await asyncio.to_thread(store.close)


async def test_events_whose_append_lost_its_answer_are_stored_once(
    server: Postgres, open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server stored them, but could not be reached again: the next commit, or append, leaves them out."""
    store = open_store()
    await store.commit("r", 0, [event(1)], state())
    fetch = store._server.fetch

    async def lose_the_answer(statement: str, *values: object) -> Any:
        await fetch(statement, *values)
        raise StoreError("", "lost")

    async def lose_the_request(statement: str, *values: object) -> Any:
        raise StoreError("", "lost")

    version = 1

    for lose in (lose_the_answer, lose_the_request):
        monkeypatch.setattr(store._server, "fetch", lose)

        with pytest.raises(StoreError):
            await store.append_events("r", version, [event(2), event(3)])

        monkeypatch.undo()
        await store.commit("r", version, [event(2), event(3), event(4)], state(sequence=4))
        version += 1

    stored = [(str(one.cursor), one.event.sequence) for one in await store.events("r")]
    first, second = [("1.0", 1), ("1.1", 2), ("1.2", 3), ("2.0", 4)], [("3.0", 2), ("3.1", 3), ("3.2", 4)]
    assert stored == [*first, *second]


async def test_run_survives_every_lost_answer(server: Postgres, open_store: Open) -> None:
    """Whichever answer is lost, from the first connection to the last commit: every write happens once."""
    async with running_proxy(server.port) as proxy:
        whole = open_store(proxy.port, pool_size=1)
        await CrewExecutor(Ledger(2).agent, store=whole).execute("Write.", run_id="whole")
        events = len(await whole.events("whole"))
        await asyncio.to_thread(whole.close)
        lost = 0

        while True:
            lost += 1
            store, ledger, run_id = open_store(proxy.port, pool_size=1), Ledger(2), f"r{lost}"
            await store.runs()  # opens the pool; an address that never answered is not tried again
            proxy.lose_answer = proxy.answers + lost
            result = await CrewExecutor(ledger.agent, store=store).execute("Write.", run_id=run_id)
            assert (result.output, ledger.written) == ("done", [0, 1])
            assert len(await store.events(run_id)) == events
            was_lost = proxy.answers >= proxy.lose_answer
            await asyncio.to_thread(store.close)

            if not was_lost:
                break

        assert lost > 8


async def test_cut_connections_do_not_fail_concurrent_runs(server: Postgres, open_store: Open) -> None:
    """Twenty runs on four connections, all of which are cut several times."""
    async with running_proxy(server.port) as proxy:
        loop = asyncio.get_running_loop()
        ledgers = [Ledger(4, lambda n: n == 2 and loop.call_soon_threadsafe(proxy.cut)) for _ in range(20)]
        store = open_store(proxy.port, pool_size=4)
        results = await asyncio.gather(
            *(CrewExecutor(one.agent, store=store).execute("Write.", run_id=f"r{n}") for n, one in enumerate(ledgers))
        )
        assert {result.output for result in results} == {"done"}
        assert [one.written for one in ledgers] == [[0, 1, 2, 3]] * 20
        await asyncio.to_thread(store.close)


# ------------------------------------------------------------------------------------------ notifications


async def test_events_of_another_process_end_a_wait(open_store: Open) -> None:
    """A reader waits for the next event without asking again and again."""
    writer, reader = open_store(), open_store()
    await writer.commit("r", 0, [event()], state())
    await reader.wait_for_events("r")
    waiting = asyncio.ensure_future(reader.wait_for_events("r", Cursor(1, 0)))
    await writer.commit("other", 0, [event()], state("other"))
    await asyncio.sleep(0.2)
    assert not waiting.done()
    await writer.commit("r", 1, [event()], state())
    await asyncio.wait_for(waiting, 5)
    appended = asyncio.ensure_future(reader.wait_for_events("r", Cursor(2, 0)))
    await writer.append_events("r", 2, [event()])
    await asyncio.wait_for(appended, 5)


async def test_lost_notification_delays_a_wait_only(open_store: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process may end between its commit and its notification."""
    writer, reader = open_store(), open_store()
    await writer.commit("r", 0, [event()], state())
    waiting = asyncio.ensure_future(reader.wait_for_events("r", Cursor(1, 0)))
    await asyncio.sleep(0.2)
    monkeypatch.setattr(PostgresServer, "notify_soon", lambda self, run_id: None)
    await writer.commit("r", 1, [event()], state())
    await asyncio.wait_for(waiting, 10)


async def test_notification_is_not_missed_over_a_restart(server: Postgres, open_store: Open) -> None:
    """The connection that receives them is opened again, and each wait looks for what it missed."""
    writer, reader = open_store(), open_store()
    await writer.commit("r", 0, [event()], state())
    await reader.wait_for_events("r")
    waiting = asyncio.ensure_future(reader.wait_for_events("r", Cursor(1, 0)))
    await asyncio.sleep(0.2)
    server.stop()
    server.start()
    await writer.commit("r", 1, [event()], state())
    await asyncio.wait_for(waiting, 10)


async def test_request_to_cancel_is_noticed_at_once(open_store: Open) -> None:
    """The owner need not wait until it looks for requests again."""
    owner, other = open_store().leases(), open_store().leases()
    await owner.acquire(lease("a"))
    await owner.wait_for_requests(0.01)
    assert list(await owner.cancel_requests([lease("a")])) == []

    while not await owner.cancel_requests([lease("a")]):  # a connection that begins to listen ends a wait too
        waiting = asyncio.ensure_future(owner.wait_for_requests(60))
        await asyncio.sleep(0.3)

        if not waiting.done():
            await other.request_cancel("r")

        await asyncio.wait_for(waiting, 10)


async def test_closed_store_ends_a_wait_with_an_error(open_store: Open) -> None:
    """Not with a hang; later calls get the same error."""
    store = open_store()
    await store.commit("r", 0, [], state())
    waiting = asyncio.ensure_future(store.wait_for_events("r"))
    await asyncio.sleep(0.1)
    await asyncio.to_thread(store.close)

    with pytest.raises(StoreError, match="is closed"):
        await waiting

    with pytest.raises(StoreError, match="is closed"):
        await store.load("r")


# ------------------------------------------------------------------------------------------ use


def test_store_serves_several_threads_and_loops(open_store: Open) -> None:
    """One after the other, and at the same time; all use one pool."""
    store = open_store(pool_size=2)

    def run(n: int) -> None:
        executor = CrewExecutor(Ledger(2).agent, store=store)
        outputs.append(executor.execute_sync("Write.", run_id=f"sync{n}").output)
        outputs.append(asyncio.run(executor.execute("Write.", run_id=f"async{n}")).output)

    outputs: list[Any] = []
    threads = [threading.Thread(target=run, args=(n,)) for n in range(4)]

    for thread in threads:
        thread.start()

    for thread in threads:
        thread.join()

    assert outputs == ["done"] * 8
    assert len(asyncio.run(store.runs()).runs) == 8


async def test_unreachable_server_is_an_error_without_the_password() -> None:
    """It names the address and comes at once."""
    store = PostgresStore("postgresql://crew:secret-word@127.0.0.1:9/runs")

    with pytest.raises(StoreError, match=r"Can't connect to postgresql://127.0.0.1:9/runs: .* Is the server") as caught:
        await asyncio.wait_for(store.load("r"), 5)

    assert "secret-word" not in str(caught.value)
    assert caught.value.run_id == "r"
    await asyncio.to_thread(store.close)


async def test_cancelled_call_holds_no_lock(open_store: Open) -> None:
    """A new statement is prepared first, in a message of its own: after it, its transaction is open."""
    store, other = open_store(), open_store()
    await store.runs()  # not a commit: its notification would use the connection again
    server = store._server

    async def cancel_after_prepare() -> None:
        prepared = asyncio.Event()

        async def prepare(connection: Any) -> None:
            await connection.prepare(server.sql("SELECT run_id FROM {schema}.leases"))
            prepared.set()
            await asyncio.Event().wait()

        task = asyncio.get_running_loop().create_task(server.call(prepare))
        await prepared.wait()
        task.cancel()
        await asyncio.wait([task])

    await server.run(cancel_after_prepare())
    open_transactions = "SELECT query FROM pg_stat_activity WHERE xact_start IS NOT NULL AND query LIKE '%.leases'"

    async with asyncio.timeout(20):  # the server notices a moment later that the connection has ended
        while await other._server.run(other._server.fetch(open_transactions)):
            await asyncio.sleep(0.05)

    assert not (await store.runs()).runs


async def test_slow_statement_is_not_reported_as_a_lost_server(
    open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another session may hold a lock: the error says so, and does not ask whether the server runs."""
    holder = open_store()
    await holder.commit("r", 0, [], state())
    monkeypatch.setattr("crew.store.postgres_server.COMMAND_SECONDS", 0.5)
    store = open_store(reconnect_seconds=0)

    async def locked(connection: Any) -> None:
        async with connection.transaction():
            await connection.execute(holder._server.sql("LOCK TABLE {schema}.runs IN ACCESS EXCLUSIVE MODE"))

            with pytest.raises(StoreError, match=r"127\.0\.0\.1.* did not answer a statement within 0\.5 s") as caught:
                await store.load("r")

            assert "Is the server running" not in str(caught.value)

    await holder._server.run(holder._server.call(locked))


async def test_unreadable_run_names_server_and_run(open_store: Open) -> None:
    """A damaged state is a `StoreError`; a run that is not there is `UnknownRun`."""
    store = open_store()
    await store.commit("r", 0, [], state())
    await store._server.run(store._server.fetch("UPDATE {schema}.runs SET state = '\\x7b'"))

    with pytest.raises(StoreError, match=r"Run 'r' can't be loaded: .*not valid JSON"):
        await store.load("r")

    with pytest.raises(UnknownRun):
        await store.load("nothing")


def postgres_threads() -> set[threading.Thread]:
    """The threads of all stores in this process."""
    return {thread for thread in threading.enumerate() if thread.name.startswith("crew-postgres")}


async def test_executor_takes_a_url_with_options(server: Postgres) -> None:
    """In Python and YAML alike; the executor opens the store and closes it."""
    url = f"{server.url()}&pool_size=2&schema=by_url&reconnect_seconds=5"
    before = postgres_threads()

    async with CrewExecutor(Ledger(2).agent, store=url) as executor:
        assert (await executor.execute("Write.", run_id="r")).output == "done"

    assert postgres_threads() <= before
    store = PostgresStore(server.url(), schema="by_url")
    assert (await store.run("r")).info.status == "completed"
    store.close()

    with pytest.raises(DefinitionError, match="pool_size in the URL must be a whole number, not 'many'"):
        CrewExecutor(Ledger(2).agent, store=f"{server.url()}&pool_size=many")


async def test_misspelt_option_of_a_url_is_named(server: Postgres) -> None:
    """The server refuses it; the error says what is accepted instead."""
    async with CrewExecutor(Ledger(2).agent, store=f"{server.url()}&aplication_name=shop") as executor:
        with pytest.raises(StoreError, match=r"unknown option 'aplication_name'\. Did you mean 'application_name'"):
            await executor.execute("Write.")


def test_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the command that installs it."""
    monkeypatch.setitem(sys.modules, "asyncpg", None)

    with pytest.raises(StoreError, match=r"pip install 'crew-executor\[postgres\]'"):
        PostgresStore("postgresql://127.0.0.1/runs")


@pytest.mark.parametrize("options", [{"pool_size": 0}, {"schema": "No; good"}, {"schema": "x" * 41}])
def test_wrong_options_are_refused(options: dict[str, Any]) -> None:
    """Before anything connects."""
    with pytest.raises(DefinitionError):
        PostgresStore("postgresql://127.0.0.1/runs", **options)


async def test_a_url_names_the_store_in_python_and_in_a_file(
    server: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The executor opens it, closes it, and opens it again; the password of a URL in a file stays out of errors."""
    before = postgres_threads()
    monkeypatch.setenv("RUNS_URL", server.url())
    config = tmp_path / "config.yaml"
    config.write_text("store: ${RUNS_URL}\n", encoding="utf-8")
    agent = Agent("clerk", model=ScriptedProvider(call("pay"), "done"), tools=[tool(approval=True)(pay)])

    async with CrewExecutor(agent, store=server.url()) as executor:
        paused = await executor.execute("Pay.")
        await executor.aclose()
        assert (await executor.resume(paused.run_id)).stop_reason == "paused"

    async with CrewExecutor.from_config(config, agent) as executor:
        result = await executor.resume(paused.run_id, {paused.pauses[0].id: True})

    assert result.output == "done"
    assert postgres_threads() <= before


def pay() -> str:
    """Pay."""
    return "paid"
