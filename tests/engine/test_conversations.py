"""`execute(conversation=…)`: stored conversations, continued turn by turn."""

from __future__ import annotations

import asyncio
import gc
import sqlite3
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from crew import Agent, Crew, CrewExecutor, RunError, RunResult, ScriptedProvider, call, handoff, recall, tool
from crew.engine import unstored_events
from crew.engine.conversations import Claims, Conversations, Turn
from crew.errors import (
    ConversationBusy,
    ConversationPaused,
    InvalidInput,
    MessageNotLoaded,
    RunActive,
    RunConflict,
    RunExpired,
    UnknownRun,
)
from crew.history import Rolling, Summarize
from crew.interfaces import ModelRequest, Policy
from crew.messages import ToolMessage
from crew.runs import RunStore
from crew.runs.events import RunFinished, Warned
from crew.runs.interfaces import StoredRun
from crew.runs.state import RunState
from crew.store import MemoryStore, SQLiteStore
from tests.support.providers import HangingProvider, RecordingProvider
from tests.support.stores import JsonStore


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RunStore]:
    if request.param == "memory":
        yield MemoryStore()
        return

    made = SQLiteStore(tmp_path / "runs.db")
    yield made
    made.close()


def count_messages(request: ModelRequest) -> str:
    return f"I see {len(request.messages)} messages."


def chat(store: Any, model: Any = None, **options: Any) -> CrewExecutor:
    return CrewExecutor(Agent("a", model=model or ScriptedProvider(count_messages)), store=store, **options)


async def talk(executor: CrewExecutor, turns: int, id: str = "customer-42") -> list[RunResult]:
    return [await executor.execute(f"Question {turn}.", conversation=id) for turn in range(turns)]


# ------------------------------------------------------------------------------------------ continuing


async def test_turn_continues_the_stored_conversation(store: Any) -> None:
    """A new executor finds the history; each turn is one run of the conversation."""
    [first] = await talk(chat(store), 1)
    second = await chat(store).execute("Next.", conversation="customer-42")
    assert second.output == "I see 3 messages."
    assert second.conversation_id == first.conversation_id == "customer-42"
    assert (first.state.turn, second.state.turn, second.state.parent_run) == (1, 2, first.run_id)


async def test_conversations_are_separate(store: Any) -> None:
    """Another id begins a new conversation."""
    executor = chat(store)
    await talk(executor, 2, "one")
    [other] = await talk(executor, 1, "two")
    assert other.output == "I see 1 messages."


def test_stream_and_sync_continue_conversations_too(store: Any) -> None:
    """All three ways to start a run accept `conversation`."""
    executor = chat(store)
    executor.execute_sync("One.", conversation="c")

    async def stream() -> str:
        async with executor.execute_stream("Two.", conversation="c") as events:
            kinds = [event.kind async for event in events]

        assert kinds[0] == "run_started"
        return str(events.result.output)

    assert asyncio.run(stream()) == "I see 3 messages."


async def test_plain_run_can_be_continued_as_a_conversation(store: Any) -> None:
    """The conversation of a run without `conversation` has the run's id."""
    executor = chat(store)
    first = await executor.execute("One.", run_id="r1")
    second = await executor.execute("Two.", conversation=first.conversation_id)
    assert second.output == "I see 3 messages."
    assert (await executor.execute("Three.", conversation="r1")).output == "I see 5 messages."


def two_agents(model: Any) -> list[Agent]:
    return [Agent("triage", model=model, handoffs=[handoff("billing")]), Agent("billing", model=model)]


def transfers(request: ModelRequest) -> Any:
    return call("transfer_to_billing") if request.agent == "triage" else f"{request.agent} answers"


async def test_next_turn_starts_with_the_agent_that_answered_last(store: Any) -> None:
    """After a handoff the user stays with the agent that took over, unless `agent` is given."""
    executor = CrewExecutor(Crew("shop", agents=two_agents(ScriptedProvider(transfers))), store=store)
    first = await executor.execute("Refund, please.", conversation="c")
    second = await executor.execute("Thanks.", conversation="c")
    assert (first.agent, second.agent) == ("billing", "billing")
    assert second.usage.requests == 1
    assert (await executor.execute("Again.", conversation="c", agent="triage")).usage.requests == 2


