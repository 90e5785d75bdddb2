"""Answers to pauses on the command line: at the prompt, and as `--answer` of `crew resume`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from crew.cli import main
from crew.runs.answer_text import APPROVALS, parse_answer
from crew.runs.state import Pause
from crew.validation.answer_checks import AMBIGUOUS_REASONS

CREW = """\
from crew import Agent, Crew, Parallel, ScriptedProvider, call, tool
from crew.agents import NeedsApproval, guardrail

@tool(approval="always")
def pay(amount: int) -> str:
    "Pay."
    return f"paid {amount}"

def reply(request):
    return request.messages[-1].results[0].text

def clerk(name):
    return Agent(name, model=ScriptedProvider(call("pay", amount=3), reply), tools=[pay])

@guardrail("output")
def check(context, text):
    return NeedsApproval("Publish it?")

writer = Agent("writer", model=ScriptedProvider("The draft."), guardrails=[check])
clerks = [clerk("anna"), clerk("ben")]
one = Crew("one", agents=[clerk("clerk")])
two = Crew("two", agents=clerks, groups=[Parallel("both", branches=clerks)], entry="both")
"""


@pytest.fixture
def crews(tmp_path: Path) -> Path:
    path = tmp_path / "crews_for_answers.py"
    path.write_text(CREW, encoding="utf-8")
    return path


@pytest.fixture
def type_answers(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """A function that sets the lines that the user types; it returns the list of prompts."""

    def set_lines(*lines: str) -> list[str]:
        typed, prompts = iter(lines), []

        def read(prompt: str) -> str:
            prompts.append(prompt)
            return next(typed)

        monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
        monkeypatch.setattr("builtins.input", read)
        return prompts

    return set_lines


def pause(reason: str) -> Pause:
    return Pause(id="run:call", reason=reason, run_id="run", agent="a", text="?")


def test_an_empty_line_asks_again(
    crews: Path, type_answers: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Enter alone must not refuse a call; the prompt lists the accepted answers."""
    prompts = type_answers("", "  ", "yes")
    assert main(["run", f"{crews}:one", "pay"]) == 0
    assert prompts == ["yes, no, edit, or a reason for refusing > "] * 3
    out, err = capsys.readouterr()
    assert out == "paid 3\n"
    assert "⏸ clerk wants to call pay(amount: 3): waits for approval" in err


