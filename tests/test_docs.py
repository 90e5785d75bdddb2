"""The Python in the README and in docs/ runs: a reader may copy any of it."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from tests.wire import Model, Reply, WireServer

ROOT = Path(__file__).parent.parent
PAGES = [page for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))) if page.exists()]
BLOCK = re.compile(r"^```python *(?P<mark>[^\n]*)\n(?P<code>.*?)^```", re.MULTILINE | re.DOTALL)


def snippets(text: str) -> list[tuple[int, str]]:
    """The Python blocks of a page with the lines they begin at; those marked `no-run` are left out."""
    found = BLOCK.finditer(text)
    return [(text[: m.start("code")].count("\n"), m["code"]) for m in found if m["mark"].strip() != "no-run"]


def run(page: str, text: str) -> int:
    """Execute a page from top to bottom, its blocks in one namespace as a reader would type them; how many ran."""
    names: dict[str, Any] = {"__name__": "__main__"}
    blocks = snippets(text)

    for line, code in blocks:
        # The line numbers of an error are those of the page.
        made = compile("\n" * line + code, page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        done = eval(made, names)

        if inspect.iscoroutine(done):
            asyncio.run(_awaited(done))

    return len(blocks)


async def _awaited(done: Any) -> None:
    await done


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_python_on_the_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Models are asked at a local server, through the variables of the SDKs; what is written is written elsewhere."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)

    with WireServer(lambda *_: Reply(text="Because."), model=Model(era="modern")) as server:
        monkeypatch.setenv("OPENAI_API_KEY", "key")
        monkeypatch.setenv("OPENAI_BASE_URL", server.openai_url)
        monkeypatch.setenv("ANTHROPIC_API_KEY", "key")
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        run(str(page), page.read_text(encoding="utf-8"))


def test_a_page_is_run_in_order_and_what_is_marked_is_left_out() -> None:
    """A test that runs nothing would pass for any page."""
    page = (
        "Text\n```python\nx = 1\n```\n```python no-run\nx = 1 / 0\n```\n```sh\nno\n```\n```python\nassert x == 1\n```\n"
    )
    assert snippets(page) == [(2, "x = 1\n"), (11, "assert x == 1\n")]
    assert run("page", page) == 2

    with pytest.raises(ZeroDivisionError):
        run("page", "```python\n1 / 0\n```\n")

    with pytest.raises(AssertionError):
        run("page", "```python\nimport asyncio\nawait asyncio.sleep(0)\nassert False\n```\n")
