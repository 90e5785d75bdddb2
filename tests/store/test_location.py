"""`store=` takes an object, a path or a URL, and the executor closes what it opened."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from crew import CrewExecutor, RunResult, ScriptedProvider, call, tool
from crew.cli import main
from crew.errors import ConfigError, DefinitionError, StoreError, UnknownRun
from crew.store import MemoryStore, SQLiteStore, open_store
from tests.support.runs import executor_for

any_: Any = lambda given: given  # noqa: E731 - hides wrong types from the type checker


@tool(approval=True)
def pay() -> str:
    """Pay."""
    return "paid"


def payer(store: Any) -> CrewExecutor:
    """An executor in the place of one process; its runs pause once."""
    return executor_for(ScriptedProvider(call("pay"), "done"), pay, store=store)


async def resume(store: Any, paused: RunResult) -> RunResult:
    """Resume the run in another executor."""
    async with payer(store) as executor:
        return await executor.resume(paused.run_id, {paused.pauses[0].id: True})


@pytest.mark.parametrize(
    "location",
    [
        lambda folder: "runs.db",
        lambda folder: Path("runs.db"),
        lambda folder: str(folder / "runs.db"),
        lambda folder: "sqlite:///runs.db",
        lambda folder: f"sqlite:///{folder}/runs.db",
        lambda folder: f"SQLite:///{folder}/runs.db",
        lambda folder: SQLiteStore(folder / "runs.db"),
    ],
)
async def test_a_store_is_an_object_a_path_or_a_url(
    location: Callable[[Path], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them name the same file, from which another executor resumes the run."""
    monkeypatch.chdir(tmp_path)

    async with payer(location(tmp_path)) as executor:
        paused = await executor.execute("Pay.")

    assert (await resume(tmp_path / "runs.db", paused)).output == "done"
    assert {file.name.partition("-")[0] for file in tmp_path.iterdir()} == {"runs.db"}


