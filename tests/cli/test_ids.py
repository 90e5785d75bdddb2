"""Arguments that name a run or a conversation follow the rule for ids, before anything is opened."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import pytest

from crew.cli import main
from crew.cli.arguments import create_parser

COMMANDS = {
    "cancel": ["cancel", "crew.py", "ID"],
    "chat": ["chat", "crew.py", "--conversation", "ID"],
    "explain": ["explain", "--store", "runs.db", "ID"],
    "export": ["export", "--store", "runs.db", "ID"],
    "forget": ["forget", "--store", "runs.db", "ID"],
    "resume": ["resume", "crew.py", "ID"],
    "runs": ["runs", "--store", "runs.db", "--conversation", "ID"],
    "trace": ["trace", "--store", "runs.db", "ID"],
    "transcript": ["transcript", "--store", "runs.db", "ID"],
}


def commands_with_ids() -> Iterator[str]:
    for action in create_parser()._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, parser in action.choices.items():
                ids = [one for one in parser._actions if one.dest in ("run_id", "id", "conversation")]
                yield from [name] * any(one.nargs != 0 for one in ids)


def test_all_commands_with_ids_are_checked_below() -> None:
    """A new command with the id of a run or a conversation must be added to the list."""
    assert sorted(commands_with_ids()) == sorted(COMMANDS)


@pytest.mark.parametrize("id", ["a b", "", "é", "x" * 129, "a b/c"])
@pytest.mark.parametrize("command", COMMANDS)
def test_invalid_ids_are_refused_with_the_rule(command: str, id: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Although neither the crew nor the store exists: the id is checked first."""
    with pytest.raises(SystemExit) as ended:
        main([id if part == "ID" else part for part in COMMANDS[command]])

    assert ended.value.code == 2
    message = capsys.readouterr().err.splitlines()[-1]
    assert f"an id must be 1–128 characters A–Z a–z 0–9 _ . : -, not {id!r}" in message


def test_id_of_a_branch_names_its_run(capsys: pytest.CaptureFixture[str]) -> None:
    """Events and spans show ids of branches; commands take the id of the run."""
    with pytest.raises(SystemExit):
        main(["transcript", "--store", "runs.db", "refund-17/legal"])

    assert "'refund-17/legal' is a branch, which is part of its run: pass 'refund-17'" in capsys.readouterr().err
