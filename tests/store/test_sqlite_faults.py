"""A faulty file or disk: a reader gets the old state, the new state, or a `StoreError` that names the file."""

from __future__ import annotations

import asyncio
import gc
import random
import resource
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from crew import Agent, CrewExecutor, RunError, ScriptedProvider, call, tool
from crew.errors import DefinitionError, StoreError, UnknownRun
from crew.interfaces import ModelRequest
from crew.store import SQLiteStore, sqlite_schema
from tests.support.stored_file import CONVERSATION, FAILED, PAUSED, chat, panel, write

DAMAGES = 300
MORE_DAMAGES = 20_000


# ------------------------------------------------------------------------------------------ a disk that is full


class Writer:
    """An agent that writes 20 times, each time with a long text; `written` counts the effects of each key."""

    def __init__(self) -> None:
        self.written: list[str] = []

    def agent(self) -> Agent:
        @tool
        def note(number: int) -> str:
            """Write a note."""
            self.written.append(str(number))
            return "noted " + "x" * 2_000

        def line(request: ModelRequest) -> Any:
            done = sum(message.role == "tool" for message in request.messages)
            return call("note", number=done) if done < 20 else "Done."

        return Agent("writer", model=ScriptedProvider(line), tools=[note])


@contextmanager
def limited_by_pages(store: SQLiteStore, more: int) -> Iterator[None]:
    count = store._file.execute("PRAGMA page_count").fetchone()[0]
    most = store._file.execute("PRAGMA max_page_count").fetchone()[0]
    store._file.execute(f"PRAGMA max_page_count = {count + more}")
    yield
    store._file.execute(f"PRAGMA max_page_count = {most}")


@contextmanager
def limited_by_the_system(store: SQLiteStore, more: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    wal = Path(store._path + "-wal")
    resource.setrlimit(resource.RLIMIT_FSIZE, (wal.stat().st_size + more * 4096, hard))

    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("limited", [limited_by_pages, limited_by_the_system])
@pytest.mark.parametrize("more", [0, 1, 5, 17, 30])
async def test_run_on_a_full_disk_can_be_resumed(tmp_path: Path, limited: Any, more: int) -> None:
    """The run fails with an error that names the file; with more space it goes on, and a call in doubt asks first."""
    path, writer = tmp_path / "runs.db", Writer()
    store = SQLiteStore(path)
    executor = CrewExecutor(writer.agent(), store=store)
    await CrewExecutor(Agent("a", model=ScriptedProvider("Yes.")), store=store).execute("Ready?")

    with limited(store, more), pytest.raises((StoreError, RunError)) as caught:
        await executor.execute("Go.", run_id="r")

    assert "runs.db" in str(caught.value)
    assert "disk" in str(caught.value)

    if isinstance(caught.value, StoreError):  # not even the first commit was stored
        assert writer.written == []
        result = await executor.execute("Go.", run_id="r")
    else:
        result = await executor.resume("r")

    if result.stop_reason == "paused":  # the result of the last write could not be stored
        [pause] = result.pauses
        assert pause.reason == "in_doubt"
        result = await executor.resume("r", {pause.id: {"done": "noted"}})

    assert result.output == "Done."
    assert writer.written == [str(number) for number in range(20)]
    assert store._file.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    store.close()


# ------------------------------------------------------------------------------------------ files that can't be used


@pytest.mark.parametrize("locked", ["file", "folder"])
def test_read_only_file_or_folder_is_named(locked: str) -> None:
    """In a process without the rights of an administrator, who may write to read-only files."""
    folder = Path(tempfile.mkdtemp())
    path = folder / "runs.db"

    try:
        asyncio.run(write(path))
        folder.chmod(0o555 if locked == "folder" else 0o777)
        path.chmod(0o444 if locked == "file" else 0o666)
        program = "import os, sys\nfrom crew.store import SQLiteStore\n"
        program += "from crew.errors import StoreError\n"
        program += "os.geteuid() or os.setuid(65534)\n"
        program += f"try: SQLiteStore({str(path)!r})\nexcept StoreError as error: print(error)"
        found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd="/", check=False)
        assert str(path) in found.stdout, found.stderr
        assert "ermission" in found.stdout
    finally:
        shutil.rmtree(folder)


