"""Runs in an SQLite file survive their process."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from crew import Agent, Crew, CrewExecutor, Limits, Parallel, RunError, ScriptedProvider, call, tool
from crew.errors import RunConflict, RunExists, StoreError, UnknownRun
from crew.messages import Transcript, UserMessage
from crew.runs import RunState
from crew.runs.events import Event
from crew.store import SQLiteStore
from crew.store.rows import NewRows, Written, new_rows
from crew.store.sqlite_reader import SQLiteReader
from crew.store.sqlite_schema import write_checksums
from tests.contracts.run_store import event, state

STORY = """\
import os, signal, sys
from crew import Agent, CrewExecutor, ScriptedProvider, call, tool
from crew.store import SQLiteStore

folder, deadly = sys.argv[1], sys.argv[2]

@tool
def write(step: int) -> str:
    "Write a step down."
    with open(f"{folder}/steps", "a") as file:
        file.write(f"{step}\\n")
    if str(step) == deadly:
        os.kill(os.getpid(), signal.SIGKILL)
    return f"wrote {step}"

agent = Agent("writer", model=ScriptedProvider(*(call("write", step=n) for n in range(4)), "done"), tools=[write])
executor = CrewExecutor(agent, store=SQLiteStore(f"{folder}/runs.db"))

if __name__ == "__main__":
    executor.execute_sync("write", run_id="r")
