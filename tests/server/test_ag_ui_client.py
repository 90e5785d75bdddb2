"""The official AG-UI client runs every example crew over HTTP: it verifies the order and the ids of all events."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from crew import CrewExecutor
from tests.support.example_crews import EXAMPLE_CREWS
from tests.support.http_service import SECRET, served
from tests.support.servers import server_missing

CLIENT = "@ag-ui/client@1.0.0"
SCRIPT = Path(__file__).parent / "ag_ui_client" / "run.mjs"

pytestmark = pytest.mark.servers


@pytest.fixture(scope="module")
def client_folder() -> Path:
    """The folder with the client's npm package, which is installed once and kept."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "crew" / "ag-ui-client-1.0.0"

    if shutil.which("node") is None or shutil.which("npm") is None:
        server_missing("node", "the commands node and npm are not found")

    if not (folder / "node_modules" / "@ag-ui" / "client").is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        command = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(folder), CLIENT]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)

        if done.returncode:
            server_missing("node", f"npm could not install {CLIENT}: {done.stderr.strip()[-300:]}")

    return folder


@pytest.mark.parametrize("name", sorted(EXAMPLE_CREWS))
async def test_the_official_client_accepts_every_event(
    name: str, client_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parallel branches, interrupts and resumed runs included; the ids of all messages are unique."""
    monkeypatch.chdir(tmp_path)  # an example writes a file

    async with served(CrewExecutor(EXAMPLE_CREWS[name]())) as url:
        command = ["node", str(SCRIPT), str(client_folder), f"{url}/ag-ui", SECRET, f"thread-{name}"]
        process = await asyncio.create_subprocess_exec(*command, stdout=-1, stderr=-1)
        output, errors = await asyncio.wait_for(process.communicate(), 60)

    assert process.returncode == 0, errors.decode()
    found = json.loads(output)
    assert found["result"]["stopReason"] == "completed"
    assert found["unique"] == found["messages"] > 1
    assert not errors.decode().strip()