@pytest.mark.parametrize("location", ["runs.db", Path("runs.db"), "sqlite:///runs.db"])
async def test_a_relative_path_is_one_below_the_folder_where_the_store_was_made(
    location: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process may change its folder later, also before the executor opens the file again."""
    (tmp_path / "later").mkdir()
    monkeypatch.chdir(tmp_path)
    executor = payer(location)
    given = SQLiteStore("given.db")
    monkeypatch.chdir(tmp_path / "later")
    assert (await payer(given).execute("Pay.")).stop_reason == "paused"
    given.close()
    paused = await executor.execute("Pay.")
    await executor.aclose()
    assert (await executor.resume(paused.run_id, {paused.pauses[0].id: True})).output == "done"
    await executor.aclose()
    assert [*(tmp_path / "later").iterdir()] == []


async def test_the_executor_closes_what_it_opened(tmp_path: Path) -> None:
    """Not a store that it was given. It can be used again: it opens the file anew."""
    executor = payer(tmp_path / "runs.db")
    opened = any_(executor._store.get())
    paused = await executor.execute("Pay.")
    await executor.aclose()

    with pytest.raises(StoreError, match="closed"):
        await opened.load(paused.run_id)

    assert (await executor.resume(paused.run_id, {paused.pauses[0].id: True})).output == "done"
    await executor.aclose()
    await executor.aclose()

    given = SQLiteStore(tmp_path / "given.db")
    paused = await payer(given).execute("Pay.")
    await payer(given).aclose()
    assert (await given.load(paused.run_id)).state.run_id == paused.run_id


def test_an_executor_that_is_refused_opens_no_store(tmp_path: Path) -> None:
    """The file is opened when all arguments are accepted."""
    with pytest.raises(DefinitionError, match="max_concurrent_runs"):
        executor_for(ScriptedProvider("done"), store=tmp_path / "runs.db", max_concurrent_runs=0)

    with pytest.raises(DefinitionError, match="model"):
        executor_for("unknown:model", store=tmp_path / "runs.db")

    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("store", "words"),
    [
        ("", "store: expected a file such as runs.db, not ''"),
        (" ", "store: expected a file such as runs.db, not ' '"),
        ("nowhere/runs.db", "store: no such folder: 'nowhere'; create it first"),
        (Path("nowhere/runs.db"), "store: no such folder: 'nowhere'; create it first"),
        (Path(), "store: expected a file such as runs.db, not '.'"),
        ("sqlite://runs.db", "must be sqlite:///runs.db, or sqlite:////folder/runs.db .* not 'sqlite://runs.db'"),
        ("sqlite:///", "must be sqlite:///runs.db, .* not 'sqlite:///'"),
        ("sqlite:///runs.db?mode=ro", "without options, not 'sqlite:///runs.db.mode=ro'"),
        ("postgresql://", "must be postgresql://user@host:5432/database"),
        ("mysql://me:hunter2@db/x", "no store for 'mysql' URLs; use 'runs.db', 'sqlite:///runs.db'"),
        (5, "store: not a store: 5; use 'runs.db', .* SQLiteStore"),
        (MemoryStore, "store: not a store: <class"),
        (b"runs.db", "store: not a store: b'runs.db'"),
    ],
)
def test_a_value_that_names_no_store_is_refused(
    store: Any, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what is accepted, and without the password of a URL."""
    monkeypatch.chdir(tmp_path)

    with pytest.raises(DefinitionError, match=words) as caught:
        payer(store)

    assert "hunter2" not in str(caught.value)
    assert not any(tmp_path.iterdir())


def test_a_file_that_is_no_store_is_refused(tmp_path: Path) -> None:
    """The error names the file."""
    (tmp_path / "runs.db").write_bytes(b"not a database" * 100)

    with pytest.raises(StoreError, match=r"runs\.db' can't be opened: file is not a database"):
        open_store(tmp_path / "runs.db")


# ------------------------------------------------------------------------------------------ config.yaml and the CLI

CREW = """\
{store}
crews:
  shop:
    agents:
      clerk: {{model: "scripted:Hello.", wait_for_signal: true, routes: [{{signal: DONE}}]}}
"""


def config_file(folder: Path, store: str) -> Path:
    """A configuration file with this line."""
    path = folder / "config.yaml"
    path.write_text(CREW.format(store=store), encoding="utf-8")
    return path


@pytest.mark.parametrize("written", ["runs.db", "sqlite:///runs.db", "./runs.db", "{folder}/runs.db"])
async def test_a_path_in_a_file_is_relative_to_the_file(
    written: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the current directory is; an argument in Python overrides it, and then the file is not opened."""
    folder, elsewhere = tmp_path / "app", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    path = config_file(folder, f"store: {written.format(folder=folder)}")
    monkeypatch.chdir(elsewhere)
    await CrewExecutor.from_config(os.path.relpath(path), "shop", store=MemoryStore()).execute("Hi")
    assert not (folder / "runs.db").exists()

    async with CrewExecutor.from_config(os.path.relpath(path), "shop") as executor:
        paused = await executor.execute("Hi")

    assert not any(elsewhere.iterdir())
    store = open_store(folder / "runs.db")
    assert (await store.load(paused.run_id)).state.run_id == paused.run_id
    store.close()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("store: mysql://x/y", "config.yaml:1:1: store is not accepted: no store for 'mysql' URLs"),
        ("store: ''", "config.yaml:1:1: store is not accepted: expected a file such as runs.db, not ''"),
        ("store: 5", "config.yaml:1:1: store must be a string, not 5"),
    ],
)
def test_a_store_that_a_file_can_not_name_is_refused(line: str, words: str, tmp_path: Path) -> None:
    """With its line and column."""
    with pytest.raises(ConfigError, match=words):
        CrewExecutor.from_config(config_file(tmp_path, line), "shop")


def test_the_store_of_a_file_serves_run_resume_and_cancel(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without `--store`: the printed command resumes the run from the same file."""
    target = f"{config_file(tmp_path, 'store: runs.db')}:shop"
    assert main(["run", target, "Hi", "--quiet"]) == 3
    err = capsys.readouterr().err
    run_id = next(line for line in err.splitlines() if "resume with" in line).split()[-2]
    assert "--store" not in err
    assert main(["resume", target, run_id, "--answer", "More.", "--quiet"]) == 3
    assert main(["cancel", target, run_id]) == 0
    assert main(["resume", target, run_id]) == 2
    assert f"The run '{run_id}' has finished and can't be resumed" in capsys.readouterr().err


def test_the_option_overrides_the_file_and_takes_a_url(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--store` is relative to the current directory, and read as in Python."""
    target, url = f"{config_file(tmp_path, 'store: runs.db')}:shop", f"sqlite:///{tmp_path}/other.db"
    assert main(["run", target, "Hi", "--store", url]) == 3
    assert f"--store {url}" in capsys.readouterr().err
    assert (tmp_path / "other.db").exists()
    assert not (tmp_path / "runs.db").exists()

    assert main(["runs", "--store", url]) == 0
    capsys.readouterr()

    for command in (["run", target, "Hi"], ["resume", target, "r"], ["cancel", target, "r"], ["runs"]):
        assert main([*command, "--store", "mysql://me:hunter2@db/x"]) == 2
        err = capsys.readouterr().err
        assert "--store: no store for 'mysql' URLs" in err
        assert "hunter2" not in err

    assert main(["resume", target, "r"]) == 2
    assert "config.yaml: store: no such file" in capsys.readouterr().err


async def test_an_unknown_run_of_an_opened_store_is_an_error(tmp_path: Path) -> None:
    """As with a store that was passed as an object."""
    async with payer(tmp_path / "runs.db") as executor:
        with pytest.raises(UnknownRun):
            await executor.resume("unknown")