async def test_missing_last_agent_is_replaced_by_the_entry_with_a_warning(store: Any) -> None:
    """The crew changed between two turns: the conversation goes on with the entry."""
    await CrewExecutor(Crew("shop", agents=two_agents(ScriptedProvider(transfers))), store=store).execute(
        "Refund, please.", conversation="c"
    )
    seen: list[Any] = []
    smaller = Crew("shop", agents=[Agent("triage", model=ScriptedProvider(lambda request: "triage answers"))])
    result = await CrewExecutor(smaller, store=store, observers=[seen.append]).execute("Hello?", conversation="c")
    assert (result.agent, result.output) == ("triage", "triage answers")
    assert any("no longer has the agent 'billing'" in event.text for event in seen if isinstance(event, Warned))


# ------------------------------------------------------------------------------------------ refused


async def test_conversation_belongs_to_one_crew(store: Any) -> None:
    """Another crew would not know its agents and tools."""
    await talk(chat(store), 1)
    other = CrewExecutor(Agent("b", model=ScriptedProvider("Hi.")), store=store)

    with pytest.raises(InvalidInput, match="belongs to the crew 'a', not to 'b'"):
        await other.execute("Hello.", conversation="customer-42")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"conversation": "with space"}, "The conversation id must be 1–128 characters"),
        ({"conversation": "c", "history": []}, "conversation= and history= are both given"),
        ({"conversation": "c", "on_busy": "queue"}, "on_busy must be 'error' or 'wait', not 'queue'"),
        ({"conversation": "c", "on_paused": True}, "on_paused must be 'error' or 'cancel', not True"),
    ],
)
async def test_bad_arguments_are_refused(arguments: dict[str, Any], text: str) -> None:
    """Before anything is stored; the error names the value and what is accepted."""
    with pytest.raises(InvalidInput, match=text):
        await chat(MemoryStore()).execute("Hi.", **arguments)


async def test_store_that_can_not_load_conversations_is_refused() -> None:
    """A store with `commit` and `load` alone does not find the last turn."""
    with pytest.raises(InvalidInput, match="The store JsonStore can't load conversations"):
        await chat(JsonStore()).execute("Hi.", conversation="c")


# ------------------------------------------------------------------------------------------ busy


async def test_second_turn_at_the_same_time_is_refused(store: Any) -> None:
    """Two turns would answer the same history; also from another executor."""
    slow = HangingProvider()
    first = asyncio.ensure_future(chat(store, slow).execute("One.", conversation="c"))
    await slow.asked.wait()

    with pytest.raises(ConversationBusy):
        await chat(store).execute("Two.", conversation="c")

    first.cancel()
    await asyncio.wait([first])


async def test_waiting_turns_follow_each_other_in_order(store: Any) -> None:
    """With `on_busy="wait"` each turn sees those before it; a waiting turn that is cancelled is left out."""
    release, model = asyncio.Event(), RecordingProvider(count_messages)

    class Slow(RecordingProvider):
        async def complete(self, request: ModelRequest, on_delta: Any = None) -> Any:
            await release.wait()
            return await model.complete(request, on_delta)

    executors = [chat(store, Slow()) for _ in range(2)]
    tasks = []

    for number in range(5):
        work = executors[number % 2].execute(f"Turn {number}.", conversation="c", on_busy="wait")
        tasks.append(asyncio.ensure_future(work))
        await asyncio.sleep(0)

    await asyncio.sleep(0)
    tasks[2].cancel()
    release.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(results.pop(2), asyncio.CancelledError)
    assert [result.output for result in results if isinstance(result, RunResult)] == [
        f"I see {size} messages." for size in (1, 3, 5, 7)
    ]
    asked = [request.messages[-1] for request in model.requests]
    assert [message.text for message in asked if message.role == "user"] == [f"Turn {n}." for n in (0, 1, 3, 4)]


