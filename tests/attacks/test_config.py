"""Configuration files from others can't exhaust the process, show keys, or run code that is not allowed."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from crew import CrewExecutor
from crew.cli import main
from crew.config.yaml_source import load
from crew.errors import ConfigError, DefinitionError

AGENT = "crews: {c: {agents: {a: {model: 'scripted:Hello.', %s}}}}"


def bomb(levels: int) -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, levels)]
    return "\n".join(lines)


BOMBS = {
    "a million values": (bomb(6), "more than 50,000 values"),
    "more values than atoms": (bomb(90), "more than 50,000 values|nested too deeply"),
    "a mapping that contains itself": ("a: &a {b: *a}", "contains it"),
    "a list that contains itself": ("a: &a [1, [*a]]", "contains it"),
    "nested lists": ("a: " + "[" * 10_000, "nested too deeply|invalid YAML"),
    "nested mappings": ("a: " + "{a: " * 200 + "1" + "}" * 200, "nested too deeply"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_file_that_grows_without_bound_is_refused_quickly(name: str, tmp_path: Path) -> None:
    """Aliases are followed as often as they are used, up to a number of values and levels."""
    text, problem = BOMBS[name]
    path = tmp_path / "bomb.yaml"
    path.write_text(text)
    began = time.process_time()

    with pytest.raises(ConfigError, match=problem):
        load(path)

    assert time.process_time() - began < 30  # without the bound it would be years


def test_ordinary_aliases_work(tmp_path: Path) -> None:
    """One value may be used several times."""
    path = tmp_path / "config.yaml"
    path.write_text("crews: {c: {agents: {a: &agent {model: 'scripted:Hello.'}, b: *agent}}}")
    agents = load(path).crews["c"].agents
    assert agents["a"] == agents["b"]


@pytest.mark.parametrize(
    "text",
    [
        "prune_to: ${OPENAI_API_KEY}",
        "prune_to: x${OPENAI_API_KEY}x",
        "history: ${OPENAI_API_KEY}",
        "limits: {rounds: '${OPENAI_API_KEY}'}",
        "crews: {c: {agents: {a: {model: '${OPENAI_API_KEY}'}}}}",
        AGENT % "tools: ['${OPENAI_API_KEY}']",
        AGENT % "output: '${OPENAI_API_KEY}:x'",
        AGENT % "history: '${OPENAI_API_KEY}'",
        AGENT % "then: '${OPENAI_API_KEY}'",
    ],
)
@pytest.mark.parametrize("key", ["sk-short-key", "sk-" + "long" * 40])
def test_error_names_the_variable_and_not_its_value(
    text: str, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A key in the wrong place is not printed, not even in part."""
    monkeypatch.setenv("OPENAI_API_KEY", key)
    path = tmp_path / "config.yaml"
    path.write_text(text)

    with pytest.raises(ConfigError) as raised:
        CrewExecutor.from_config(path, "c")

    seen = str(raised.value)
    error: BaseException | None = raised.value

    while error is not None and not error.__suppress_context__:
        error = error.__cause__ or error.__context__
        seen += str(error)

    assert "OPENAI_API_KEY" in seen
    assert key[:10] not in seen
    assert main(["show", str(path)]) == 2
    assert key[:10] not in "".join(capsys.readouterr())


@pytest.fixture
def foreign_file(tmp_path: Path) -> Path:
    """A file from others, with a module next to it that has the name of an allowed one."""
    (tmp_path / "shop_of_others.py").write_text("raise SystemExit('code of others ran')")
    path = tmp_path / "config.yaml"
    path.write_text(AGENT % "tools: ['shop_of_others.tools:refund']")
    return path


@pytest.mark.parametrize("allowed", [[], ["json"], ["shop_of_others.tool"], ["shop_of_others"]])
def test_module_that_is_not_allowed_is_not_imported(foreign_file: Path, allowed: list[str]) -> None:
    """With an allow-list, modules next to the file are not found either."""
    with pytest.raises(ConfigError, match=r"not allowed|No module named") as raised:
        CrewExecutor.from_config(foreign_file, "c", allowed_modules=allowed)

    assert "config.yaml:1:" in str(raised.value)
    assert "shop_of_others" not in sys.modules
    assert str(foreign_file.parent) not in sys.path


def test_list_of_modules_must_be_a_list(tmp_path: Path) -> None:
    """A string would be read letter by letter."""
    path = tmp_path / "config.yaml"
    path.write_text(AGENT % "description: A")

    with pytest.raises(DefinitionError, match="must be a list"):
        CrewExecutor.from_config(path, "c", allowed_modules="shop.tools")


@pytest.mark.parametrize("line", ["raise RuntimeError('no database')", "raise SystemExit('bye')", "1 / 0"])
def test_module_that_fails_is_a_problem_with_its_place(tmp_path: Path, line: str) -> None:
    """Not a raw traceback: the file, the line and the agent are named."""
    name = f"failing_{abs(hash(line))}"
    (tmp_path / f"{name}.py").write_text(line)
    path = tmp_path / "config.yaml"
    path.write_text(AGENT % f"tools: ['{name}:refund']")

    with pytest.raises(ConfigError, match=r"config.yaml:1:\d+: agent 'a': can't load the tool"):
        CrewExecutor.from_config(path, "c")


def test_allowed_module_is_imported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A prefix allows its submodules, in Python and on the command line."""
    path = tmp_path / "config.yaml"
    path.write_text(AGENT % "tools: ['email.utils:formataddr']")
    assert CrewExecutor.from_config(path, "c", allowed_modules=["email"]).plan.toolkits["a"].tools
    assert main(["show", str(path), "--allow-modules", "email"]) == 0
    assert main(["show", str(path), "--allow-modules", "json,xml"]) == 2
    assert "the module 'email.utils' is not allowed (allowed modules: json, xml)" in capsys.readouterr().err
