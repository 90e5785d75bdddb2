"""Nothing happens at import, and each module is loaded by the first use that needs it."""

from __future__ import annotations

import ast
import importlib.util
import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import crew
from crew.lazy_names import lazy_names
from tests.wire import wire_process

ROOT = Path(__file__).parent.parent
PROBE = """
import json, logging, os, socket, sys, threading, warnings

before = dict(os.environ)
opened = []
sys.addaudithook(lambda name, args: opened.append(name) if name.startswith(("socket.", "subprocess.")) else None)
root = list(logging.root.handlers)
from crew import *
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
SDKS = {"openai", "anthropic", "httpx2", "httpx", "aiohttp"}
HEAVY = SDKS | {"yaml", "opentelemetry", "structlog", "genai_prices", "rs_bpe", "docstring_parser", "sqlite3"}

COMMAND = {
    "crew",
    "crew.cli",
    "crew.cli.arguments",
    "crew.cli.escaped_output",
    "crew.cli.mcp_arguments",
    "crew.cli.serve_arguments",
    "crew.cli.signals",
    "crew.cli.simulate_arguments",
    "crew.control_characters",
    "crew.errors",
    "crew.lazy_names",
    "crew.run_ids",
}
RUN = """
from crew import Agent, CrewExecutor, ScriptedProvider
result = CrewExecutor(Agent("greeter", model=ScriptedProvider("Hello."))).execute_sync("Hi")
assert result.output == "Hello."
"""

CALL = """
from crew import Agent, CrewExecutor
from crew.providers import OpenAIChat
model = OpenAIChat("gpt-5", base_url={url!r}, api_key="k")
assert CrewExecutor(Agent("worker", model=model, max_input_tokens=100_000)).execute_sync("Hi " * {words}).output
"""


def loaded_modules(code: str) -> set[str]:
    """The modules that a new process has loaded after this code, also if the code ends the process."""
    probe = f"import atexit, sys\natexit.register(lambda: print('\\n' + ' '.join(sys.modules)))\n{code}"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True, cwd=ROOT)
    return set(done.stdout.splitlines()[-1].split())


def lazy_packages() -> list[Path]:
    """The packages that import public names on first use."""
    found = sorted((ROOT / "crew").rglob("__init__.py"))
    return [path for path in found if "lazy_names(" in path.read_text(encoding="utf-8")]


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
    assert SDKS.isdisjoint(found["modules"])


def test_importing_crew_loads_no_module_of_it() -> None:
    """The public names are imported on first use, so that `import crew` costs little more than Python itself."""
    loaded = loaded_modules("import crew")
    assert {name for name in loaded if name.partition(".")[0] == "crew"} == {"crew", "crew.lazy_names"}
    assert loaded.isdisjoint(HEAVY | {"pydantic", "asyncio", "dataclasses"})


@pytest.mark.parametrize("command", ["", "run", "resume", "show", "simulate"])
def test_help_loads_only_the_arguments_of_the_commands(command: str) -> None:
    """The module of a command is imported when the command runs."""
    arguments = [*([command] if command else []), "--help"]
    loaded = loaded_modules(f"from crew.cli import main\nmain({arguments!r})")
    assert {name for name in loaded if name.partition(".")[0] == "crew"} == COMMAND
    assert loaded.isdisjoint(HEAVY | {"pydantic", "asyncio"})


def test_run_loads_nothing_that_it_does_not_use() -> None:
    """Configuration, simulator, SQLite, SDKs, telemetry and tool schemas are loaded with their first use."""
    loaded = loaded_modules(RUN)
    assert "crew.executor" in loaded
    assert loaded.isdisjoint(HEAVY | {"crew.tools.recall_tool", "crew.simulator"})
    parts = {name for name in loaded if name.startswith(("crew.config.", "crew.providers.", "crew.store."))}
    stores = {
        f"crew.store.{name}"
        for name in ("codec", "event_waiters", "location", "memory", "references", "rows", "versions")
    }
    providers = {f"crew.providers.{name}" for name in ("pool", "rate_limits", "retrying", "scripted")}
    assert parts == providers | stores


def test_first_call_loads_one_sdk_and_no_tokenizer() -> None:
    """The tables of a tokenizer take more memory than the SDK: they are loaded with the first long text."""
    with wire_process("--responder", "echo") as server:
        loaded = loaded_modules(CALL.format(url=server.openai_url, words=10))
        assert {"openai", "genai_prices"} <= loaded
        assert loaded.isdisjoint(HEAVY - SDKS - {"genai_prices"} | {"anthropic", "crew.providers.anthropic"})

        if importlib.util.find_spec("rs_bpe") is not None:
            assert "rs_bpe" in loaded_modules(CALL.format(url=server.openai_url, words=2_000))


@pytest.mark.parametrize("path", lazy_packages(), ids=lambda path: path.parent.name)
def test_type_checkers_see_the_names_that_are_loaded(path: Path) -> None:
    """The imports under TYPE_CHECKING and the arguments of `lazy_names` are equal; no submodule has such a name."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    (choice,) = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {node.module: " ".join(alias.name for alias in node.names) for node in choice.body}  # type: ignore[attr-defined]
    assert seen == ast.literal_eval(choice.orelse[0].value.args[1])  # type: ignore[attr-defined]
    submodules = {file.stem for file in path.parent.glob("*.py")} | {folder.name for folder in path.parent.glob("*/")}
    assert submodules.isdisjoint(" ".join(seen.values()).split()), "importing the submodule would replace the name"


def test_public_names_are_listed_and_can_be_pickled() -> None:
    """`dir`, `from crew import *` and pickle do not depend on whether a name was used before."""
    listed = loaded_modules("import crew\nassert set(crew.__all__) <= set(dir(crew))")
    assert "crew.executor" not in listed
    assert pickle.loads(pickle.dumps(crew.Limits(rounds=3))) == crew.Limits(rounds=3)
    assert pickle.loads(pickle.dumps(crew.Agent)) is crew.Agent


def test_subpackages_are_attributes_of_crew() -> None:
    """`import crew` is enough for `crew.telemetry.configure`."""
    assert "crew.telemetry.setup" in loaded_modules("import crew\ncrew.telemetry.configure")


def test_unknown_names_are_attribute_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that fails because it lacks another one is not taken for an unknown name."""
    with pytest.raises(AttributeError, match="module 'crew' has no attribute 'Agnet'"):
        crew.Agnet  # type: ignore[attr-defined]  # noqa: B018 - the access itself fails

    (tmp_path / "lazy_sample").mkdir()
    (tmp_path / "lazy_sample" / "__init__.py").write_text("")
    (tmp_path / "lazy_sample" / "broken.py").write_text("import no_such_module\n")
    monkeypatch.syspath_prepend(tmp_path)
    load, _ = lazy_names("lazy_sample", {})

    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        load("broken")
