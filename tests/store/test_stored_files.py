"""Files that earlier releases wrote are migrated, read and resumed: a change that breaks them fails here."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from crew import CrewExecutor
from crew.errors import StoreError
from crew.messages import SummaryMessage
from crew.runs.events import Asked, CallHeld, Replied, RunFailed, RunStarted
from crew.runs.state import pending_pauses
from crew.store import SQLiteStore, codec, sqlite_schema, versions
from tests.support.stored_file import CONVERSATION, FAILED, PAUSED, TURNS, chat, failing, panel

FILES = sorted((Path(__file__).parent / "files").glob("*.db"))


@pytest.fixture(params=FILES, ids=lambda path: path.stem)
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of a stored file."""
    return Path(shutil.copy(request.param, tmp_path / "runs.db"))


def test_there_is_a_file_of_this_layout() -> None:
    """Whoever changes the layout adds one: python -m tests.support.stored_file tests/store/files/layout-N.db."""
    assert f"layout-{sqlite_schema.LAYOUT}" in {path.stem for path in FILES}


async def test_paused_run_of_an_older_file_is_resumed(path: Path) -> None:
    """It waits in a branch; after the approval the other agents go on."""
    store = SQLiteStore(path)
    record = await store.run(PAUSED)
    assert (record.info.status, record.info.metadata) == ("paused", {"shop": "south", "n": 3})
    assert [info.run_id for info in (await store.runs(metadata={"shop": "south"})).runs] == [PAUSED]
    events = [one.event for one in await store.events(PAUSED)]
    assert isinstance(events[0], RunStarted)
    assert events[0].messages[-1].text == "Refund me."
    assert any(isinstance(event, CallHeld) for event in events)
    executor = CrewExecutor(panel(), store=store)
    [pause] = pending_pauses(record.state)
    result = await executor.resume(PAUSED, {pause.id: True})
    assert result.output == "Both agree."
    store.close()


async def test_conversation_of_an_older_file_is_continued(path: Path) -> None:
    """Its transcript is whole, its history holds the summary, and the next turn follows it."""
    store = SQLiteStore(path)
    transcript = await store.transcript(CONVERSATION)
    assert [message.text for message in transcript if message.role == "user"] == [
        f"Question {turn}." for turn in range(TURNS)
    ]
    summaries = [message for message in transcript if isinstance(message, SummaryMessage)]
    assert summaries
    result = await chat(store).execute("One more.", conversation=CONVERSATION)
    assert result.output == "Answer to One more."
    history = (await chat(store).conversation(CONVERSATION)).history
    assert any(isinstance(message, SummaryMessage) for message in history)
    assert len(await store.conversation(CONVERSATION)) == TURNS + 1
    assert len(await store.search("question")) == 2 * TURNS
    events = [one.event for one in await store.events("turn-0")]
    assert [event.message.text for event in events if isinstance(event, Replied)] == ["Answer to Question 0."]
    assert any(isinstance(event, Asked) and event.manifest is not None for event in events)
    store.close()


async def test_failed_run_of_an_older_file_is_resumed(path: Path) -> None:
    """Its failure can be read."""
    store = SQLiteStore(path)
    assert (await store.run(FAILED)).info.status == "failed"
    assert isinstance((await store.events(FAILED))[-1].event, RunFailed)
    assert (await CrewExecutor(failing("Up."), store=store).resume(FAILED)).output == "Up."
    assert await store.forget(FAILED) == 1
    store.close()