"""


def test_killed_process_repeats_nothing_and_reports_doubt(tmp_path: Path) -> None:
    """Killed during the third write: two are committed, one is in doubt, and an answer decides."""
    story = tmp_path / "story.py"
    story.write_text(STORY, encoding="utf-8")
    died = subprocess.run([sys.executable, story, tmp_path, "2"], check=False)
    assert died.returncode == -9

    resume = "\n".join(
        [
            "import asyncio, story",
            "paused = asyncio.run(story.executor.resume('r'))",
            "assert [p.reason for p in paused.pauses] == ['in_doubt'], paused",
            "result = asyncio.run(story.executor.resume('r', {paused.pauses[0].id: {'done': 'it was written'}}))",
            "assert result.output == 'done'",
            "texts = [r.text for m in result.transcript if m.role == 'tool' for r in m.results]",
            "assert texts == ['wrote 0', 'wrote 1', 'it was written', 'wrote 3'], texts",
        ]
    )
    subprocess.run([sys.executable, "-c", resume, tmp_path, "nobody"], check=True, cwd=tmp_path)
    assert (tmp_path / "steps").read_text().split() == ["0", "1", "2", "3"]


async def test_tree_of_branches_is_stored(tmp_path: Path) -> None:
    """A pause inside a branch, answered by another executor on another connection: same transcript, same answer."""

    @tool(approval="always")
    def sign(name: str) -> str:
        """Sign."""
        return f"signed by {name}"

    def crew() -> Crew:
        legal = Agent("legal", model=ScriptedProvider(call("sign", name="legal"), "signed"), tools=[sign])
        finance = Agent("finance", model=ScriptedProvider("paid"))
        editor = Agent("editor", model=ScriptedProvider("all done"))
        panel = Parallel("panel", branches=[legal, finance], then=editor)
        return Crew("contract", agents=[legal, finance, editor], groups=[panel], entry=panel)

    first = SQLiteStore(tmp_path / "runs.db")
    paused = await CrewExecutor(crew(), store=first).execute("sign", run_id="r")
    first.close()
    second = SQLiteStore(tmp_path / "runs.db")
    stored = await second.load("r")
    assert stored.state == paused.state
    result = await CrewExecutor(crew(), store=second).resume("r", {paused.pauses[0].id: True})
    second.close()
    assert result.output == "all done"
    assert [branch.output for branch in result.branches] == ["signed", "paid"]


async def test_run_ids_and_versions_are_checked(tmp_path: Path) -> None:
    """A used id, an unknown run, two processes that resume one run."""
    store = SQLiteStore(tmp_path / "runs.db")
    agent = Agent("a", model=ScriptedProvider("yes?"), wait_for_signal=True)
    executor = CrewExecutor(agent, store=store)
    result = await executor.execute("hi", run_id="r")

    with pytest.raises(RunExists):
        await executor.execute("hi", run_id="r")

    with pytest.raises(UnknownRun):
        await executor.resume("nobody")

    with pytest.raises(RunConflict):
        await store.commit("r", 1, [], result.state)

    stored = await store.load("r")
    await store.commit("r", stored.version, [], result.state)
    await executor.cancel("r")

    with pytest.raises(UnknownRun):
        await executor.resume("r")

    store.close()


async def test_closed_file_is_a_typed_error(tmp_path: Path) -> None:
    """Not a hang or a half-written run."""
    store = SQLiteStore(tmp_path / "runs.db")
    store.close()

    with pytest.raises((RunError, StoreError), match="could not be stored"):
        await CrewExecutor(Agent("a", model=ScriptedProvider("x")), store=store).execute("hi")

    with pytest.raises(StoreError, match="can't be opened"):
        SQLiteStore(tmp_path / "no" / "such" / "folder.db")


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        (
            "UPDATE runs SET state = CAST(replace(CAST(state AS TEXT), '\"version\":4', '\"version\":1') AS BLOB)",
            "version 1",
        ),
        ("UPDATE runs SET state = substr(state, 1, 50)", "not valid JSON"),
        ('UPDATE messages SET message = CAST(\'{"role": "user"}\' AS BLOB)', "does not match version"),
        ("DELETE FROM messages WHERE position = 1", "2 messages were stored, but 1 are"),
        ("UPDATE runs SET state = 7", "can't be loaded"),
        ("DROP TABLE messages", "no such table: messages"),
    ],
    ids=["older version", "cut off", "wrong message", "missing message", "wrong type", "no table"],
)
async def test_unreadable_run_names_file_and_run(tmp_path: Path, statement: str, problem: str) -> None:
    """A run of an older version, or a damaged one, is a `StoreError` with the file, the run and the reason."""
    path = tmp_path / "runs.db"
    agent = Agent("a", model=ScriptedProvider(call("pay"), "Paid."), tools=[tool(approval=True)(pay)])
    store = SQLiteStore(path)
    assert (await CrewExecutor(agent, store=store).execute("Pay.", run_id="r")).stop_reason == "paused"
    store.close()

    with sqlite3.connect(path) as file:
        # An older version also wrote messages that this one can't read: the version is checked first.
        file.execute(statement)

        if "DROP" not in statement:
            write_checksums(file)

    file.close()
    store = SQLiteStore(path)

    with pytest.raises(StoreError, match=problem) as caught:
        await CrewExecutor(agent, store=store).resume("r")

    assert caught.value.run_id == "r"
    assert str(path) in str(caught.value)
    store.close()


def count(path: Path, table: str) -> int:
    file = sqlite3.connect(path)

    try:
        found: int = file.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0]
        return found
    finally:
        file.close()


async def test_message_is_stored_once_in_a_conversation(tmp_path: Path) -> None:
    """Each turn adds its own messages; a second continuation of one result forks without copies."""
    path = tmp_path / "runs.db"
    store = SQLiteStore(path)
    agent = Agent("a", model=ScriptedProvider(lambda request: f"Answer {request.turn}."))
    executor = CrewExecutor(agent, store=store)
    result = await executor.execute("Question 0.")
    results = [result]

    for turn in range(1, 10):
        results.append(await executor.execute(f"Question {turn}.", history=results[-1]))

    assert count(path, "messages") == 20
    assert count(path, "paths") == 0
    fork = await executor.execute("Another question.", history=results[4])
    assert (count(path, "messages"), count(path, "paths")) == (22, 1)
    assert len(fork.transcript) == 12
    store.close()


async def test_paused_runs_of_a_fork_load_their_own_messages(tmp_path: Path) -> None:
    """Forks of forks, of finished and of unfinished runs: each run loads what it saw."""
    path = tmp_path / "runs.db"
    store = SQLiteStore(path)
    ask = Agent("a", model=ScriptedProvider(lambda request: f"Answer {request.turn}?"), wait_for_signal=True)
    executor = CrewExecutor(ask, store=store)
    first = await executor.execute("One.", run_id="r1")
    second = await executor.execute("Two.", history=first, run_id="r2")
    third = await executor.execute("Three.", history=second, run_id="r3")
    other = await executor.execute("Other.", history=second, run_id="r4")
    more = await executor.resume("r1", {first.pauses[0].id: "More."})
    store.close()
    again = SQLiteStore(path)

    for result in (more, second, third, other):
        assert (await again.load(result.run_id)).state == result.state

    again.close()


async def test_conversation_of_another_store_is_copied(tmp_path: Path) -> None:
    """A result of a run that is not in the file, also if a run with its id is: all messages are written."""
    first, second = (SQLiteStore(tmp_path / f"{name}.db") for name in ("first", "second"))
    agent = Agent("a", model=ScriptedProvider(lambda request: f"Answer {request.messages[-1].text}"))
    one = await CrewExecutor(agent, store=first).execute("one", run_id="r")
    await CrewExecutor(agent, store=second).execute("two", run_id="r")
    await CrewExecutor(agent, store=second).execute("three", history=one, run_id="s")
    assert count(tmp_path / "second.db", "messages") == 2 + 4
    first.close()
    second.close()


async def test_branch_messages_are_stored_once(tmp_path: Path) -> None:
    """Not with every commit of the run; a record of a branch that ended refers to them."""
    path = tmp_path / "runs.db"
    store = SQLiteStore(path)
    look = tool(effect="read")(pay)
    agents = [Agent(name, model=ScriptedProvider(*[call("pay")] * 5, f"{name}."), tools=[look]) for name in ("a", "b")]
    ask = Agent("ask", model=ScriptedProvider("Which one?"), wait_for_signal=True)
    group = Parallel("g", branches=agents, then=ask)
    crew = Crew("c", agents=[*agents, ask], groups=[group], entry="g")
    result = await CrewExecutor(crew, store=store).execute("Go.", run_id="r")
    assert (await store.load("r")).state == result.state
    own = [len(branch.transcript) for branch in result.branches]
    assert count(path, "messages") == len(result.transcript) + sum(own)
    store.close()


async def test_a_step_of_a_branch_costs_the_same_however_long_the_branches_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In bytes that a commit encodes: messages, events and the state; see benchmarks/branches.py for the time."""
    sizes: list[int] = []

    def measured(written: Written, events: Sequence[Event], state: RunState) -> NewRows:
        rows = new_rows(written, events, state)
        encoded = [rows.state, *(data for *_, data in rows.messages), *(data for *_, data in rows.events)]
        sizes.append(sum(map(len, encoded)))
        return rows

    @tool(effect="read")
    def look() -> str:
        """Look."""
        return "a page " * 50

    monkeypatch.setattr("crew.store.sqlite.new_rows", measured)
    agents = [Agent(name, model=ScriptedProvider(*[call("look")] * 40, "Done."), tools=[look]) for name in "abc"]
    crew = Crew("c", agents=agents, groups=[Parallel("g", branches=agents)], entry="g")
    store = SQLiteStore(tmp_path / "runs.db")
    limits = Limits(rounds=200)
    await CrewExecutor(crew, store=store, limits=limits, max_messages_per_request=10).execute("Go.")
    fifth = len(sizes) // 5
    early, late = sum(sizes[fifth : 2 * fifth]), sum(sizes[3 * fifth : 4 * fifth])
    assert len(sizes) > 300
    assert late < 1.1 * early
    store.close()


