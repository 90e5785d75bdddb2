"""Types: users get inferred results, and a misspelt field of a state, a step or an event is an error for mypy."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.servers import server_missing
from tests.test_docs import PAGES, snippets

ROOT = Path(__file__).parent.parent

MISSPELT = """
from dataclasses import replace

from crew.fast_replace import fast_replace
from crew.runs.events import HistoryPruned
from crew.runs.state import RunState
from crew.transitions.step import Step


def change(step: Step, state: RunState) -> None:
    step.nxet = state.next
    step.emit(HistoryPruned, plicy="rolling")
    replace(state, nxet=state.next)
    fast_replace(state, nxet=state.next)
"""


WRONG = 'from crew import Agent\n\nx: Agent[int, int] = Agent("a", output=bytes)\n'
USER_CODE = ROOT / "tests" / "support" / "typed_code" / "public_types.py"
TYPED_PAGES = {f"{page.stem.lower().replace('-', '_')}_page.py": page for page in PAGES}
# A page may use a name again for another value.
PAGE_OPTIONS = '# mypy: allow-redefinition, disable-error-code="no-redef"'


def write_page(page: Path, target: Path) -> None:
    """A module with the snippets of a page in a function, at the lines that they have on the page."""
    text = page.read_text(encoding="utf-8")
    lines = [""] * (text.count("\n") + 2)

    for start, code in snippets(text):
        for offset, line in enumerate(code.splitlines()):
            lines[start + offset] = f"    {line}" if line else ""

    lines[0] = "async def page() -> None:"
    target.write_text("\n".join([*lines, "    pass", PAGE_OPTIONS]) + "\n", encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with everything that is checked, so that one process of a checker reads it."""
    (tmp_path / "misspelt.py").write_text(MISSPELT)
    (tmp_path / "wrong.py").write_text(WRONG)
    shutil.copy(USER_CODE, tmp_path)

    for name, page in TYPED_PAGES.items():
        write_page(page, tmp_path / name)

    return tmp_path


def run_checker(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600, check=False)


def errors_by_file(output: str, mark: str) -> dict[str, list[str]]:
    """The lines with this mark, by the name of the file that they begin with."""
    errors: dict[str, list[str]] = {}

    for line in output.splitlines():
        if mark in line:
            errors.setdefault(Path(line.split(":")[0].strip()).name, []).append(line)

    return errors


def test_mypy_accepts_user_code_and_every_page_and_reports_misspelt_fields(folder: Path) -> None:
    """Each `assert_type` in the user code holds, and each of its lines with a `type: ignore` is an error.

    Each of the four ways to write a field is checked by name. The line of an error on a page is that of the page.
    """
    files = sorted(map(str, folder.glob("*.py")))
    options = ["--strict", "--no-pretty", "--config-file", str(ROOT / "pyproject.toml")]
    found = run_checker(folder, "mypy", *options, "--cache-dir", str(ROOT / ".mypy_cache"), *files)
    assert f"(checked {len(files)} source files)" in found.stdout, found.stdout + found.stderr
    errors = errors_by_file(found.stdout, ": error:")
    misspelt = errors.pop("misspelt.py", [])
    assert [word for line in misspelt for word in ("nxet", "plicy") if word in line] == [
        "nxet",
        "plicy",
        "nxet",
        "nxet",
    ], misspelt
    assert errors.pop("wrong.py", []), "errors are found"
    assert not errors


@pytest.mark.servers
def test_pyright_accepts_the_same(folder: Path) -> None:
    """An unnecessary `type: ignore` is an error too."""
    if shutil.which("node") is None:
        server_missing("node", "pyright needs it")

    settings = {
        "extraPaths": [str(ROOT)],
        "pythonVersion": "3.11",
        "reportUnnecessaryTypeIgnoreComment": "error",
    }
    (folder / "misspelt.py").unlink()  # what it imports is not public
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))  # pyright accepts only files below its settings
    found = run_checker(folder, "pyright", "--project", str(folder), "--pythonpath", sys.executable)

    if found.returncode not in (0, 1):
        pytest.skip(f"pyright can't run here: {found.stderr.strip()[-300:]}")

    errors = errors_by_file(found.stdout, " - error: ")
    assert errors.pop("wrong.py", []), "errors are found"
    assert not errors
