"""Commands that read stored runs: what they print is what happened."""

from __future__ import annotations

import asyncio
import json
import shutil
import uuid
from dataclasses import replace
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from crew import Agent, Crew, CrewExecutor, Parallel, RunResult, ScriptedProvider, call, tool
from crew.cli import main
from crew.cli.store_commands import request_lines
from crew.messages import AssistantMessage
from crew.models import token_prices
from crew.runs.interfaces import Cursor
from crew.store import MemoryStore, SQLiteStore, export_runs
from crew.store.codec import MessageSection
from tests.support.stored_file import CONVERSATION


@tool(effect="read")
async def look(place: str) -> str:
    """Look."""
    return f"a bicycle in {place}"


@pytest.fixture
async def stored(tmp_path: Path) -> tuple[str, RunResult]:
    """A file with a run whose history was pruned and that had branches, and a second run."""
    path = str(tmp_path / "runs.db")
    store = SQLiteStore(path)
    lines = [*(call("look", place=f"street {n}") for n in range(6)), "Go on."]
    lead = Agent("lead", model=ScriptedProvider(*lines), tools=[look], then="panel")
    panel = Parallel("panel", branches=[Agent(name, model=ScriptedProvider(f"{name}.")) for name in ("x", "y")])
    crew = Crew("search", agents=[lead, *panel.branches], groups=[panel])
    result = await CrewExecutor(crew, store=store, max_messages_per_request=8).execute("Find it.", run_id="r")
    await CrewExecutor(Agent("other", model=ScriptedProvider("Hello.")), store=store).execute(
        "Hi.", run_id="s", metadata={"shop": "south", "n": 3}
    )
    store.close()
    return path, result


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main([*arguments]) == 0
    return capsys.readouterr().out


@tool
async def wait() -> str:
    """Wait."""
    await asyncio.Event().wait()
    return "Never."


async def test_an_unfinished_run_is_running_only_while_something_drives_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """After its process has stopped it is interrupted, also for the filter; an unknown status is refused."""
    path = str(tmp_path / "runs.db")
    store = SQLiteStore(path)
    agent = Agent("clerk", model=ScriptedProvider(call("wait")), tools=[wait])
    task = asyncio.create_task(CrewExecutor(agent, store=store).execute("Hi.", run_id="u"))

    async with asyncio.timeout(10):
        await store.wait_for_events("u", Cursor(2, 0))

    async def statuses(*options: str) -> list[str]:
        rows = await asyncio.to_thread(printed, capsys, "runs", "--store", path, *options)
        return [row.split()[1] for row in rows.splitlines()[1:]]

    assert [await statuses(*o) for o in ([], ["--status", "interrupted"])] == [["running"], []]
    task.cancel()
    await asyncio.wait([task])
    assert [await statuses(*o) for o in ([], ["--status", "running"])] == [["interrupted"], []]
    assert await statuses("--status", "interrupted") == ["interrupted"]
    store.close()

    with pytest.raises(SystemExit, match="2"):
        main(["runs", "--store", path, "--status", "done"])

    assert "invalid choice: 'done' (choose from 'running', 'interrupted', " in capsys.readouterr().err


