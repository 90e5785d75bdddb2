"""The command line: arguments, output, exit codes and error messages."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest

from crew import Agent, CrewExecutor, ScriptedProvider
from crew.cli import main
from crew.simulator import read_recording

CREW = """\
from crew import Agent, Crew, ScriptedProvider, call, tool

@tool(approval="always")
def pay(amount: int) -> str:
    "Pay."
    return f"paid {amount}"

alone = Agent("alone", model=ScriptedProvider("hello"))
payer = Agent("payer", model=ScriptedProvider(call("pay", amount=3), "done"), tools=[pay])
asker = Agent("asker", model=ScriptedProvider("which one?", "thanks"), wait_for_signal=True)
crew = Crew("main", agents=[alone])
second = Crew("second", agents=[payer])
third = Crew("third", agents=[asker])
"""


@pytest.fixture
def crews(tmp_path: Path) -> Path:
    path = tmp_path / "crews_for_cli.py"
    path.write_text(CREW, encoding="utf-8")
    return path


def test_the_answer_goes_to_stdout_and_events_to_stderr(crews: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The answer can be piped."""
    assert main(["run", str(crews), "hi"]) == 0
    out, err = capsys.readouterr()
    assert out == "hello\n"
    assert "● alone" in err
    assert "completed" in err


