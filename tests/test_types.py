"""Types: users get inferred results, and a misspelt field of a state, a step or an event is an error for mypy."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.servers import server_missing
from tests.test_docs import snippets

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


def test_mypy_reports_misspelt_fields(tmp_path: Path) -> None:
    """Each of the four ways to write a field is checked by name."""
    source = tmp_path / "misspelt.py"
    source.write_text(MISSPELT)
    command = [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", "--no-pretty", str(source)]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    errors = [line for line in found.stdout.splitlines() if ": error:" in line]
    assert [word for line in errors for word in ("nxet", "plicy") if word in line] == [
        "nxet",
        "plicy",
        "nxet",
        "nxet",
    ], found


USER_CODE = ROOT / "tests" / "support" / "typed_code" / "public_types.py"


def test_mypy_infers_outputs_deps_and_signatures_of_tools() -> None:
    """Each `assert_type` in the file holds, and each line with a `type: ignore` is an error."""
    command = [sys.executable, "-m", "mypy", "--strict", "--no-pretty", str(USER_CODE)]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.servers
def test_pyright_infers_the_same(tmp_path: Path) -> None:
    """The same file, with the same errors; an error in a second file shows that errors are found."""
    (tmp_path / "wrong.py").write_text('from crew import Agent\n\nx: Agent[int, int] = Agent("a", output=bytes)\n')
    errors = pyright_errors(USER_CODE, tmp_path)
    assert [Path(error.split(":")[0].strip()).name for error in errors] == ["wrong.py"], errors


def pyright_errors(file: Path, folder: Path) -> list[str]:
    """Run pyright on a copy of the file and what is in the folder. An unnecessary `type: ignore` is an error too."""
    if shutil.which("node") is None:
        server_missing("node", "pyright needs it")

    shutil.copy(file, folder)  # pyright accepts only files below its settings
    settings = {
        "extraPaths": [str(ROOT)],
        "pythonVersion": "3.11",
        "reportUnnecessaryTypeIgnoreComment": "error",
    }
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "pyright", "--project", str(folder), "--pythonpath", sys.executable]
    found = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)

    if found.returncode not in (0, 1):
        pytest.skip(f"pyright can't run here: {found.stderr.strip()[-300:]}")

    return [line for line in found.stdout.splitlines() if " - error: " in line]


TYPED_PAGES = ["README.md", "docs/agents.md", "docs/coming-from.md", "docs/crews.md", "docs/runs.md"]


def write_snippets(folder: Path) -> None:
    """One module for each page, with the snippets in a function, at the lines that they have on the page."""
    for page in TYPED_PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        lines = [""] * (text.count("\n") + 2)

        for start, code in snippets(text):
            for offset, line in enumerate(code.splitlines()):
                lines[start + offset] = f"    {line}" if line else ""

        lines[0] = "async def page() -> None:"
        name = Path(page).stem.lower().replace("-", "_")
        (folder / f"{name}_page.py").write_text("\n".join(lines) + "\n")


@pytest.mark.servers
def test_checkers_accept_the_snippets_of_the_docs(tmp_path: Path) -> None:
    """mypy strict, and pyright. A page may use a name again for another value."""
    write_snippets(tmp_path)
    command = [sys.executable, "-m", "mypy", "--strict", "--no-pretty", "--allow-redefinition"]
    command += ["--disable-error-code=no-redef", *map(str, tmp_path.glob("*_page.py"))]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
    assert f"in {len(TYPED_PAGES)} source files" in found.stdout
    assert pyright_errors(USER_CODE, tmp_path) == []
