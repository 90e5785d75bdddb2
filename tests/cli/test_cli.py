"""The command line: what a person types, and what comes back."""

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


def test_the_answer_goes_to_stdout_and_what_happens_to_stderr(crews: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """So that the answer can be piped."""
    assert main(["run", str(crews), "hi"]) == 0
    out, err = capsys.readouterr()
    assert out == "hello\n"
    assert "● alone" in err
    assert "completed" in err


def test_the_input_may_stand_after_the_options(crews: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As one types it; what is no input is refused as ever."""
    assert main(["run", str(crews), "--quiet", "hi"]) == 0
    assert capsys.readouterr().out == "hello\n"

    for wrong in (["--quiet", "hi", "there"], ["hi", "--quiet", "there"], ["--bogus"], ["hi", "--bogus"]):
        with pytest.raises(SystemExit) as stopped:
            main(["run", str(crews), *wrong])

        assert stopped.value.code == 2
        assert "unrecognized arguments: " in capsys.readouterr().err

    with pytest.raises(SystemExit):
        main(["show", str(crews), "hi"])


def test_quiet_and_json(crews: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For programs."""
    assert main(["run", str(crews), "hi", "--json", "--quiet", "--max-messages", "5"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert json.loads(out) | {"run_id": ""} == {
        "output": "hello",
        "stop_reason": "completed",
        "run_id": "",
        "trace_id": "",
        "agent": "alone",
        "usage": json.loads(out)["usage"],
        "messages": 2,
        "limit": 5,
        "prunings": 0,
        "messages_pruned": 0,
        "pauses": [],
    }


def test_a_pause_with_nobody_there_is_told(crews: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The exit code says it, and stderr what it waits for."""
    assert main(["run", f"{crews}:second", "pay"]) == 3
    assert "May payer call pay" in capsys.readouterr().err


def test_a_run_that_a_file_kept_is_carried_on_by_another_process(
    crews: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pause here, answer there: the hint that is printed is the command that works."""
    store = str(tmp_path / "runs.db")
    assert main(["run", f"{crews}:second", "pay", "--store", store]) == 3
    hint = capsys.readouterr().err.strip().rsplit("crew: go on with: crew ", 1)[1]
    assert main(hint.split()) == 0
    assert capsys.readouterr().out == "done\n"
    assert main(hint.split()) == 2
    assert "holds no run" in capsys.readouterr().err


def test_resume_names_what_is_pending(crews: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An answer that nothing waits for changes nothing."""
    store = str(tmp_path / "runs.db")
    assert main(["run", f"{crews}:third", "hi", "--store", store, "--json"]) == 3
    pause = json.loads(capsys.readouterr().out)
    assert main(["resume", f"{crews}:third", pause["run_id"], "--store", store, "--answer", "x=y"]) == 2
    assert pause["pauses"][0]["id"] in capsys.readouterr().err
    assert main(["resume", f"{crews}:third", pause["run_id"]]) == 2


def test_a_person_at_the_terminal_answers(
    crews: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Approvals and questions are asked where the crew runs."""
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr("builtins.input", lambda prompt: "y")
    assert main(["run", f"{crews}:second", "pay"]) == 0
    assert capsys.readouterr().out == "done\n"


def test_a_limit_has_its_own_exit_code(crews: Path) -> None:
    """A script can tell a limit from a failure."""
    assert main(["run", f"{crews}:second", "pay", "--rounds", "0"]) == 4


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("nowhere.py", "no such file"),
        ("no.such.module:crew", "can't be imported"),
        ("{crews}:nobody", "no crew or agent named 'nobody'"),
        ("", "'' is neither a file nor a module"),
        ("./crews", "'./crews' is neither a file nor a module"),
        ("json", "there is no crew and no agent in it"),
        ("config.yaml:greter", "Did you mean 'greeter'"),
    ],
)
def test_a_target_that_is_not_there(crews: Path, target: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One line that says what to do, no trace back."""
    assert main(["run", target.format(crews=crews), "hi"]) == 2
    err = capsys.readouterr().err
    assert words in err
    assert "Traceback" not in err


def test_a_file_that_raises_shows_its_own_lines_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What led to the user's code is nobody's business."""
    (tmp_path / "broken.py").write_text("def connect():\n    raise OSError('no database')\n\nconnect()\n")
    assert main(["run", str(tmp_path / "broken.py"), "hi"]) == 2
    err = capsys.readouterr().err
    assert "broken.py: it raised while it was loaded: OSError: no database" in err
    assert err.count("  File ") == 2


def test_a_file_that_ends_the_process_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its exit code would be taken for that of a run."""
    (tmp_path / "ending.py").write_text("import sys\nsys.exit(3)\n")
    assert main(["run", str(tmp_path / "ending.py"), "hi"]) == 2
    assert "ended the process while it was loaded, with 3" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--store", "nowhere/runs.db"], "--store: there is no folder 'nowhere'; make it first"),
        (["--store", "examples"], "--store: this must be a file such as runs.db, not 'examples'"),
        (["--store", ""], "--store: this must be a file such as runs.db, not ''"),
        (["--config", ""], "the file can't be read"),
        (["--config", "nowhere.yaml"], "nowhere.yaml: the file can't be read"),
        (["--max-messages", "0"], "max_messages_per_request must be a positive integer such as 50, not 0"),
        (["--rounds", "-1"], "rounds must be 0 or a positive integer, not -1"),
    ],
)
def test_an_option_that_can_not_be_is_wrong_usage(
    crews: Path, options: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line with the value, before anything runs."""
    assert main(["run", str(crews), "hi", *options]) == 2
    assert words in capsys.readouterr().err


def test_a_store_that_is_not_there_is_not_made_by_resume(
    crews: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A name that was mistyped would leave an empty file behind."""
    assert main(["resume", str(crews), "run", "--store", str(tmp_path / "typo.db")]) == 2
    assert "typo.db'; --store FILE says where the run was kept" in capsys.readouterr().err
    assert not (tmp_path / "typo.db").exists()


def test_input_that_nobody_gives_is_asked_for(
    crews: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A person is told that the command waits; without any standard input it says what to do."""
    typed = StringIO("hi\n")
    monkeypatch.setattr(typed, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys, "stdin", typed)
    assert main(["run", str(crews), "--quiet"]) == 0
    assert capsys.readouterr() == ("hello\n", "crew: type the input; Ctrl-D on a line of its own ends it\n")
    monkeypatch.setattr(sys, "stdin", None)
    assert main(["run", str(crews)]) == 2
    assert "there is no input" in capsys.readouterr().err
    assert main(["run", f"{crews}:second", "pay"]) == 3


def test_an_answer_is_printed_whatever_the_terminal_can_show(crews: Path) -> None:
    """Letters that its encoding has not are spelled out; where nothing can be written, that is said."""
    crews.write_text(CREW.replace("hello", "gęś"), encoding="utf-8")
    command = [sys.executable, "-m", "crew.cli", "run", str(crews), "hi", "--quiet"]
    done = subprocess.run(command, env=os.environ | {"PYTHONIOENCODING": "ascii"}, capture_output=True, check=False)
    assert (done.returncode, done.stdout.split()) == (0, [rb"g\u0119\u015b"])

    if Path("/dev/full").exists():
        with Path("/dev/full").open("w") as full:
            done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, check=False)

        assert done.returncode == 1
        assert done.stderr.startswith(b"crew: the answer can't be written")


def test_bad_input_is_one_clear_line(crews: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The validator's words reach the terminal."""
    assert main(["run", str(crews), "  "]) == 2
    assert "blank" in capsys.readouterr().err


def test_show_draws_the_graph(capsys: pytest.CaptureFixture[str]) -> None:
    """Mermaid, which many tools draw."""
    assert main(["show", "examples/demo.py"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("flowchart LR")
    assert "panel -- then --> editor" in out


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    """Each command has a description and an example."""
    assert main([]) == 2
    assert "crew run config.yaml:greeter" in capsys.readouterr().out

    with pytest.raises(SystemExit):
        main(["run", "--help"])

    assert "Exit codes" in capsys.readouterr().out


def test_the_module_runs_as_a_command() -> None:
    """`python -m crew.cli` is the same; input may come from a pipe."""
    done = subprocess.run(
        [sys.executable, "-m", "crew.cli", "run", "config.yaml"],
        input="Hello\n",
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("Hello!")


def test_a_run_that_is_stopped_or_fails_tells_how_it_goes_on(
    crews: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the settings that it had, so that the bound does not change on the way."""
    failing = tmp_path / "failing_for_cli.py"
    failing.write_text(
        "from crew import Agent, ScriptedProvider\nagent = Agent('a', model=ScriptedProvider(KeyError('no')))\n"
    )
    store = str(tmp_path / "runs of mine.db")
    settings = ["--max-messages", "7", "--history", "rolling:prune_to=3", "--rounds", "9"]
    assert main(["run", str(failing), "hi", "--store", store, *settings]) == 1
    hint = capsys.readouterr().err.rsplit("crew: go on with: crew ", 1)[1].splitlines()[0]
    assert shlex.split(hint)[3:] == ["--store", store, *settings]

    failing.write_text("from crew import Agent, ScriptedProvider\nagent = Agent('a', model=ScriptedProvider('fine'))\n")
    assert main([*shlex.split(hint), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["limit"] == 7

    failing.write_text(
        "from crew import Agent, ScriptedProvider\ndef stop(request):\n    raise KeyboardInterrupt\n"
        "agent = Agent('a', model=ScriptedProvider(stop))\n"
    )
    assert main(["run", str(failing), "hi", "--store", store]) == 130
    assert "crew: go on with: crew resume" in capsys.readouterr().err


def test_the_tree_of_a_run_is_named_after_the_crew(crews: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As its root span is."""
    assert main(["run", f"{crews}:second", "pay", "--trace"]) == 3
    assert "invoke_workflow second" in capsys.readouterr().err


def test_a_run_is_recorded_for_the_simulator_and_for_the_next_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With its calls and branches; the messages go in as a history, in any process."""
    record = tmp_path / "run.json"
    assert main(["run", "examples/demo.py", "Sign?", "--quiet", "--record", str(record)]) == 0
    kept = read_recording(record)
    assert {"triage", "legal", "finance", "delivery", "editor"} == set(kept.agents)
    assert main(["simulate", str(record), "-p", "rolling:limit=12"]) == 0
    assert "rolling" in capsys.readouterr().out

    agent = Agent("next", model=ScriptedProvider("Fine."))
    result = CrewExecutor(agent).execute_sync("And now?", history=kept.messages)
    assert result.history[0].text == "Sign?"
    assert len(result.history) == len(kept.messages) + 2

    assert main(["run", "examples/hello.py", "Hi", "--quiet", "--record", str(tmp_path)]) == 1
    out, err = capsys.readouterr()
    assert out == "It left the warehouse today.\n"  # the answer is not lost with the file
    assert "can't be written" in err


@pytest.mark.parametrize("ending", ["yaml", "yml"])
def test_a_configured_crew_finds_tools_beside_its_file_and_has_its_settings(
    ending: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever the command is called from, and whichever ending the file has."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / f"tools_beside_{ending}.py").write_text("def lamp() -> str:\n    'Light.'\n    return 'on'\n")
    agent = f"{{model: 'scripted:Fine.', tools: ['tools_beside_{ending}:lamp']}}"
    file = tmp_path / f"desk.{ending}"
    file.write_text(f"max_messages_per_request: 9\ncrews: {{desk: {{agents: {{host: {agent}}}}}}}\n")
    assert main(["run", f"{file}:desk", "hi", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["limit"] == 9


def test_a_streamed_reply_that_begins_again_says_so(crews: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What was shown of an attempt that failed is not taken for part of the answer."""
    (crews.parent / "stumbling.py").write_text(
        "from crew import Agent, ScriptedProvider\n"
        "from crew.interfaces import Delta\n"
        "class Stumbles(ScriptedProvider):\n"
        "    async def complete(self, request, on_delta=None):\n"
        "        if on_delta:\n"
        "            on_delta(Delta(text='hel'))\n"
        "            on_delta(Delta(text='', kind='restart'))\n"
        "        return await super().complete(request, on_delta)\n"
        "agent = Agent('a', model=Stumbles('hello'))\n",
        encoding="utf-8",
    )
    assert main(["run", str(crews.parent / "stumbling.py"), "hi", "--stream", "--quiet"]) == 0
    out, err = capsys.readouterr()
    assert out == "hello\n"
    assert err == "hel\n[that attempt failed; the reply begins again]\nhello"
