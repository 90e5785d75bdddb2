"""The documentation is executable: its Python runs, and its tables are the output of the commands above them."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import io
import os
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from crew.cli.arguments import create_parser
from crew.cli.simulate_command import simulate_command
from tests.wire import Model, Reply, WireServer

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```python *(?P<mark>[^\n]*)\n(?P<code>.*?)^```", re.MULTILINE | re.DOTALL)
HISTORY_PAGE = ROOT / "docs" / "history.md"
COST_TABLES = re.findall(r"```console\n\$ (.*?)\n(policy .*?)```", HISTORY_PAGE.read_text(encoding="utf-8"), re.DOTALL)


def snippets(text: str) -> list[tuple[int, str]]:
    """The Python blocks of a page and the line numbers they start at, without the blocks marked `no-run`."""
    found = BLOCK.finditer(text)
    return [(text[: m.start("code")].count("\n"), m["code"]) for m in found if m["mark"].strip() != "no-run"]


def run(page: str, text: str) -> int:
    """Execute the blocks of a page in order and in one namespace; return how many there were."""
    names: dict[str, Any] = {"__name__": "__main__"}
    blocks = snippets(text)

    for line, code in blocks:
        # The line numbers in a traceback are those of the page.
        compiled = compile("\n" * line + code, page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        value = eval(compiled, names)

        if inspect.iscoroutine(value):
            asyncio.run(_wait_for(value))

    return len(blocks)


async def _wait_for(coroutine: Any) -> None:
    await coroutine


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_on_the_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests go to a local server, by the environment variables of the SDKs; files go to a temporary directory."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)

    with WireServer(lambda *_: Reply(text="Because."), model=Model(era="modern")) as server:
        monkeypatch.setenv("OPENAI_API_KEY", "key")
        monkeypatch.setenv("OPENAI_BASE_URL", server.openai_url)
        monkeypatch.setenv("ANTHROPIC_API_KEY", "key")
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        run(str(page), page.read_text(encoding="utf-8"))


def test_blocks_run_in_order_and_marked_blocks_are_skipped() -> None:
    """The check above can fail: an error in a block is raised."""
    page = (
        "Text\n```python\nx = 1\n```\n```python no-run\nx = 1 / 0\n```\n```sh\nno\n```\n```python\nassert x == 1\n```\n"
    )
    assert snippets(page) == [(2, "x = 1\n"), (11, "assert x == 1\n")]
    assert run("page", page) == 2

    with pytest.raises(ZeroDivisionError):
        run("page", "```python\n1 / 0\n```\n")

    with pytest.raises(AssertionError):
        run("page", "```python\nimport asyncio\nawait asyncio.sleep(0)\nassert False\n```\n")


@pytest.mark.parametrize(("command", "table"), COST_TABLES, ids=["coding", "support", "research"])
def test_cost_table_is_the_output_of_its_command(command: str, table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables of docs/history.md are printed by the simulator."""
    monkeypatch.chdir(ROOT)
    printed = io.StringIO()

    with contextlib.redirect_stdout(printed):
        assert simulate_command(create_parser().parse_args(shlex.split(command.replace("\\\n", " "))[1:])) == 0

    if os.environ.get("CREW_WRITE_DOCS") == "1":
        text = HISTORY_PAGE.read_text(encoding="utf-8").replace(table, printed.getvalue())
        HISTORY_PAGE.write_text(text, encoding="utf-8")
    else:
        assert printed.getvalue() == table, "run CREW_WRITE_DOCS=1 pytest tests/test_docs.py"


def test_example_of_a_custom_provider_is_short() -> None:
    """The provider class in docs/providers.md has at most forty lines."""
    page = (ROOT / "docs" / "providers.md").read_text(encoding="utf-8")
    example = next(block["code"] for block in BLOCK.finditer(page) if "class Parrot" in block["code"])
    assert len([line for line in example.splitlines() if line.strip()]) <= 40