async def test_file_that_another_process_locks_is_named(tmp_path: Path) -> None:
    """A commit waits for a while, then the run fails; it can be resumed."""
    path = tmp_path / "runs.db"
    store = SQLiteStore(path)
    store._file.execute("PRAGMA busy_timeout = 50")
    executor = CrewExecutor(panel(), store=store)
    paused = await executor.execute("Refund me.", run_id="r")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")

    with pytest.raises((StoreError, RunError), match=r"runs\.db.*locked.*Another process") as caught:
        await executor.resume("r", {paused.pauses[0].id: True})

    assert "resume the run" in str(caught.value)
    other.execute("ROLLBACK")
    other.close()
    assert (await executor.resume("r", {paused.pauses[0].id: True})).output == "Both agree."
    store.close()


@pytest.mark.parametrize(
    "content",
    [b"This is a letter.\n" * 400, random.Random(1).randbytes(8_192), bytes(4_096)],
    ids=["letter", "noise", "zeros"],
)
def test_file_that_is_no_store_is_refused_and_kept(tmp_path: Path, content: bytes) -> None:
    """Nothing is written to it."""
    path = tmp_path / "letter.txt"
    path.write_bytes(content)

    with pytest.raises(StoreError, match=r"letter\.txt.*another file"):
        SQLiteStore(path)

    assert path.read_bytes() == content


@pytest.mark.parametrize("version", [0, 4])
@pytest.mark.parametrize("read_only", [False, True])
def test_database_of_another_program_is_refused(tmp_path: Path, version: int, read_only: bool) -> None:
    """The tables of both would mix, and migrations of either would break the other; the file stays as it is."""
    path = tmp_path / "shop.db"

    with sqlite3.connect(path) as shop:
        shop.execute("CREATE TABLE orders (id INTEGER)")
        shop.execute(f"PRAGMA user_version = {version}")

    shop.close()
    content = path.read_bytes()

    with pytest.raises(StoreError, match=r"shop\.db.*another program"):
        SQLiteStore(path, read_only=read_only)

    assert path.read_bytes() == content
    assert [*tmp_path.iterdir()] == [path]


@pytest.mark.parametrize("lost", ["runs.db", "runs.db-wal"])
@pytest.mark.parametrize("is_replaced", [False, True])
async def test_deleted_file_is_noticed_before_the_next_step(tmp_path: Path, lost: str, is_replaced: bool) -> None:
    """SQLite would go on and write to a file that nobody can open any more."""
    path = tmp_path / "runs.db"
    store = SQLiteStore(path)
    executor = CrewExecutor(panel(), store=store)
    paused = await executor.execute("Refund me.", run_id="r")
    (tmp_path / lost).unlink()

    if is_replaced:
        (tmp_path / lost).touch()

    with pytest.raises(StoreError, match=r"runs\.db.*was deleted or replaced"):
        await executor.resume("r", {paused.pauses[0].id: True})

    with pytest.raises(StoreError, match=r"runs\.db.*was deleted or replaced"):
        await CrewExecutor(Agent("a", model=ScriptedProvider("Yes.")), store=store).execute("Ready?")

    store.close()


# ------------------------------------------------------------------------------------------ damaged files


RUNS = (PAUSED, FAILED, "turn-0", "turn-7")


async def read_all(store: SQLiteStore) -> dict[str, Any]:
    """What each read returns; of a damaged file, the error."""
    found: dict[str, Any] = {}

    async def read(name: str, work: Any) -> None:
        try:
            found[name] = await work
        except StoreError as error:
            found[name] = error

    for run_id in RUNS:
        await read(f"run {run_id}", store.run(run_id))
        await read(f"events {run_id}", store.events(run_id))
        await read(f"transcript {run_id}", store.transcript(run_id))

    await read("conversation", store.conversation(CONVERSATION))
    await read("runs", store.runs())
    await read("last turn", store.last_turn(CONVERSATION))
    await read("leases", store.leases().list())
    return found