def test_the_input_may_stand_after_the_options(crews: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`crew run FILE --quiet TEXT` works; other stray arguments are still rejected."""
    assert main(["run", str(crews), "--quiet", "hi"]) == 0
    assert capsys.readouterr().out == "hello\n"

    for wrong in (["--quiet", "hi", "there"], ["hi", "--quiet", "there"], ["--bogus"], ["hi", "--bogus"]):
        with pytest.raises(SystemExit) as stopped:
            main(["run", str(crews), *wrong])

        assert stopped.value.code == 2
        assert "unrecognized arguments: " in capsys.readouterr().err

    with pytest.raises(SystemExit):
        main(["show", str(crews), "hi"])


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (
            ["serve", "crew.py", "--prot", "9"],
            "crew serve: error: unrecognized arguments: --prot 9. Did you mean --port?",
        ),
        (["run", "crew.py", "hi", "--history-policy=3"], "--history-policy=3. Did you mean --history?"),
        (["show", "crew.py", "--bogus"], "crew show: error: unrecognized arguments: --bogus\n"),
    ],
)
def test_a_misspelt_option_is_named_with_its_command(
    arguments: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The usage is that of the command, and the closest option is named."""
    with pytest.raises(SystemExit, match="2"):
        main(arguments)

    assert hint in capsys.readouterr().err


def test_json_output_without_events(crews: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With --json and --quiet stdout is one JSON object and stderr is empty."""
    assert main(["run", str(crews), "hi", "--json", "--quiet", "--max-messages", "5"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert json.loads(out) | {"run_id": ""} == {
        "output": "hello",
        "stop_reason": "completed",
        "stop_text": "",
        "limit": None,
        "run_id": "",
        "trace_id": "",
        "agent": "alone",
        "usage": json.loads(out)["usage"],
        "messages": 2,
        "max_messages_per_request": 5,
        "prunings": 0,
        "messages_pruned": 0,
        "finish_reason": "stop",
        "in_doubt": [],
        "orphans": [],
        "pauses": [],
    }


def test_a_pause_without_a_terminal_exits_with_3(crews: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """stderr names the pause, and says that the run was not saved."""
    assert main(["run", f"{crews}:second", "pay"]) == 3
    err = capsys.readouterr().err
    assert "May payer call pay" in err
    assert "The run was not saved; pass --store FILE to make it resumable." in err


def test_another_process_resumes_a_stored_run(crews: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The printed resume command works; a finished run can't be resumed."""
    store = str(tmp_path / "runs.db")
    assert main(["run", f"{crews}:second", "pay", "--store", store]) == 3
    hint = capsys.readouterr().err.strip().rsplit("crew: resume with: crew ", 1)[1]
    assert main(hint.split()) == 0
    assert capsys.readouterr().out == "done\n"
    assert main(hint.split()) == 2
    assert "has finished and can't be resumed" in capsys.readouterr().err


def test_a_stored_run_is_cancelled(crews: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is finished: its call gets an answer, the tool does not run, and the run can't be resumed."""
    store = str(tmp_path / "runs.db")
    assert main(["run", f"{crews}:second", "pay", "--store", store, "--json"]) == 3
    run_id = json.loads(capsys.readouterr().out)["run_id"]
    assert main(["cancel", f"{crews}:second", run_id, "--store", store]) == 0
    assert capsys.readouterr().err.endswith(f"crew: run {run_id} is cancelled\n")

    for command in ("cancel", "resume"):
        assert main([command, f"{crews}:second", run_id, "--store", store]) == 2
        assert "has finished and can't be resumed" in capsys.readouterr().err

    assert main(["cancel", f"{crews}:second", run_id]) == 2
    assert "--store: required" in capsys.readouterr().err


def test_resume_lists_the_pending_pauses(crews: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An answer to an unknown pause is rejected, and the run is unchanged."""
    store = str(tmp_path / "runs.db")
    assert main(["run", f"{crews}:third", "hi", "--store", store, "--json"]) == 3
    pause = json.loads(capsys.readouterr().out)
    assert (
        main(["resume", f"{crews}:third", pause["run_id"], "--store", store, "--answer", f"{pause['run_id']}:9.9=y"])
        == 2
    )
    assert pause["pauses"][0]["id"] in capsys.readouterr().err
    assert main(["resume", f"{crews}:third", pause["run_id"]]) == 2


def test_a_pause_at_a_terminal_asks_the_user(
    crews: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command asks for the approval and resumes the run."""
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr("builtins.input", lambda prompt: "y")
    assert main(["run", f"{crews}:second", "pay"]) == 0
    assert capsys.readouterr().out == "done\n"


def test_a_limit_exits_with_4(crews: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A script can distinguish a limit from a failure, and the JSON names the limit."""
    assert main(["run", f"{crews}:second", "pay", "--rounds", "0", "--json"]) == 4
    out, err = capsys.readouterr()
    assert json.loads(out)["limit"] == {"name": "rounds", "value": 0}
    assert "limit reached: 0 rounds\n" in err
    assert main(["run", "examples/routes.py", "A haiku.", "--rounds", "1"]) == 4
    assert "limit reached: 1 round\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("nowhere.py", "no such file"),
        ("no.such.module:crew", "can't be imported"),
        ("{crews}:missing", "no crew, agent or executor named 'missing'"),
        ("", "'' is neither a file nor a module"),
        ("./crews", "'./crews' is neither a file nor a module"),
        ("json", "no crew and no agent found"),
        ("config.yaml:greter", "Did you mean 'greeter'"),
    ],
)
def test_an_invalid_target_is_one_clear_line(
    crews: Path, target: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message says what to do; there is no traceback."""
    assert main(["run", target.format(crews=crews), "hi"]) == 2
    err = capsys.readouterr().err
    assert expected in err
    assert "Traceback" not in err


def test_a_failing_target_file_shows_only_its_own_frames(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The traceback has no frames of the loader."""
    (tmp_path / "broken.py").write_text("def connect():\n    raise OSError('no database')\n\nconnect()\n")
    assert main(["run", str(tmp_path / "broken.py"), "hi"]) == 2
    err = capsys.readouterr().err
    assert "broken.py: the module raised an error while it was loaded: OSError: no database" in err
    assert err.count("  File ") == 2


def test_a_problem_of_a_configuration_file_names_the_file_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With line and column."""
    (tmp_path / "bad.yaml").write_text("prune_to: x\n")
    assert main(["run", str(tmp_path / "bad.yaml"), "hi"]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"crew: {tmp_path / 'bad.yaml'}:1:1: prune_to must be")
    assert err.count("bad.yaml") == 1


def test_a_target_file_that_calls_sys_exit_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its exit code must not be mistaken for that of a run."""
    (tmp_path / "ending.py").write_text("import sys\nsys.exit(3)\n")
    assert main(["run", str(tmp_path / "ending.py"), "hi"]) == 2
    assert "the module called sys.exit(3) while it was loaded" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--store", "nowhere/runs.db"], "--store: no such folder: 'nowhere'; create it first"),
        (["--store", "examples"], "--store: expected a file such as runs.db, not 'examples'"),
        (["--record", "nowhere/run.json"], "--record: no such folder: 'nowhere'; create it first"),
        (["--record", "examples"], "--record: expected a file such as run.json, not 'examples'"),
        (["--store", ""], "--store: expected a file such as runs.db, not ''"),
        (["--config", ""], "can't read the file"),
        (["--config", "nowhere.yaml"], "nowhere.yaml: can't read the file"),
        (["--max-messages", "0"], "max_messages_per_request must be a positive integer such as 50, not 0"),
        (["--rounds", "-1"], "rounds must be 0 or a positive integer, not -1"),
    ],
)
def test_an_invalid_option_value_is_wrong_usage(
    crews: Path, options: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message contains the value, and nothing runs."""
    assert main(["run", str(crews), "hi", *options]) == 2
    assert expected in capsys.readouterr().err


def test_resume_does_not_create_a_missing_store(
    crews: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A mistyped file name must not leave an empty file."""
    assert main(["resume", str(crews), "run", "--store", str(tmp_path / "typo.db")]) == 2
    assert "typo.db'; pass the SQLite file that holds the run" in capsys.readouterr().err
    assert not (tmp_path / "typo.db").exists()
    assert main(["resume", str(crews), "run"]) == 2
    assert capsys.readouterr().err == "crew: --store: required: the SQLite file that holds the run\n"


def test_missing_input_is_read_from_the_terminal(
    crews: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command prompts for it; without standard input the error says what to do."""
    typed = StringIO("hi\n")
    monkeypatch.setattr(typed, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys, "stdin", typed)
    assert main(["run", str(crews), "--quiet"]) == 0
    assert capsys.readouterr() == ("hello\n", "crew: type the input, then press Ctrl-D on an empty line\n")
    monkeypatch.setattr(sys, "stdin", None)
    assert main(["run", str(crews)]) == 2
    assert "no input: pass it as an argument" in capsys.readouterr().err
    assert main(["run", f"{crews}:second", "pay"]) == 3


def test_unencodable_and_unwritable_answers(crews: Path) -> None:
    """Characters that the encoding lacks are escaped; a full disk is reported."""
    crews.write_text(CREW.replace("hello", "gęś"), encoding="utf-8")
    command = [sys.executable, "-m", "crew.cli", "run", str(crews), "hi", "--quiet"]
    completed = subprocess.run(
        command, env=os.environ | {"PYTHONIOENCODING": "ascii"}, capture_output=True, check=False
    )
    assert (completed.returncode, completed.stdout.split()) == (0, [rb"g\u0119\u015b"])

    if Path("/dev/full").exists():
        with Path("/dev/full").open("w") as full:
            completed = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, check=False)

        assert completed.returncode == 1
        assert completed.stderr.startswith(b"crew: can't write the answer")


def test_an_option_changes_one_limit_of_a_configuration_file(
    crews: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--rounds` leaves the file's other limits as they are."""
    (tmp_path / "limits.yaml").write_text("limits: {tokens: 0}\n", encoding="utf-8")
    options = ["--config", str(tmp_path / "limits.yaml"), "--rounds", "9", "--json"]
    assert main(["run", f"{crews}:alone", "hi", *options]) == 4
    assert json.loads(capsys.readouterr().out)["limit"] == {"name": "tokens", "value": 0}


def test_bad_input_is_one_clear_line(crews: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The validator's message is printed."""
    assert main(["run", str(crews), "  "]) == 2
    assert "blank" in capsys.readouterr().err


def test_show_prints_the_graph(capsys: pytest.CaptureFixture[str]) -> None:
    """In Mermaid, with groups and `then`."""
    assert main(["show", "examples/demo.py"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("flowchart LR")
    assert "panel -- then --> editor" in out


def test_help_has_examples_and_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a command, and for `crew run`."""
    assert main([]) == 2
    assert "crew run config.yaml:greeter" in capsys.readouterr().out

    with pytest.raises(SystemExit):
        main(["run", "--help"])

    assert "Exit codes" in capsys.readouterr().out


def test_the_module_runs_as_a_command() -> None:
    """`python -m crew.cli` is the same command; it reads the input from a pipe."""
    completed = subprocess.run(
        [sys.executable, "-m", "crew.cli", "run", "config.yaml"],
        input="Hello\n",
        capture_output=True,
        text=True,
        check=True,
    )
    assert completed.stdout.startswith("Hello!")


def test_a_stopped_or_failed_run_prints_the_resume_command(
    crews: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command has the settings of the run, so that the bound does not change; its limits are stored with it."""
    failing = tmp_path / "failing_for_cli.py"
    failing.write_text(
        "from crew import Agent, ScriptedProvider\nagent = Agent('a', model=ScriptedProvider(KeyError('no')))\n"
    )
    store = str(tmp_path / "runs with spaces.db")
    settings = ["--max-messages", "7", "--history", "rolling:prune_to=3"]
    assert main(["run", str(failing), "hi", "--store", store, *settings, "--rounds", "9"]) == 1
    hint = capsys.readouterr().err.rsplit("crew: resume with: crew ", 1)[1].splitlines()[0]
    assert shlex.split(hint)[3:] == ["--store", store, *settings]

    failing.write_text("from crew import Agent, ScriptedProvider\nagent = Agent('a', model=ScriptedProvider('fine'))\n")
    assert main([*shlex.split(hint), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["max_messages_per_request"] == 7

    failing.write_text(
        "from crew import Agent, ScriptedProvider\ndef stop(request):\n    raise KeyboardInterrupt\n"
        "agent = Agent('a', model=ScriptedProvider(stop))\n"
    )
    assert main(["run", str(failing), "hi", "--store", store]) == 130
    assert "crew: resume with: crew resume" in capsys.readouterr().err


def test_the_trace_tree_has_the_name_of_the_crew(crews: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Like the root span."""
    assert main(["run", f"{crews}:second", "pay", "--trace"]) == 3
    assert "invoke_workflow second" in capsys.readouterr().err


def test_record_writes_a_transcript_for_simulator_and_next_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The recording has calls and branches, and its messages can be the history of another run."""
    record = tmp_path / "run.json"
    assert main(["run", "examples/demo.py", "Sign?", "--quiet", "--record", str(record)]) == 0
    recording = read_recording(record)
    assert {"triage", "legal", "finance", "delivery", "editor"} == set(recording.agents)
    assert main(["simulate", str(record), "-p", "rolling:limit=12"]) == 0
    assert "rolling" in capsys.readouterr().out

    agent = Agent("next", model=ScriptedProvider("Fine."))
    result = CrewExecutor(agent).execute_sync("And now?", history=recording.messages)
    assert result.history[0].text == "Sign?"
    assert len(result.history) == len(recording.messages) + 2

    if Path("/dev/full").exists():
        assert main(["run", "examples/hello.py", "Hi", "--quiet", "--record", "/dev/full"]) == 1
        out, err = capsys.readouterr()
        assert out == "It left the warehouse today.\n"  # the answer is printed even if the file can't be written
        assert "can't write the transcript" in err


@pytest.mark.parametrize("ending", ["yaml", "yml"])
def test_a_configured_crew_imports_tools_next_to_its_file(
    ending: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From any working directory, with either suffix; the file's settings apply."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / f"tools_beside_{ending}.py").write_text("def lamp() -> str:\n    'Light.'\n    return 'on'\n")
    agent = f"{{model: 'scripted:Fine.', tools: ['tools_beside_{ending}:lamp']}}"
    file = tmp_path / f"support.{ending}"
    file.write_text(f"max_messages_per_request: 9\ncrews: {{support: {{agents: {{host: {agent}}}}}}}\n")
    assert main(["run", f"{file}:support", "hi", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["max_messages_per_request"] == 9


def test_a_streamed_reply_marks_a_restart(crews: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The text of a failed attempt is not mistaken for part of the answer."""
    (crews.parent / "restarting.py").write_text(
        "from crew import Agent, ScriptedProvider\n"
        "from crew.interfaces import Delta\n"
        "class Restarts(ScriptedProvider):\n"
        "    async def complete(self, request, on_delta=None):\n"
        "        if on_delta:\n"
        "            on_delta(Delta(text='hel'))\n"
        "            on_delta(Delta(text='', kind='restart'))\n"
        "        return await super().complete(request, on_delta)\n"
        "agent = Agent('a', model=Restarts('hello'))\n",
        encoding="utf-8",
    )
    assert main(["run", str(crews.parent / "restarting.py"), "hi", "--stream", "--quiet"]) == 0
    out, err = capsys.readouterr()
    assert out == "hello\n"
    assert err == "  a: hel\n[The attempt failed; the reply starts again.]\n  a: hello\n"


PANEL = """
import asyncio
from crew import Agent, Crew, Parallel, ScriptedProvider
from crew.interfaces import Delta

class Slow(ScriptedProvider):
    async def complete(self, request, on_delta=None):
        reply = await super().complete(request)
        for word in reply.text.split():
            on_delta and on_delta(Delta(text=word + " "))
            await asyncio.sleep(0)
        return reply

short, long = "one two three", "eins zwei drei vier fuenf sechs"
first = Agent("first", model=Slow(FIRST))
second = Agent("second", model=Slow(SECOND))
last = Agent("last", model=Slow("done"))
crew = Crew("c", agents=[first, second, last], groups=[Parallel("g", branches=[first, second], then=last)], entry="g")
"""


@pytest.mark.parametrize(("first", "second"), [("short", "long"), ("long", "short")])
def test_replies_that_stream_at_the_same_time_are_printed_as_blocks(
    first: str, second: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The words of two agents don't mix, whichever ends first; each block names its agent."""
    texts = {"short": "one two three ", "long": "eins zwei drei vier fuenf sechs "}
    file = tmp_path / f"panel_{first}.py"
    file.write_text(PANEL.replace("FIRST", first).replace("SECOND", second), encoding="utf-8")
    assert main(["run", str(file), "hi", "--stream", "--quiet"]) == 0
    blocks = [f"    first: {texts[first]}", f"    second: {texts[second]}", "  last: done "]
    assert capsys.readouterr().err.splitlines() == blocks


INTERRUPTED = """
import asyncio
from crew import Agent, Crew, Parallel, ScriptedProvider, call, tool
from crew.interfaces import Delta

gate = asyncio.Event()

@tool
async def look() -> str:
    "Look."
    return "found"

class Slow(ScriptedProvider):
    async def complete(self, request, on_delta=None):
        reply = await super().complete(request)
        if request.agent == "second" and request.turn == 1:
            gate.set()
            await asyncio.sleep(0.01)
        for index, word in enumerate(reply.text.split()):
            on_delta and on_delta(Delta(text=word + " "))
            if request.agent == "first" and index == 0:
                await gate.wait()
        return reply

first = Agent("first", model=Slow("one two three"))
second = Agent("second", model=Slow(call("look"), "eins zwei"), tools=[look])
crew = Crew("c", agents=[first, second], groups=[Parallel("g", branches=[first, second])], entry="g")
"""


def test_events_between_streamed_texts_have_their_own_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A text that is interrupted by an event names its agent again; a streamed reply is not printed twice."""
    file = tmp_path / "panel_with_events.py"
    file.write_text(INTERRUPTED, encoding="utf-8")
    assert main(["run", str(file), "hi", "--stream"]) == 0
    lines = capsys.readouterr().err.splitlines()
    asked = lines.index("    second asks scripted (4 messages)")
    assert "    first: one " in lines[:asked]
    assert lines[asked + 1 : asked + 3] == ["    first: two three ", "    second: eins zwei "]
    assert not [line for line in lines if line.endswith("first: one two three")]


def test_structured_output_is_printed_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """So that other programs can read it without `--json`, which adds the facts of the run."""
    file = tmp_path / "structured.py"
    file.write_text(
        "from crew import Agent, ScriptedProvider\n"
        "from pydantic import BaseModel\n"
        "class City(BaseModel):\n    name: str\n    people: int\n"
        'agent = Agent(\'a\', model=ScriptedProvider(\'{"name": "Zürich", "people": 3}\'), output=City)\n',
        encoding="utf-8",
    )
    assert main(["run", str(file), "hi", "--quiet"]) == 0
    out = capsys.readouterr().out
    assert json.loads(out) == {"name": "Zürich", "people": 3}
    assert "Zürich" in out


def test_strict_resume_refuses_a_changed_crew(crews: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without `--strict` the changes are named, and the run continues."""
    store, changed = str(tmp_path / "runs.db"), tmp_path / "changed_crews.py"
    changed.write_text(CREW.replace('Agent("payer"', 'Agent("payer", instructions="Be quick."'), encoding="utf-8")
    assert main(["run", f"{crews}:second", "pay", "--store", store, "--json"]) == 3
    run_id = json.loads(capsys.readouterr().out)["run_id"]
    resume = ["resume", f"{changed}:second", run_id, "--store", store, "--answer", "yes"]
    assert main([*resume, "--strict"]) == 1
    assert "changed since run" in (refused := capsys.readouterr().err)
    assert "payer (instructions)" in refused
    assert main(resume) == 0
    out, err = capsys.readouterr()
    assert out == "done\n"
    assert "The crew changed since this run was started: payer (instructions)." in err


def test_warnings_about_settings_are_printed_once(
    crews: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """With their place in the file; `crew run` reads the file more than once."""
    config = tmp_path / "config.yaml"
    config.write_text(
        "history:\n  name: head_tail\n  max_messages: 8\n  summarizer: openai:gpt-5-mini\n", encoding="utf-8"
    )
    command = [sys.executable, "-m", "crew.cli", "run", str(crews), "hi", "--config", str(config)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr.count("summarizer of head_tail has no effect") == 1
    assert f"! {config}:4:3: The summarizer" in done.stderr


def test_metadata_of_a_run_is_stored(crews: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`crew runs --metadata` finds the run by it; a value is a text or JSON."""
    store = str(tmp_path / "runs.db")
    options = ["--store", store, "--metadata", "shop=south", "--metadata", "order=17"]
    assert main(["run", str(crews), "hi", "--quiet", *options]) == 0
    capsys.readouterr()
    assert main(["runs", "--json", *options]) == 0
    [run] = json.loads(capsys.readouterr().out)
    assert run["metadata"] == {"shop": "south", "order": 17}
    assert main(["run", str(crews), "hi", "--metadata", "shop"]) == 2
    assert "--metadata: 'shop' is not KEY=VALUE" in capsys.readouterr().err


def test_output_of_the_file_goes_to_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`crew show FILE > graph.mmd` writes only the graph, also if the file prints something when it is imported."""
    path = tmp_path / "printing_crew.py"
    path.write_text("print('loading')\n" + CREW, encoding="utf-8")
    assert main(["show", str(path)]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("flowchart")
    assert err == "loading\n"


def test_a_paused_run_without_output_prints_nothing_to_stdout(crews: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An empty line would be taken for an answer."""
    assert main(["run", f"{crews}:second", "pay"]) == 3
    assert capsys.readouterr().out == ""


def test_a_scripted_reply_is_not_printed_as_the_name_of_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    """The name of a scripted model is its reply."""
    assert main(["run", "config.yaml:greeter", "Hello"]) == 0
    assert "  host asks scripted (1 message)\n" in capsys.readouterr().err


def test_resolved_instructions_are_not_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They are no news to a user."""
    path = tmp_path / "resolving_crew.py"
    path.write_text(
        "from crew import Agent, ScriptedProvider\n"
        "async def write(context):\n    return 'Serve.'\n"
        "clerk = Agent('clerk', description='Serves.', instructions=write, model=ScriptedProvider('x'))\n"
    )
    assert main(["run", str(path), "hi"]) == 0
    assert capsys.readouterr().err.splitlines()[:2] == ["● clerk starts", "  clerk asks scripted (1 message)"]