@pytest.mark.parametrize(
    ("answer", "line"), [("maybe", "✗ pay was refused: maybe\n"), ("no", "✗ pay was refused\n"), ("yes", "")]
)
def test_a_refusal_is_printed(
    answer: str,
    line: str,
    crews: Path,
    tmp_path: Path,
    type_answers: Callable[..., list[str]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A mistyped yes is a reason for refusing, and the user can see it; with --answer as at the prompt."""
    store = str(tmp_path / "runs.db")
    assert main(["run", f"{crews}:one", "pay", "--store", store, "--json"]) == 3
    out, err = capsys.readouterr()
    run_id = json.loads(out)["run_id"]
    assert err.startswith(f"crew: run {run_id}\n")

    assert main(["resume", f"{crews}:one", run_id, "--store", store, f"--answer={answer}"]) == 0
    assert _refusal(capsys.readouterr().err) == line

    type_answers(answer)
    assert main(["run", f"{crews}:one", "pay"]) == 0
    assert _refusal(capsys.readouterr().err) == line


def _refusal(err: str) -> str:
    return "".join(line for line in err.splitlines(keepends=True) if "was refused" in line)


def test_an_answer_without_a_pause_needs_exactly_one_pending_pause(
    crews: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With several, the error lists them, and the run is unchanged."""
    store = str(tmp_path / "runs.db")
    assert main(["run", f"{crews}:two", "pay", "--store", store, "--json", "--quiet"]) == 3
    result = json.loads(capsys.readouterr().out)
    resume = ["resume", f"{crews}:two", result["run_id"], "--store", store]
    pending = ", ".join(pause["id"] for pause in result["pauses"])
    assert main([*resume, "--answer", "yes"]) == 2
    assert capsys.readouterr().err == f"crew: --answer: must be PAUSE=ANSWER, not 'yes'; pending: {pending}\n"
    first, second = (pause["id"] for pause in result["pauses"])
    assert main([*resume, "--answer", f"{first}="]) == 2
    assert "must be yes, no, edit, or a reason for refusing, not ''" in capsys.readouterr().err
    assert main([*resume, "--answer", f"{first}=yes", "--answer", f"{second}=a=b"]) == 0
    assert "✗ pay was refused: a=b\n" in capsys.readouterr().err


@pytest.mark.parametrize("reason", ["approval", "consent"])
@pytest.mark.parametrize(
    ("text", "answer"),
    [
        *((text, True) for text in ("yes", "y", "OK", "true", "Yes!")),
        *((text, False) for text in ("no", "n", "False", "no.")),
        *((text, None) for text in ("yes please", "ok, but less", "y?", *sorted(AMBIGUOUS_REASONS - {*APPROVALS}))),
        *((text, text) for text in ("no, too much", "maybe", "okra is not food", "yesterday was better")),
    ],
)
def test_only_a_plain_yes_approves(reason: str, text: str, answer: object) -> None:
    """A text that begins like an approval and says more is neither an approval nor the reason of a refusal."""
    assert parse_answer(pause(reason), text) == answer


def test_an_ambiguous_answer_prints_no_refusal(
    crews: Path, tmp_path: Path, type_answers: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    """The error says what to type, in the words of the command line; the run stays paused."""
    problem = "'yes please' is ambiguous: answer yes or no, or refuse with a reason: no, REASON\n"
    store = str(tmp_path / "runs.db")
    assert main(["run", f"{crews}:one", "pay", "--store", store, "--json"]) == 3
    resume = ["resume", f"{crews}:one", json.loads(capsys.readouterr().out)["run_id"], "--store", store]
    assert main([*resume, "--answer=yes please"]) == 2
    assert capsys.readouterr().err == f"crew: --answer: {problem}"
    assert main([*resume, "--answer=ok"]) == 0
    assert capsys.readouterr().out == "paid 3\n"

    type_answers("yes please", "no")
    assert main(["run", f"{crews}:one", "pay"]) == 0
    assert f"crew: {problem}" in capsys.readouterr().err


def test_a_refusal_is_printed_only_if_the_run_accepts_the_answers(
    crews: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One of two answers has arguments that the tool does not accept: the other one refuses nothing yet."""
    store = str(tmp_path / "runs.db")
    assert main(["run", f"{crews}:two", "pay", "--store", store, "--json", "--quiet"]) == 3
    result = json.loads(capsys.readouterr().out)
    first, second = (pause["id"] for pause in result["pauses"])
    resume = ["resume", f"{crews}:two", result["run_id"], "--store", store, f"--answer={first}=no"]
    assert main([*resume, f'--answer={second}=edit {{"amount": "much"}}']) == 2
    assert "was refused" not in capsys.readouterr().err
    assert main([*resume, f"--answer={second}=yes"]) == 0
    assert "✗ pay was refused\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("run again", "run again"),
        ("Skip", "skip"),
        ("done=paid = 3", {"done": "paid = 3"}),
        ("done=", {"done": ""}),
        ("no", None),
        ("yes", None),
        ("paid 3", None),
        ("", None),
    ],
)
def test_a_call_in_doubt_accepts_no_other_answer(text: str, answer: object) -> None:
    """`no` must not become the result of the call."""
    assert parse_answer(pause("in_doubt"), text) == answer


def test_resume_help_lists_the_answers(capsys: pytest.CaptureFixture[str]) -> None:
    """For each reason of a pause, and says that --store is required."""
    with pytest.raises(SystemExit):
        main(["resume", "--help"])

    text = " ".join(capsys.readouterr().out.split())
    assert "yes, no, edit, or a reason for refusing" in text
    assert "run again, skip, or done=RESULT" in text
    assert "the SQLite file or postgresql:// URL that holds the run (required)" in text


def test_no_is_not_recorded_as_the_result_of_a_call_in_doubt(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The process ends during the call; `no` is rejected, and `done=RESULT` is the result that the model sees."""
    path, store = tmp_path / "killed_for_answers.py", str(tmp_path / "runs.db")
    path.write_text(
        CREW.replace('(approval="always")', "").replace("    return f", "    import os; os._exit(9)\n    #")
    )
    command = [sys.executable, "-m", "crew.cli", "run", f"{path}:one", "pay", "--store", store]
    killed = subprocess.run(command, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert killed.returncode == 9
    run_id = killed.stderr.splitlines()[0].removeprefix("crew: run ")
    resume = ["resume", f"{path}:one", run_id, "--store", store]
    assert main(resume) == 3
    assert main([*resume, "--answer", f"{run_id}:1.0=no"]) == 2
    assert "must be run again, skip, or done=RESULT, not 'no'" in capsys.readouterr().err
    assert main([*resume, "--answer", "done=paid 5"]) == 0
    assert capsys.readouterr().out == "paid 5\n"


def test_edit_at_the_prompt_asks_for_each_argument(
    crews: Path, type_answers: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    """A value that the tool refuses is explained, and the user is asked again."""
    prompts = type_answers("edit", "much", "edit", "7")
    assert main(["run", f"{crews}:one", "pay"]) == 0
    assert prompts[1] == "  amount [3] > "
    out, err = capsys.readouterr()
    assert out == "[A person changed the arguments of this call before it ran: amount: 3 → 7.]\npaid 7\n"
    assert "pay does not accept these arguments. amount: Input should be a valid integer" in err
    assert "✎ arguments of pay changed: amount: 3 → 7" in err


@pytest.mark.parametrize("answer", ['edit {"amount": 7}', '{"approve": {"arguments": {"amount": 7}}}'])
def test_edit_as_an_option_takes_json(
    answer: str, crews: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Arguments that `edit` does not name stay; an object is the answer as `resume` accepts it."""
    store = str(tmp_path / "runs.db")
    assert main(["run", f"{crews}:one", "pay", "--store", store, "--json"]) == 3
    run_id = json.loads(capsys.readouterr().out)["run_id"]
    resume = ["resume", f"{crews}:one", run_id, "--store", store]
    assert main([*resume, "--answer", "edit amount=7"]) == 2
    assert "must be yes, no, edit, or a reason" in capsys.readouterr().err
    assert main([*resume, "--answer", answer]) == 0
    assert capsys.readouterr().out.endswith("paid 7\n")


ASKING = """\
from crew import Agent, Context, ScriptedProvider, StopRun, call, tool

@tool(asks=True)
def choose(context: Context) -> str:
    "Choose."
    colour = context.ask_user("Which colour?", choices=["red", "blue"])

    if context.ask_user("Really?") == "no":
        raise StopRun("The user changed their mind.")

    return colour

def reply(request):
    return request.messages[-1].results[0].text

agent = Agent("painter", model=ScriptedProvider(call("choose"), reply), tools=[choose])
"""


def test_questions_of_a_tool_are_asked_at_the_prompt(
    tmp_path: Path, type_answers: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    """A choice is typed as its text or its number; another text is asked for again."""
    path = tmp_path / "asking_crew.py"
    path.write_text(ASKING, encoding="utf-8")
    type_answers("green", "2", "sure")
    assert main(["run", f"{path}:agent", "paint"]) == 0
    out, err = capsys.readouterr()
    assert out == "blue\n"
    assert "⏸ choose asks: Which colour?" in err
    assert "Which colour?\n  1. red\n  2. blue\n" in err
    assert "crew: the answer must be a choice or its number ('red', 'blue'), not 'green'" in err


def test_choices_are_printed_without_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the run that stays paused, in its JSON, and in the error for another answer."""
    path, store = tmp_path / "asking_crew_in_a_pipe.py", str(tmp_path / "runs.db")
    path.write_text(ASKING, encoding="utf-8")
    assert main(["run", f"{path}:agent", "paint", "--store", store, "--json"]) == 3
    out, err = capsys.readouterr()
    result = json.loads(out)
    [pause] = result["pauses"]
    assert pause["choices"] == ["red", "blue"]
    assert "Which colour?\n  1. red\n  2. blue\ncrew: answer with a choice or its number\n" in err
    assert f"--answer={pause['id']}=red\n" in err
    resume = ["resume", f"{path}:agent", result["run_id"], "--store", store, "--answer"]
    assert main([*resume, "green"]) == 2
    assert "must be a choice or its number ('red', 'blue'), not 'green'" in capsys.readouterr().err
    assert main([*resume, "2"]) == 3


def test_a_tool_that_ends_the_run_has_its_exit_code(
    tmp_path: Path, type_answers: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    """The reason is printed, and in the JSON."""
    path = tmp_path / "stopping_crew.py"
    path.write_text(ASKING, encoding="utf-8")
    type_answers("red", "no")
    assert main(["run", f"{path}:agent", "paint", "--json"]) == 5
    out, err = capsys.readouterr()
    assert json.loads(out)["stop_text"] == "The user changed their mind."
    assert "■ tool choose ended the run: The user changed their mind." in err


def test_answer_to_a_run_that_waits_for_none_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run that failed is resumed without an answer; the error says so."""
    failing = tmp_path / "failing_for_answers.py"
    failing.write_text(
        "from crew import Agent, ScriptedProvider\nagent = Agent('a', model=ScriptedProvider(KeyError('no')))\n"
    )
    store = str(tmp_path / "runs.db")
    assert main(["run", str(failing), "hi", "--store", store]) == 1
    run_id = capsys.readouterr().err.splitlines()[0].removeprefix("crew: run ")
    assert main(["resume", str(failing), run_id, "--store", store, "--answer", "yes"]) == 2
    assert f"the run {run_id} waits for no answer: resume it without --answer" in capsys.readouterr().err


def test_the_text_that_a_guardrail_asks_about_is_printed(
    crews: Path, type_answers: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    """At the prompt, without a terminal, and as JSON."""
    assert main(["run", f"{crews}:writer", "write"]) == 3
    assert "(consent): Publish it?\n\nThe draft.\n" in capsys.readouterr().err
    assert main(["run", f"{crews}:writer", "write", "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["pauses"][0]["checked"] == "The draft."
    type_answers("yes")
    assert main(["run", f"{crews}:writer", "write"]) == 0
    out, err = capsys.readouterr()
    assert out == "The draft.\n"
    assert "\nPublish it?\n\nThe draft.\n" in err


GUARDED = """\
from crew import Agent, NeedsApproval, ScriptedProvider, call, guardrail, tool

@tool
def refund(order: str) -> str:
    "Pay money back."
    return "Paid."

@guardrail("tool")
def check(context, made):
    return NeedsApproval("Is this right? The refunds of today are high.")

clerk = Agent("clerk", model=ScriptedProvider(call("refund", order="17"), "Done."), tools=[refund], guardrails=[check])
"""


def test_an_approval_that_a_guardrail_asks_for_names_the_call(
    tmp_path: Path, type_answers: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where its question has only a longer word that contains the name of the tool."""
    path, expected = tmp_path / "guarded_for_answers.py", "clerk wants to call refund: Is this right? The refunds"
    path.write_text(GUARDED, encoding="utf-8")
    assert main(["run", str(path), "hi"]) == 3
    assert f"(approval): {expected}" in capsys.readouterr().err
    type_answers("yes")
    assert main(["run", str(path), "hi"]) == 0
    assert f"\n{expected}" in capsys.readouterr().err