def damage(data: bytearray, rng: random.Random) -> bytearray:
    """Flip some bits, cut the end off, or overwrite a sector."""
    match rng.choice(["flip", "flip", "flip", "truncate", "sector"]):
        case "flip":
            for _ in range(rng.randint(1, 6)):
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        case "truncate":
            del data[rng.randrange(len(data)) :]
        case _:
            start = 512 * rng.randrange(len(data) // 512)
            data[start : start + 512] = rng.choice([bytes(512), rng.randbytes(512)])

    return data


def check_name(path: Path, error: StoreError) -> bool:
    assert path.name in str(error), error
    return True


async def check_damaged(folder: Path, source: Path, journal: Path | None, expected: dict[str, Any], seed: int) -> bool:
    """Damage a copy of a store and read it; returns whether an error was raised."""
    rng, path = random.Random(seed), folder / f"damaged-{seed}.db"
    is_journal = journal is not None and rng.random() < 0.5
    path.write_bytes(source.read_bytes() if is_journal else damage(bytearray(source.read_bytes()), rng))

    if journal is not None:
        data = damage(bytearray(journal.read_bytes()), rng) if is_journal else journal.read_bytes()
        Path(f"{path}-wal").write_bytes(data)

    try:
        store = SQLiteStore(path)
    except StoreError as error:
        return check_name(path, error)

    found = await read_all(store)
    errors = {name: value for name, value in found.items() if isinstance(value, StoreError)}
    # A run that an index no longer finds is unknown: SQLite's own check shows that the file is damaged.
    unknown = [name for name, error in errors.items() if isinstance(error, UnknownRun)]
    assert all(path.name in str(error) for name, error in errors.items() if name not in unknown), (seed, errors)

    if unknown or any(found[name] != expected[name] for name in ("runs", "conversation", "last turn")):
        try:
            is_intact = store._file.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        except sqlite3.Error:
            is_intact = False

        assert not is_intact or errors, (seed, errors, found["runs"])

    for name in found.keys() - errors.keys() - {"runs", "conversation", "last turn", "leases"}:
        assert found[name] == expected[name], (seed, name)

    for name in ("runs", "conversation"):
        if name not in errors:
            whole = expected[name].runs if name == "runs" else expected[name]
            part = found[name].runs if name == "runs" else found[name]
            assert {*map(repr, part)} <= {*map(repr, whole)}, (seed, name)

    store.close()
    return bool(errors)


@pytest.fixture
async def undamaged(tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    path = tmp_path / "good.db"
    await write(path)
    store = SQLiteStore(path)
    expected = await read_all(store)
    store.close()
    assert not any(isinstance(value, StoreError) for value in expected.values())
    return path, expected


@pytest.mark.parametrize("count", [DAMAGES, pytest.param(MORE_DAMAGES, marks=pytest.mark.soak)])
async def test_damaged_file_never_yields_a_wrong_state(
    tmp_path: Path, undamaged: tuple[Path, dict[str, Any]], count: int
) -> None:
    """Flipped bits, also inside a text, cut-off files and overwritten sectors: what is read is right, or an error."""
    path, expected = undamaged
    failed = 0

    for seed in range(count):
        failed += await check_damaged(tmp_path, path, None, expected, seed)

        for left in tmp_path.glob("damaged-*"):
            left.unlink()

    assert failed > count / 4  # the others changed unused bytes


@pytest.mark.parametrize("count", [DAMAGES // 3, pytest.param(MORE_DAMAGES // 3, marks=pytest.mark.soak)])
async def test_damaged_journal_yields_an_older_state_or_an_error(tmp_path: Path, count: int) -> None:
    """As after a power cut: the transactions that are whole in the journal count, the rest does not exist."""
    path = tmp_path / "live.db"
    store = SQLiteStore(path)
    versions: list[Any] = []

    for turn in range(5):
        await chat(store).execute(f"Question {turn}.", conversation=CONVERSATION, run_id=f"turn-{turn}")
        versions.append((await store.run(f"turn-{turn}")).state)

    source, journal = tmp_path / "source", tmp_path / "journal"
    shutil.copy(path, source)
    shutil.copy(f"{path}-wal", journal)

    for seed in range(count):
        rng = random.Random(seed)
        copy = tmp_path / "copy.db"
        shutil.copy(source, copy)
        Path(f"{copy}-wal").write_bytes(damage(bytearray(journal.read_bytes()), rng))

        try:
            reader = SQLiteStore(copy)
        except StoreError as error:
            check_name(copy, error)
        else:
            for turn, state in enumerate(versions):
                try:
                    read = (await reader.run(f"turn-{turn}")).state
                except StoreError:
                    continue

                # The older states of a run have fewer events.
                assert read == state or read.sequence < state.sequence, (seed, turn)

            reader.close()

        for left in tmp_path.glob("copy.db*"):
            left.unlink()

    store.close()


async def test_text_with_a_flipped_bit_is_not_shown(tmp_path: Path) -> None:
    """The checksum of the row differs; the other runs can be read, and the damaged one can be erased."""
    path = tmp_path / "runs.db"
    store = SQLiteStore(path)
    await chat(store).execute("The amount is 1000 euros.", run_id="damaged")
    await chat(store).execute("Hello.", run_id="good")
    assert len(await store.search("amount")) == 2
    store.close()
    data = bytearray(path.read_bytes())
    at = data.index(b"is 1000 euros")
    data[at + 3] ^= 8  # "1" becomes "9"
    path.write_bytes(data)
    store = SQLiteStore(path)

    for read in (store.run, store.transcript, store.events, store.load):
        with pytest.raises(StoreError, match=r"runs\.db.*'damaged' is damaged: its checksum differs"):
            await read("damaged")

    with pytest.raises(StoreError, match=r"runs\.db.*is damaged"):
        await store.search("amount")

    assert (await store.run("good")).info.status == "completed"
    assert await store.forget("damaged") == 1
    assert await store.search("amount") == ()
    assert len(await store.search("hello")) == 2
    store.close()


@pytest.mark.skipif(sys.platform != "linux", reason="looks for the file in /proc")
@pytest.mark.parametrize("fault", ["migration", "lease", "read only", "not a database"])
def test_store_that_can_not_be_opened_leaves_no_file_open(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever raised the error; it is still held here, and with it the frames that opened the file."""
    path, options = tmp_path / "runs.db", dict[str, Any]()

    if fault == "migration":

        def fails(file: sqlite3.Connection) -> None:
            raise LookupError("no such key")

        monkeypatch.setattr(sqlite_schema, "MIGRATIONS", (fails,))
    elif fault == "lease":
        options["lease_seconds"] = 0
    elif fault == "read only":
        path.touch()
        options["read_only"] = True
    else:
        path.write_bytes(b"no database " * 100)

    with pytest.raises((StoreError, DefinitionError)) as raised:
        SQLiteStore(path, **options)

    assert not open_files(path), raised.value


def open_files(path: Path) -> list[str]:
    """The open files of this process whose names begin with this path."""
    found = [str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return [name for name in found if name.startswith(str(path))]


def test_a_store_that_was_not_closed_is_closed_with_its_last_reference(tmp_path: Path) -> None:
    """Also in a cycle of references, and before its connection, which would warn of that."""
    store = SQLiteStore(tmp_path / "runs.db")
    file, store.itself = store._file, store  # type: ignore[attr-defined]
    assert file.execute("SELECT 1").fetchone() == (1,)
    del store
    gc.collect()

    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        file.execute("SELECT 1")