def test_file_of_an_older_layout_is_refused(tmp_path: Path) -> None:
    """With the file and what to do."""
    path = tmp_path / "runs.db"
    file = sqlite3.connect(path)
    file.execute("CREATE TABLE runs (run_id TEXT PRIMARY KEY, version INTEGER)")
    file.close()

    with pytest.raises(StoreError, match=r"layout below 4.*use another file") as caught:
        SQLiteStore(path)

    assert str(path) in str(caught.value)


async def test_forgotten_text_is_not_in_the_bytes_of_the_file(tmp_path: Path) -> None:
    """Neither in free pages, nor in the journal, nor in the index of the search."""
    path = tmp_path / "runs.db"
    store = SQLiteStore(path)
    agent = Agent("a", model=ScriptedProvider(lambda request: f"You wrote: {request.messages[-1].text}"))
    executor = CrewExecutor(agent, store=store)
    await executor.execute("Nothing special. " * 100, run_id="other")
    await executor.execute("My word is quixotically. " * 300, run_id="r")
    assert await store.search("quixotically")

    def in_files(text: bytes) -> bool:
        return any(text in file.read_bytes() for file in tmp_path.iterdir())

    assert in_files(b"quixotically")
    await store.forget("r")
    assert not in_files(b"quixotically")
    assert not in_files(b"uixotical")
    assert await store.search("special")
    store.close()


