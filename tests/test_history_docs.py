"""The cost tables of docs/history.md are what the simulator prints; tests/test_docs.py runs the Python."""

import argparse
import contextlib
import io
import os
import re
import shlex
from pathlib import Path

import pytest

from crew.cli.simulate_command import add_simulate_parser, simulate_command

ROOT = Path(__file__).parents[1]
TABLES = re.findall(r"```console\n\$ (.*?)\n(policy .*?)```", (ROOT / "docs" / "history.md").read_text(), re.DOTALL)


@pytest.mark.parametrize(("command", "table"), TABLES, ids=["coding", "support", "research"])
def test_a_cost_table_is_what_the_command_prints(command: str, table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The figures were made by the simulator, and are made again here."""
    monkeypatch.chdir(ROOT)
    parser = argparse.ArgumentParser(prog="crew")
    add_simulate_parser(parser.add_subparsers())
    printed = io.StringIO()

    with contextlib.redirect_stdout(printed):
        assert simulate_command(parser.parse_args(shlex.split(command.replace("\\\n", " "))[1:])) == 0

    if os.environ.get("CREW_WRITE_DOCS") == "1":
        page = ROOT / "docs" / "history.md"
        page.write_text(page.read_text(encoding="utf-8").replace(table, printed.getvalue()), encoding="utf-8")
    else:
        assert printed.getvalue() == table, "run CREW_WRITE_DOCS=1 pytest tests/test_history_docs.py"