def test_threads_wait_for_each_other(store: Any) -> None:
    """Executors of several threads share a store: no turn is lost."""
    outputs: list[str] = []

    def work() -> None:
        executor = chat(store)
        outputs.extend(
            str(executor.execute_sync(f"Turn {n}.", conversation="c", on_busy="wait").output) for n in range(5)
        )

    threads = [threading.Thread(target=work) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert sorted(outputs) == sorted(f"I see {min(2 * n + 1, 50)} messages." for n in range(20))


async def test_a_turn_whose_event_loop_was_closed_does_not_keep_the_conversation() -> None:
    """It waited when its loop was closed: the turn before it ends without an error, and the next one is admitted."""
    claims, store = Claims(), MemoryStore()
    waiting: list[asyncio.Task[None]] = []

    async def wait() -> None:
        async with claims.claim(store, Turn(conversation_id="c", on_busy="wait")):
            pass

    def wait_in_another_loop() -> None:
        loop = asyncio.new_event_loop()
        waiting.append(loop.create_task(wait()))
        loop.call_soon(loop.stop)
        loop.run_forever()
        loop.close()

    async with claims.claim(store, Turn(conversation_id="c")):
        await asyncio.to_thread(wait_in_another_loop)

    async with claims.claim(store, Turn(conversation_id="c")):
        waiting[0]._log_destroy_pending = False  # type: ignore[attr-defined]  # asyncio logs such a task as an error
        waiting.clear()
        gc.collect()

        with pytest.raises(ConversationBusy):
            await claims.claim(store, Turn(conversation_id="c")).__aenter__()


@pytest.mark.parametrize("is_resumed", [False, True])
async def test_turn_inside_a_turn_of_its_conversation_does_not_wait_for_it(store: Any, is_resumed: bool) -> None:
    """A tool that executes a turn of its own conversation would wait for ever; another conversation is free."""
    errors: list[ConversationBusy] = []

    @tool(approval=is_resumed)
    async def ask() -> str:
        """Ask the same crew."""
        try:
            await executor.execute("Inside.", conversation="c", on_busy="wait")
        except ConversationBusy as error:
            errors.append(error)

        return str((await executor.execute("Inside.", conversation="d", on_busy="wait")).output)

    def reply(request: ModelRequest) -> Any:
        last = request.messages[-1]
        return call("ask") if last.role == "user" and last.text == "Outside." else "Done."

    executor = CrewExecutor(Agent("a", model=ScriptedProvider(reply), tools=[ask]), store=store)

    async with asyncio.timeout(60):
        result = await executor.execute("Outside.", conversation="c", run_id="outer")

        if is_resumed:
            result = await executor.resume("outer", {result.pauses[0].id: True})

        assert result.output == "Done."
        assert [(error.run_id, error.is_enclosing) for error in errors] == [("outer", True)]
        assert (await executor.execute("Next.", conversation="c", on_busy="wait")).output == "Done."


@pytest.mark.parametrize("is_in_thread", [False, True])
async def test_turn_that_a_tool_schedules_waits_for_the_turn_of_the_tool(store: Any, is_in_thread: bool) -> None:
    """The tool does not wait for it. A tool on a thread that does wait, on its own event loop, is refused."""
    scheduled: list[asyncio.Task[Any]] = []
    errors: list[ConversationBusy] = []
    loop = asyncio.get_running_loop()

    @tool
    async def remind() -> str:
        """Schedule a turn."""
        follow_up = executor.execute("Reminder.", conversation="c", on_busy="wait")
        scheduled.append(asyncio.create_task(follow_up))
        await asyncio.sleep(0.05)
        return "scheduled"

    def remind_in_thread() -> str:
        """Schedule a turn, and try to wait for another one."""
        follow_up = executor.execute("Reminder.", conversation="c", on_busy="wait")
        loop.call_soon_threadsafe(lambda: scheduled.append(asyncio.create_task(follow_up)))

        try:
            executor.execute_sync("Inside.", conversation="c", on_busy="wait")
        except ConversationBusy as error:
            errors.append(error)

        return "scheduled"

    def reply(request: ModelRequest) -> Any:
        last = request.messages[-1]
        return call("remind") if last.role == "user" and last.text == "Outside." else "Done."

    used = tool(name="remind")(remind_in_thread) if is_in_thread else remind
    executor = CrewExecutor(Agent("a", model=ScriptedProvider(reply), tools=[used]), store=store)

    async with asyncio.timeout(60):
        outer = await executor.execute("Outside.", conversation="c", run_id="outer")
        follow_up = await scheduled[0]

    assert (outer.output, follow_up.output) == ("Done.", "Done.")
    assert [message.text for message in follow_up.history if message.role == "user"] == ["Outside.", "Reminder."]
    assert [error.is_enclosing for error in errors] == ([True] if is_in_thread else [])


async def test_turn_that_lost_a_race_is_not_stored(store: Any) -> None:
    """The store refuses a turn that does not follow the newest run: another process was faster."""
    [first] = await talk(chat(store), 1, "c")
    [late] = await talk(chat(MemoryStore()), 1, "c")

    with pytest.raises(ConversationBusy) as caught:
        await store.commit("late", 0, (), late.state)

    assert caught.value.run_id == first.run_id


# ------------------------------------------------------------------------------------------ paused and failed


@tool(approval=True, effect="write")
async def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


def pays(request: ModelRequest) -> Any:
    last = request.messages[-1]
    return call("pay", amount=7) if last.role == "user" and "pay" in last.text else f"done, {len(request.messages)}"


def payer(store: Any) -> CrewExecutor:
    return CrewExecutor(Agent("a", model=ScriptedProvider(pays), tools=[pay]), store=store)


async def test_paused_turn_refuses_the_next_one_with_its_pauses(store: Any) -> None:
    """The question has to be answered first; then the conversation goes on."""
    executor = payer(store)
    paused = await executor.execute("Please pay.", conversation="c")

    with pytest.raises(ConversationPaused, match="May a call pay") as caught:
        await executor.execute("Hello?", conversation="c")

    assert (caught.value.run_id, caught.value.pauses) == (paused.run_id, paused.pauses)
    assert (await executor.resume(paused.run_id, {paused.pauses[0].id: True})).output == "done, 3"
    assert (await executor.execute("Thanks.", conversation="c")).output == "done, 5"


async def test_paused_turn_can_be_cancelled_by_the_next_one(store: Any) -> None:
    """With `on_paused="cancel"` the open call gets a result, so that the history stays valid."""
    executor = payer(store)
    paused = await executor.execute("Please pay.", conversation="c")
    result = await executor.execute("Forget it.", conversation="c", on_paused="cancel")
    assert result.output == "done, 4"
    stopped = result.history[2]
    assert isinstance(stopped, ToolMessage)
    assert "the run was cancelled" in stopped.results[0].text

    with pytest.raises(UnknownRun):
        await executor.resume(paused.run_id, {paused.pauses[0].id: True})


async def test_turn_after_a_failed_one_continues_its_committed_messages(store: Any) -> None:
    """The failed run is closed: it can't be resumed any more, and its messages stay in the conversation."""

    def fails_once(request: ModelRequest) -> Any:
        return ValueError("boom") if request.messages[-1].id.startswith("bad") else count_messages(request)

    seen: list[Any] = []
    executor = chat(store, ScriptedProvider(fails_once), observers=[seen.append])
    await executor.execute("One.", conversation="c")

    with pytest.raises(RunError):
        await executor.execute("Two.", conversation="c", run_id="bad")

    result = await executor.execute("Three.", conversation="c")
    assert [message.text for message in result.history if message.role == "user"] == ["One.", "Two.", "Three."]
    closed = [event for event in seen if isinstance(event, RunFinished) and event.run_id == "bad"]
    assert [event.stop_reason for event in closed] == ["cancelled"]

    with pytest.raises(UnknownRun):
        await executor.resume("bad")


async def test_turn_after_an_interrupted_one_continues_its_committed_messages(store: Any) -> None:
    """A caller that was cancelled leaves a run without an owner."""
    slow = HangingProvider()
    first = asyncio.ensure_future(chat(store, slow).execute("One.", conversation="c"))
    await slow.asked.wait()
    first.cancel()
    await asyncio.wait([first])
    result = await chat(store).execute("Two.", conversation="c")
    assert [message.text for message in result.history if message.role == "user"] == ["One.", "Two."]


async def failed_turn(store: Any, driver: str = "") -> None:
    """A conversation whose last turn failed, driven by this system."""
    with pytest.raises(RunError):
        await chat(store, ScriptedProvider(ValueError("boom"))).execute("One.", conversation="c", run_id="bad")

    stored = await store.load("bad")
    await store.commit("bad", stored.version, (), replace(stored.state, driver=driver))


@pytest.mark.parametrize("error", [RunActive("bad"), RunConflict("bad", 2, 3), UnknownRun("bad")])
async def test_turn_whose_last_turn_another_process_closes_is_busy(store: Any, error: Exception) -> None:
    """Both saw a failed turn: the one that lost the race is refused, or reads the conversation again."""
    await failed_turn(store)
    executor = chat(store)
    attempts: list[str] = []

    async def close(stored: StoredRun) -> RunState:
        attempts.append(stored.state.run_id)

        if len(attempts) % 2:
            raise error

        return stored.state

    async def is_owned(run_id: str) -> bool:
        return False

    async def run(before: RunState | None) -> RunResult:
        return await executor.execute("Other.", conversation="d")

    conversations = Conversations(store, "a", "", close, is_owned)
    assert (await conversations.run_turn(Turn(conversation_id="c", on_busy="wait"), run)).stop_reason == "completed"
    assert attempts == ["bad", "bad"]

    with pytest.raises(ConversationBusy) as caught:
        await conversations.run_turn(Turn(conversation_id="c"), run)

    assert (caught.value.conversation_id, caught.value.run_id) == ("c", "bad")


async def test_waiting_turns_of_two_stores_follow_each_other(tmp_path: Path) -> None:
    """Each store stands for a process: both find a failed turn, one closes it, and the other one waits."""
    stores = [SQLiteStore(tmp_path / "runs.db") for _ in range(2)]

    for number in range(15):
        with pytest.raises(RunError):
            await chat(stores[0], ScriptedProvider(ValueError("boom"))).execute("One.", conversation=f"c{number}")

        turns = [chat(store).execute("Two.", conversation=f"c{number}", on_busy="wait") for store in stores]
        outputs = [str(result.output) for result in await asyncio.gather(*turns)]
        assert sorted(outputs) == ["I see 2 messages.", "I see 4 messages."]

    for store in stores:
        store.close()


async def test_turn_after_one_that_another_system_drives_is_refused_at_once(store: Any) -> None:
    """Waiting would never end: the error says which system to use."""
    await failed_turn(store, driver="temporal")

    async with asyncio.timeout(60):
        with pytest.raises(RunActive, match="belongs to a workflow of temporal"):
            await chat(store).execute("Two.", conversation="c", on_busy="wait")


# ------------------------------------------------------------------------------------------ reading


@pytest.fixture
def file(tmp_path: Path) -> Iterator[SQLiteStore]:
    made = SQLiteStore(tmp_path / "runs.db")
    yield made
    made.close()


async def test_result_has_the_messages_of_its_turn_and_the_store_has_all(file: SQLiteStore) -> None:
    """`result.transcript` is a part of a long conversation; `executor.transcript` reads the whole."""
    executor = chat(file, max_messages_per_request=6)
    results = await talk(executor, 20)
    own = results[-1].transcript[-2:]
    assert [message.id for message in own] == [f"{results[-1].run_id}:{place}" for place in (38, 39)]
    assert len(results[-1].transcript) < 12
    whole = await executor.transcript("customer-42")
    assert [message.id.rpartition(":")[2] for message in whole] == [str(place) for place in range(40)]
    assert whole == await executor.transcript(results[-1].run_id)
    assert len(await executor.transcript(results[4].run_id)) == 10


async def test_position_that_is_not_loaded_raises_a_clear_error(file: SQLiteStore) -> None:
    """It states how to read the message."""
    [*_, last] = await talk(chat(file, max_messages_per_request=6), 20)
    loaded = last.state.transcript
    assert (len(loaded), loaded[-1].role, loaded.get(3)) == (40, "assistant", None)

    with pytest.raises(MessageNotLoaded, match=r"position 3 is not loaded.*executor\.transcript") as caught:
        loaded[3]

    assert (caught.value.position, caught.value.start) == (3, 38)


async def test_conversation_lists_its_runs_and_newest_messages(file: SQLiteStore) -> None:
    """For a page that shows a customer's conversation."""
    executor = payer(file)
    await executor.execute("Hello.", conversation="c")
    paused = await executor.execute("Please pay.", conversation="c")
    found = await executor.conversation("c")
    assert [run.status for run in found.runs] == ["completed", "paused"]
    assert (found.id, found.crew, found.agent, found.pauses) == ("c", "a", "a", paused.pauses)
    assert [message.role for message in found.history] == ["user", "assistant", "user", "assistant"]

    with pytest.raises(UnknownRun):
        await executor.conversation("unknown")


async def test_recall_finds_messages_that_are_not_loaded(store: Any) -> None:
    """A tool reads the whole conversation with `await context.whole_transcript()`."""

    def looks(request: ModelRequest) -> Any:
        last = request.messages[-1]
        asks = last.role == "user" and "remember" in last.text
        return call("recall", words="bicycle") if asks else "Noted."

    agent = Agent("a", model=ScriptedProvider(looks), tools=[recall])
    executor = CrewExecutor(agent, store=store, max_messages_per_request=6)
    await executor.execute("My bicycle is blue.", conversation="c")
    await talk(executor, 10, "c")
    result = await executor.execute("Do you remember?", conversation="c")
    [found] = [message for message in result.transcript if isinstance(message, ToolMessage)]
    assert "My bicycle is blue." in found.results[0].text


async def test_memory_keeps_a_bounded_number_of_conversations() -> None:
    """The one that was continued least recently leaves, and says so instead of beginning anew."""
    executor = chat(MemoryStore(max_conversations=2))

    for id in ("one", "two", "one", "three"):
        await executor.execute("Hi.", conversation=id)

    assert (await executor.execute("Hi.", conversation="one")).output == "I see 5 messages."

    with pytest.raises(RunExpired, match="Conversation 'two' is no longer in memory"):
        await executor.execute("Hi.", conversation="two")


# ------------------------------------------------------------------------------------------ cost


class CountingCursor(sqlite3.Cursor):
    """Counts the rows and bytes that are read."""

    rows = bytes = 0

    @classmethod
    def count(cls, rows: list[Any]) -> None:
        cls.rows += len(rows)
        cls.bytes += sum(len(str(value)) for row in rows for value in row)

    def fetchall(self) -> list[Any]:
        rows = super().fetchall()
        self.count(rows)
        return rows

    def fetchone(self) -> Any:
        row = super().fetchone()
        self.count([] if row is None else [row])
        return row


class CountingConnection(sqlite3.Connection):
    def execute(self, *arguments: Any) -> sqlite3.Cursor:
        return self.cursor(CountingCursor).execute(*arguments)


@pytest.mark.parametrize(("policy", "turns"), [(Rolling(limit=12), 400), (Summarize(limit=30), 300)])
async def test_turn_reads_a_constant_number_of_rows_and_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: Policy, turns: int
) -> None:
    """Load and commits of turn 1,000 read what turn 100 reads, and the file grows linearly."""
    # A turn that takes longer than this stores its events with another append, which reads rows too.
    monkeypatch.setattr(unstored_events, "STORE_SECONDS", 60.0)
    connect: Callable[..., sqlite3.Connection] = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *a, **k: connect(*a, **k, factory=CountingConnection))
    store = SQLiteStore(tmp_path / "runs.db")
    store._file.execute("PRAGMA synchronous=OFF")
    executor = chat(store, history=policy)
    read: list[tuple[int, int]] = []
    sizes: list[int] = []

    for turn in range(turns):
        CountingCursor.rows = CountingCursor.bytes = 0
        await executor.execute(f"Question {turn:04}.", conversation="c", run_id=f"r{turn:04}")
        read.append((CountingCursor.rows, CountingCursor.bytes))

        if turn % 100 == 99:
            sizes.append(store._file.execute("SELECT SUM(LENGTH(message)) FROM messages").fetchone()[0])

    store.close()
    early, late = read[60:160], read[-100:]
    assert max(rows for rows, _ in late) <= max(rows for rows, _ in early)
    assert max(size for _, size in late) <= 1.02 * max(size for _, size in early)
    growth = [later - earlier for earlier, later in pairwise(sizes)]
    assert max(growth) <= 1.05 * min(growth)