def test_file_is_migrated_once_and_as_a_whole(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A migration that fails leaves the file as it was; the next release that can do it goes on from there."""
    before = layout(path)

    def fails(file: sqlite3.Connection) -> None:
        file.execute("CREATE TABLE half (n INTEGER)")
        raise ValueError("no")

    def works(file: sqlite3.Connection) -> None:
        file.execute("CREATE TABLE added (n INTEGER)")

    for migration in (fails, works):
        with monkeypatch.context() as later:
            later.setattr(sqlite_schema, "MIGRATIONS", (*sqlite_schema.MIGRATIONS, migration))
            later.setattr(sqlite_schema, "LAYOUT", sqlite_schema.LAYOUT + 1)

            if migration is fails:
                with pytest.raises(StoreError, match=r"runs\.db.*can't be opened.*no"):
                    SQLiteStore(path)

                assert layout(path) == before
            else:
                SQLiteStore(path).close()
                SQLiteStore(path).close()

    assert layout(path) == sqlite_schema.LAYOUT + 1

    with pytest.raises(
        StoreError, match=rf"runs\.db.*layout {sqlite_schema.LAYOUT + 1}.*up to {sqlite_schema.LAYOUT}.*later one"
    ):
        SQLiteStore(path)


async def test_older_states_are_migrated_when_they_are_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each version leads to the next; a state of a later release is refused."""
    steps: list[str] = []

    def rename(kind: str, found: dict[str, Any]) -> dict[str, Any]:
        steps.append(kind)
        return {**found, "version": versions.FIRST_VERSION + 1}

    store = SQLiteStore(path)
    monkeypatch.setattr(versions, "MIGRATIONS", (rename,))
    monkeypatch.setattr(codec, "VERSION", versions.newest_version())
    assert (await store.run(PAUSED)).info.status == "paused"
    assert steps == ["state"]
    assert (await CrewExecutor(failing("Up."), store=store).resume(FAILED)).output == "Up."
    steps.clear()
    assert (await store.run(FAILED)).info.status == "completed"  # it was stored in the new version
    assert steps == []
    monkeypatch.undo()

    with pytest.raises(StoreError, match=r"version 5; this release reads versions up to 4.*later one"):
        await store.run(FAILED)

    store.close()


def layout(path: Path) -> int:
    with sqlite3.connect(path) as file:
        found: int = file.execute("PRAGMA user_version").fetchone()[0]

    file.close()
    return found


async def test_a_file_that_is_opened_to_be_read_is_not_changed(path: Path) -> None:
    """Not even migrated: an earlier release that still writes to it could not open it any more."""
    content = path.read_bytes()
    store = SQLiteStore(path, read_only=True)
    assert (await store.run(PAUSED)).info.status == "paused"
    assert len((await store.runs()).runs) >= 3
    assert await store.transcript(CONVERSATION)
    assert await store.leases().find(PAUSED) is None

    with pytest.raises(StoreError):
        await store.forget(PAUSED)

    store.close()
    assert path.read_bytes() == content
    assert [*path.parent.iterdir()] == [path]


async def test_a_file_that_is_opened_to_be_read_follows_its_writer(tmp_path: Path) -> None:
    """Another connection commits a run, which this one sees."""
    path = tmp_path / "runs.db"
    writer = SQLiteStore(path)
    reader = SQLiteStore(path, read_only=True)
    await chat(writer).execute("Hello.", run_id="r1")
    assert [info.run_id for info in (await reader.runs()).runs] == ["r1"]
    writer.close()
    assert (await reader.run("r1")).info.status == "completed"
    reader.close()


def test_an_empty_file_holds_no_runs(tmp_path: Path) -> None:
    """To read it is an error, and it stays empty."""
    path = tmp_path / "runs.db"
    path.touch()

    with pytest.raises(StoreError, match=r"runs\.db' is empty: it holds no runs"):
        SQLiteStore(path, read_only=True)

    assert path.read_bytes() == b""


READ = """
import asyncio, sys
from crew.store import SQLiteStore
store = SQLiteStore(sys.argv[1], read_only=True)
print(len(asyncio.run(store.runs()).runs) >= 3)
"""


def _as_nobody(*arguments: str) -> subprocess.CompletedProcess[str]:
    user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    return subprocess.run([*user, sys.executable, *arguments], capture_output=True, text=True, check=False)


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="needs root, to become another user")
def test_a_file_in_a_folder_that_can_not_be_written_can_be_read(path: Path) -> None:
    """A backup, or the file of another user."""
    if _as_nobody("-c", "import crew.store").returncode != 0:
        pytest.skip("another user can't run this Python")

    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        backup = Path(shutil.copy(path, folder))
        backup.chmod(0o444)
        done = _as_nobody("-c", READ, str(backup))

    assert (done.stdout, done.stderr) == ("True\n", "")