async def test_a_page_is_filled_with_runs_of_the_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The store has one status for running and interrupted runs: more of its pages are read until `--limit`."""
    path = str(tmp_path / "runs.db")
    store = SQLiteStore(path)
    ids = ["live", *(f"i{number}" for number in range(5))]
    tasks = []

    for run_id in ids:
        agent = Agent("clerk", model=ScriptedProvider(call("wait")), tools=[wait])
        tasks.append(asyncio.create_task(CrewExecutor(agent, store=store).execute("Hi.", run_id=run_id)))

        async with asyncio.timeout(30):
            await store.wait_for_events(run_id, Cursor(2, 0))

    for task in tasks[1:]:
        task.cancel()

    await asyncio.wait(tasks[1:])

    async def pages(status: str, limit: int) -> list[list[str]]:
        found: list[list[str]] = []
        options: list[str] = []

        while True:
            command = ["runs", "--store", path, "--status", status, "--limit", str(limit), *options]
            assert await asyncio.to_thread(main, command) == 0
            out, err = capsys.readouterr()
            found.append([line.split()[0] for line in out.splitlines()[1:]])

            if "--cursor" not in err:
                return found

            options = ["--cursor", err.split("--cursor ")[1].strip().strip("'")]

    assert await pages("running", 2) == [["live"]]
    interrupted = [await pages("interrupted", limit) for limit in (2, 3)]
    assert [[len(page) for page in found if page] for found in interrupted] == [[2, 2, 1], [3, 2]]
    assert [sorted(id for page in found for id in page) for found in interrupted] == [sorted(ids[1:])] * 2
    tasks[0].cancel()
    await asyncio.wait(tasks[:1])
    store.close()


def test_runs_are_listed_since_a_time(stored: tuple[str, RunResult], capsys: pytest.CaptureFixture[str]) -> None:
    """By their last update, in UTC unless the time has a zone."""
    command = ["runs", "--store", stored[0], "--since"]
    [last, first] = json.loads(printed(capsys, "runs", "--store", stored[0], "--json"))
    between = datetime.fromtimestamp((last["updated"] + first["updated"]) / 2, UTC)
    times = ["2020-01-31", between.isoformat(), between.replace(tzinfo=None).isoformat()]
    assert [len(printed(capsys, *command, time).splitlines()) for time in times] == [3, 2, 2]
    assert len(printed(capsys, *command, "2999-12-31T18:30+02:00").splitlines()) == 1
    assert main([*command, "yesterday"]) == 2
    assert "--since: 'yesterday' is not a time such as 2026-01-31" in capsys.readouterr().err


def test_runs_are_listed(stored: tuple[str, RunResult], capsys: pytest.CaptureFixture[str]) -> None:
    """As a table, newest first, or as JSON; a page at a time."""
    head, first, second = printed(capsys, "runs", "--store", stored[0]).splitlines()
    assert head.split() == ["run", "status", "crew", "agent", "messages", "updated", "input"]
    assert (first.split()[:3], second.split()[:3]) == (["s", "completed", "other"], ["r", "completed", "search"])
    listed = json.loads(printed(capsys, "runs", "--store", stored[0], "--crew", "search", "--json"))
    assert [info["run_id"] for info in listed] == ["r"]
    assert len(printed(capsys, "runs", "--store", stored[0], "--metadata", "shop=south").splitlines()) == 2
    by_number = ["runs", "--store", stored[0], "--metadata", "shop=south", "--metadata"]
    assert [len(printed(capsys, *by_number, value).splitlines()) for value in ("n=3", "n=4")] == [2, 1]
    assert main(["runs", "--store", stored[0], "--metadata", "shop"]) != 0
    assert "KEY=VALUE" in capsys.readouterr().err
    assert main(["runs", "--store", stored[0], "--limit", "1"]) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 2
    cursor = err.split("--cursor ")[1].strip().strip("'")
    assert printed(capsys, "runs", "--store", stored[0], "--cursor", cursor).splitlines()[1].startswith("r ")


def test_transcript_shows_what_left_the_request(
    stored: tuple[str, RunResult], capsys: pytest.CaptureFixture[str]
) -> None:
    """Every message, with its treatment in the newest request of each agent; branches follow."""
    lines = printed(capsys, "transcript", "r", "--store", stored[0]).splitlines()
    assert lines[0] == "#0 user: Find it."
    assert lines[2] == "#2 tool: look: a bicycle in street 0  [evicted for lead]"
    assert "r/x:" in lines
    assert sum(line.startswith("#") for line in lines) == len(stored[1].transcript) + sum(
        len(branch.transcript) for branch in stored[1].branches
    )


def test_explain_names_the_rule_that_removed_a_message(
    stored: tuple[str, RunResult], capsys: pytest.CaptureFixture[str]
) -> None:
    """What was sent, what was left out and why, and what moved the prefix."""
    first = printed(capsys, "explain", "r", "--request", "1", "--store", stored[0])
    assert "prefix: none, this is the first request of the agent" in first
    text = printed(capsys, "explain", "r", "--request", "7", "--store", stored[0])
    assert text.startswith("request 7 of 9\nr · lead · scripted:scripted")
    assert "● #0 user: Find it.  kept" in text
    assert "○ #2 tool: look: a bicycle in street 0  evicted by rolling" in text
    branch = printed(capsys, "explain", "r", "--store", stored[0])
    assert "r/y · y" in branch
    assert "● #0 user: Find it.  kept" in branch
    assert main(["explain", "r", "--request", "99", "--store", stored[0]]) == 2
    assert "must be 1 to 9, not 99" in capsys.readouterr().err


def test_explain_says_what_a_moved_prefix_costs(
    stored: tuple[str, RunResult], capsys: pytest.CaptureFixture[str]
) -> None:
    """The tokens that are written to the cache again, and their price if the model has one."""
    replies = [message for message in stored[1].transcript if isinstance(message, AssistantMessage)]
    moved = next(n for n, m in enumerate(replies) if m.manifest and m.manifest.moved_by == "rolling")
    manifest = replies[moved].manifest
    assert manifest is not None
    tokens = manifest.tokens_estimated - manifest.cached_predicted
    text = printed(capsys, "explain", "r", "--request", str(moved + 1), "--store", stored[0])
    assert f"written to the cache again: {tokens:,} tokens\n" in text
    large = replace(manifest, model="anthropic:claude-sonnet-4-5", tokens_estimated=1_005_000, cached_predicted=5_000)
    section = MessageSection(path="r", start=0, messages=[replace(replies[moved], manifest=large)])
    prices = token_prices("anthropic", "claude-sonnet-4-5")
    assert prices is not None
    assert prices.cache_write > prices.cache_read
    lines = [*request_lines(section, 0, {})]
    assert lines[2].endswith(f"written to the cache again: 1,000,000 tokens, about ${prices.cache_write:.4f}")


def test_trace_draws_the_stored_run(stored: tuple[str, RunResult], capsys: pytest.CaptureFixture[str]) -> None:
    """The tree that --trace prints, from the stored events."""
    text = printed(capsys, "trace", "r", "--store", stored[0])
    assert text.startswith("invoke_workflow search")
    assert text.count("execute_tool look") == 6
    assert "invoke_agent x" in text


def test_export_is_complete_and_forget_erases(
    stored: tuple[str, RunResult], capsys: pytest.CaptureFixture[str]
) -> None:
    """JSON lines for each run, message and event; an erased run is gone."""
    lines = [json.loads(line) for line in printed(capsys, "export", "--store", stored[0]).splitlines()]
    assert {line["type"] for line in lines} == {"run", "message", "event"}
    texts = [line["message"].get("text") for line in lines if line["type"] == "message"]
    assert {"Find it.", "x.", "Hello."} <= set(texts)
    assert printed(capsys, "forget", "r", "--store", stored[0]) == "erased 1 run\n"
    assert main(["transcript", "r", "--store", stored[0]]) == 2
    assert b"bicycle" not in Path(stored[0]).read_bytes()


READING = ["runs", "runs --json", "transcript r", "transcript r --full", "explain r", "trace r", "export", "export r"]


@pytest.mark.parametrize("command", READING)
def test_secret_that_is_known_now_is_not_printed(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that stored the run did not know it: it is in messages, calls, results, errors and metadata."""
    key, path = f"sk-{uuid.uuid4().hex}", str(tmp_path / "runs.db")

    @tool
    async def find(word: str) -> str:
        """Find."""
        raise ValueError(f"not found: {word}")

    agent = Agent("clerk", model=ScriptedProvider(call("find", word=key), f"It is {key}."), tools=[find])
    CrewExecutor(agent, store=path).execute_sync(f"Use {key}.", run_id="r", metadata={"note": key})
    store = SQLiteStore(path)
    assert key in repr(asyncio.run(store.run("r")))
    store.close()
    monkeypatch.setenv("OPENAI_API_KEY", key)
    text = printed(capsys, *command.split(), "--store", path)
    assert "r" in text
    assert key not in text
    assert key[:20] not in text


