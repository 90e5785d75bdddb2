"""The curl commands of docs/serving.md run, in order, against the server of the page."""

from __future__ import annotations

import asyncio
import re
import shutil
from pathlib import Path

import pytest

from tests.support.server_process import SECRET, server_process
from tests.support.servers import server_missing

ROOT = Path(__file__).parent.parent.parent
BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)

pytestmark = pytest.mark.servers


async def test_the_commands_of_the_page_succeed() -> None:
    """Each block is part of one script, which ends at the first command that fails."""
    if shutil.which("curl") is None:
        server_missing("curl", "the command is not installed")

    page = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
    blocks = [block for block in BLOCK.findall(page) if "$URL" in block]
    assert len(blocks) >= 5

    async with server_process("--max-messages", "14", target="examples/support.py") as server:
        script = "\n".join(["set -euo pipefail", f"URL={server.url} TOKEN={SECRET}", *blocks])
        process = await asyncio.create_subprocess_exec(
            "bash", "-c", script, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        printed, _ = await asyncio.wait_for(process.communicate(), 60)

    text = printed.decode()
    assert process.returncode == 0, text
    assert '"run_id":"refund-3"' in text
    assert "event: end" in text
    assert "50 euros were paid back for order 3" in text
