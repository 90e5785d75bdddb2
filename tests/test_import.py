"""Nothing happens at import."""

from __future__ import annotations

import json
import subprocess
import sys

PROBE = """
import json, logging, os, socket, sys, threading, warnings

before = dict(os.environ)
opened = []
sys.addaudithook(lambda name, args: opened.append(name) if name.startswith(("socket.", "subprocess.")) else None)
root = list(logging.root.handlers)
import crew
print(json.dumps({
    "threads": threading.active_count(),
    "root_handlers": len(logging.root.handlers) - len(root),
    "handlers": sorted(n for n, l in logging.root.manager.loggerDict.items() if getattr(l, "handlers", None)),
    "environment": dict(os.environ) == before,
    "opened": opened,
    "modules": sorted(m for m in sys.modules if "." not in m),
    "loops": "asyncio" in sys.modules and sys.modules["asyncio"].events._get_running_loop() is not None,
}))
"""
HEAVY = {"openai", "anthropic", "httpx2", "httpx", "aiohttp"}


def test_importing_crew_does_nothing() -> None:
    """No thread, no handler, no environment, no socket, no process, no vendor's SDK, and not a word printed."""
    done = subprocess.run([sys.executable, "-W", "error", "-c", PROBE], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert len(lines) == 1
    assert done.stderr == ""
    found = json.loads(lines[0])
    assert found["threads"] == 1
    assert found["root_handlers"] == 0
    assert found["handlers"] == []
    assert found["environment"]
    assert found["opened"] == []
    assert not found["loops"]
    assert HEAVY.isdisjoint(found["modules"])