@pytest.mark.parametrize("command", ["runs", "transcript", "explain", "trace", "export"])
def test_commands_that_read_do_not_change_the_file(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file of an earlier release is not migrated: that release could not open it any more."""
    file = Path(shutil.copy(Path(__file__).parents[1] / "store" / "files" / "layout-4.db", tmp_path / "runs.db"))
    content, id = file.read_bytes(), [] if command == "runs" else [CONVERSATION]
    assert printed(capsys, command, *id, "--store", str(file))
    assert file.read_bytes() == content
    assert [*tmp_path.iterdir()] == [file]
    assert printed(capsys, "forget", CONVERSATION, "--conversation", "--store", str(file)).startswith("erased")


@pytest.mark.parametrize("command", ["runs", "transcript r", "explain r", "trace r", "export", "forget r"])
def test_missing_file_is_wrong_usage(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is not created."""
    path = tmp_path / "none.db"
    assert main([*command.split(), "--store", str(path)]) == 2
    assert "no such file" in capsys.readouterr().err
    assert not path.exists()


async def conversation_file(path: Path) -> str:
    store = SQLiteStore(path)
    chat = CrewExecutor(Agent("chat", model=ScriptedProvider("Hello.", "Again.")), store=store)

    for turn in range(2):
        await chat.execute(f"Question {turn}.", conversation="customer-42", run_id=f"turn-{turn}")

    store.close()
    return str(path)


def test_commands_accept_the_id_of_a_conversation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It stands for its newest run, in an export for all its runs; the list of runs names the conversation."""
    file = asyncio.run(conversation_file(tmp_path / "runs.db"))
    head, first, _ = printed(capsys, "runs", "--store", file).splitlines()
    assert head.split()[-2:] == ["conversation", "input"]
    assert (first.split()[0], first.split()[-3:]) == ("turn-1", ["customer-42", "Question", "1."])
    transcript = printed(capsys, "transcript", "customer-42", "--store", file)
    assert "Question 0." in transcript
    assert "Again." in transcript
    assert printed(capsys, "trace", "customer-42", "--store", file).startswith("invoke_workflow chat")
    explained = [printed(capsys, "explain", id, "--store", file) for id in ("customer-42", "turn-1")]
    assert explained[0] == explained[1] != ""
    exported = [json.loads(line) for line in printed(capsys, "export", "customer-42", "--store", file).splitlines()]
    runs = [line for line in exported if line["type"] == "run"]
    assert [(line["run_id"], line["parent_run"]) for line in runs] == [("turn-0", ""), ("turn-1", "turn-0")]
    assert printed(capsys, "forget", "customer-42", "--store", file) == "erased 2 runs\n"


@pytest.mark.parametrize("id", ["c", None])
async def test_each_message_of_a_conversation_is_exported_once(id: str | None) -> None:
    """A run continues the messages of its parent; an export without the parent has them all."""
    store = MemoryStore()
    executor = CrewExecutor(Agent("chat", model=ScriptedProvider(lambda request: "Yes.")), store=store)

    for turn in range(5):
        await executor.execute(f"Question {turn}.", conversation="c", run_id=f"turn-{turn}")

    def messages(lines: list[dict[str, Any]]) -> list[tuple[str, int]]:
        return [(line["run_id"], line["position"]) for line in lines if line["type"] == "message"]

    lines = [line async for line in export_runs(store, id)]
    assert sorted(messages(lines)) == [(f"turn-{place // 2}", place) for place in range(10)]
    [run, *rest] = [line async for line in export_runs(store, "turn-3")]
    assert (run["parent_run"], run["inherited_messages"]) == ("turn-2", 6)
    assert messages(rest) == [("turn-3", place) for place in range(8)]
    assert json.loads(json.dumps(rest)) == rest


TURNS = """\
from crew import Agent, Context, ScriptedProvider, call, tool

@tool(asks=True)
def choose(context: Context) -> str:
    "Ask twice."
    return context.ask_user("Which account?") + context.ask_user("A note?")

def reply(request):
    last = request.messages[-1]

    if last.role == "tool":
        return "done"
    if last.text == "choose":
        return call("choose")
    if last.text == "fail":
        raise ValueError("boom")

    return "hello"

agent = Agent("a", model=ScriptedProvider(reply), tools=[choose])
"""


@pytest.fixture
def turns(tmp_path: Path) -> list[str]:
    """The arguments of `crew chat` for a stored conversation."""
    path = tmp_path / "crew_for_turns.py"
    path.write_text(TURNS, encoding="utf-8")
    return [str(path), "--store", str(tmp_path / "turns.db"), "--conversation", "c"]


def test_explain_names_the_turn_that_made_the_request(
    turns: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The newest turn failed without an answered request: the last request is that of the turn before."""
    monkeypatch.setattr("sys.stdin", StringIO("one\ntwo\nfail\n"))
    assert main(["chat", *turns]) == 0
    capsys.readouterr()
    runs = json.loads(printed(capsys, "runs", *turns[1:], "--json"))
    assert [run["status"] for run in runs] == ["failed", "completed", "completed"]

    for request, turn in (("2", runs[1]), ("1", runs[2])):
        lines = printed(capsys, "explain", "c", *turns[1:3], "--request", request).splitlines()
        assert lines[0] == f"request {request} of 2"
        assert lines[1].startswith(f"{turn['run_id']} · a · ")

    assert "prefix: unchanged, 1 message can be read" in printed(capsys, "explain", "c", *turns[1:3])


def test_runs_are_listed_with_the_start_of_their_input(
    turns: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one line as wide as the terminal; each turn has its own."""
    monkeypatch.setattr("sys.stdin", StringIO(f"one\n{'where is it? ' * 30}\n"))
    assert main(["chat", *turns]) == 0
    capsys.readouterr()
    monkeypatch.setenv("COLUMNS", "160")
    _, second, first = printed(capsys, "runs", *turns[1:3]).splitlines()
    assert first.endswith("  one")
    assert "  where is it? where is it? " in second
    assert (len(second), second[-1]) == (160, "…")


def test_the_tree_of_a_tool_that_asked_has_no_open_calls(
    turns: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The tool runs once for each question and once to its end; the run no longer waits."""
    monkeypatch.setattr("sys.stdin", StringIO("choose\nsavings\nrent\n"))
    assert main(["chat", *turns]) == 0
    capsys.readouterr()
    lines = printed(capsys, "trace", "c", *turns[1:3]).splitlines()
    assert lines[0].endswith("  waited for question (2 times)")
    calls = [line for line in lines if "execute_tool choose" in line]
    assert [line.endswith("  asked") for line in calls] == [True, True, False]
    assert "in progress" not in "".join(lines)