async def test_damaged_pages_are_a_typed_error_with_file_and_run(tmp_path: Path) -> None:
    """Wherever the bytes are overwritten: the old state, or a `StoreError` that names the file."""
    path = tmp_path / "runs.db"
    agent = Agent("a", model=ScriptedProvider(call("pay"), "Paid."), tools=[tool(approval=True)(pay)])
    store = SQLiteStore(path)
    paused = await CrewExecutor(agent, store=store).execute("Pay. " * 2_000, run_id="r")
    store.close()
    whole = path.read_bytes()
    errors: list[StoreError] = []
    loaded = 0

    for start in range(0, len(whole), 512):
        path.write_bytes(whole[:start] + bytes(range(256)) * 2 + whole[start + 512 :])

        try:
            store = SQLiteStore(path)

            try:
                assert (await store.load("r")).state.transcript == paused.transcript
                loaded += 1
            finally:
                store.close()
        except StoreError as error:
            errors.append(error)

    assert loaded
    assert errors
    assert all(str(path) in str(error) or isinstance(error, UnknownRun) for error in errors)


async def test_file_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    """Also its journal files; an existing file keeps its access."""
    path = tmp_path / "runs.db"
    store = SQLiteStore(path)
    await CrewExecutor(Agent("a", model=ScriptedProvider("Hello.")), store=store).execute("Hi.")
    modes = {file.name: file.stat().st_mode & 0o777 for file in tmp_path.iterdir()}
    assert set(modes.values()) == {0o600}
    assert "runs.db-wal" in modes
    store.close()
    path.chmod(0o640)
    SQLiteStore(path).close()
    assert path.stat().st_mode & 0o777 == 0o640


def pay() -> str:
    """Pay."""
    return "paid"


def test_run_is_read_from_one_commit_while_another_process_commits(tmp_path: Path) -> None:
    """Several queries read a run; a commit between two of them must not make it look damaged."""
    path, commits = tmp_path / "runs.db", 0
    longer = replace(state(sequence=2), transcript=Transcript([UserMessage("hi", id="m"), UserMessage("more", id="n")]))
    other, file = SQLiteStore(path), sqlite3.connect(path, isolation_level=None)
    asyncio.run(other.commit("r", 0, [event()], state()))

    def commit_before_the_messages(statement: str) -> None:
        nonlocal commits

        if "SELECT state" in statement and not commits:
            commits += 1
            asyncio.run(other.commit("r", 1, [event(2)], longer))

    file.set_trace_callback(commit_before_the_messages)
    assert SQLiteReader(file).run("r").state == state()
    assert commits == 1
    assert SQLiteReader(file).run("r").info.version == 2
    file.close()


def test_a_conversation_may_have_more_runs_than_a_statement_has_parameters(tmp_path: Path) -> None:
    """`forget` looks for runs that continue any of them."""
    store = SQLiteStore(tmp_path / "runs.db")
    store._reader._check_unused("c", [f"r{number}" for number in range(200_000)])
    store.close()
