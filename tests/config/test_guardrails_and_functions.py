"""Functions that write instructions, guardrails and toolsets in a configuration file."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from crew import CrewExecutor
from crew.errors import ConfigError
from crew.runs.events import AgentPrepared

MODULE = """
from crew import tool, toolset
from crew.agents import Refused, Rewritten, guardrail


def write(context):
    return f"Serve {context.metadata['name']}."


@guardrail("input")
def no_cards(context, text):
    return Refused("No card numbers.") if "4711" in text else None


@guardrail("output")
def sign(context, text):
    return Rewritten(text + " The crew")


@tool(effect="read")
def look(key: str) -> str:
    "Look."
    return key


lookups = toolset("lookups", [look], prefix="kv_")
"""
CONFIG = """\
crews:
  shop:
    guardrails: [shop_checks:no_cards]
    agents:
      clerk:
        model: "scripted:Hello."
        instructions: {function: shop_checks:write}
        description: Serves customers.
        tools: [shop_checks:lookups]
        guardrails: [shop_checks:sign]
"""


def write_files(folder: Path, text: str) -> Path:
    sys.modules.pop("shop_checks", None)  # the one of another test is in another folder
    (folder / "shop_checks.py").write_text(MODULE)
    (folder / "config.yaml").write_text(text)
    return folder / "config.yaml"


async def test_a_file_names_functions_guardrails_and_toolsets(tmp_path: Path) -> None:
    """All of them take effect in a run."""
    events: list[AgentPrepared] = []

    def keep(event: object) -> None:
        events.extend([event] if isinstance(event, AgentPrepared) else [])

    executor = CrewExecutor.from_config(write_files(tmp_path, CONFIG), crew="shop", observers=[keep])
    result = await executor.execute("Hello", metadata={"name": "Ada"})
    assert result.output == "Hello. The crew"
    assert [*events[0].texts.values()] == ["Serve Ada."]
    assert [used.name for used in events[0].prepared.tools] == ["kv_look"]
    refused = await executor.execute("My card is 4711", metadata={"name": "Ada"})
    assert (refused.stop_reason, refused.stop_text) == ("stopped", "No card numbers.")


def test_functions_and_guardrails_are_covered_by_the_allowed_modules(tmp_path: Path) -> None:
    """Importing runs code."""
    with pytest.raises(ConfigError) as raised:
        CrewExecutor.from_config(write_files(tmp_path, CONFIG), crew="shop", allowed_modules=["other"])

    for name in ("instructions", "guardrails", "the tool"):
        assert any(name in problem and "is not allowed" in problem for problem in raised.value.problems)


def test_wrong_functions_and_guardrails_have_locations(tmp_path: Path) -> None:
    """A function without its decorator, a function without a description, and a guardrail that is named twice."""
    text = """\
crews:
  shop:
    guardrails: [shop_checks:write]
    agents:
      clerk:
        model: "scripted:Hello."
        instructions: {function: shop_checks:write}
        guardrails: [shop_checks:sign, shop_checks:sign]
"""
    with pytest.raises(ConfigError) as raised:
        CrewExecutor.from_config(write_files(tmp_path, text), crew="shop")

    starts = (
        "config.yaml:7:9: agent 'clerk': description is required if a function writes the instructions",
        "config.yaml:8:9: agent 'clerk': two guardrails are named 'sign'",
        "config.yaml:3:5: guardrails: 'shop_checks:write' is <function write",
    )

    for problem, start in zip(raised.value.problems, starts, strict=True):
        assert problem.replace(f"{tmp_path}/", "").startswith(start)


def test_instructions_of_another_type_are_refused(tmp_path: Path) -> None:
    text = 'crews: {shop: {agents: {clerk: {model: "scripted:x", instructions: 5}}}}'

    with pytest.raises(ConfigError, match=r"instructions must be a text, or \{function: module:name\}, not 5"):
        CrewExecutor.from_config(write_files(tmp_path, text), crew="shop")


def test_text_that_looks_like_a_function_is_refused(tmp_path: Path) -> None:
    """The error says how to write the function, and how to write the text."""
    text = 'crews: {shop: {agents: {clerk: {model: "scripted:x", instructions: shop_checks:write}}}}'

    with pytest.raises(ConfigError) as raised:
        CrewExecutor.from_config(write_files(tmp_path, text), crew="shop")

    [problem] = raised.value.problems
    assert problem.startswith(f"{tmp_path}/config.yaml:1:")
    assert "write instructions: {function: shop_checks:write}" in problem
    assert "as a block: instructions: |" in problem


@pytest.mark.parametrize(
    "text",
    ["|\n          shop_checks:write", '"Say: yes"', '"Answer:"', '"Rule 1:2"', '"a:b:c"', '"https://x"', '"note:no."'],
)
def test_other_texts_with_colons_are_instructions(tmp_path: Path, text: str) -> None:
    """Also a reference in a block, which ends with a line break."""
    config = f'crews:\n  shop:\n    agents:\n      clerk:\n        model: "scripted:x"\n        instructions: {text}\n'
    executor = CrewExecutor.from_config(write_files(tmp_path, config), crew="shop")
    assert executor.plan.agents["clerk"].instructions == text.strip('"|\n ') + "\n" * text.startswith("|")


def test_function_in_the_place_of_the_next_agent_is_refused(tmp_path: Path) -> None:
    """A function that chooses has its own form; the error shows it. The same holds for groups."""
    agents = '{a: {model: "scripted:x", then: shop_checks:write}, b: {model: "scripted:x"}, c: {model: "scripted:x"}}'
    groups = "{g: {branches: [b, c], then: shop_checks:write}}"

    with pytest.raises(ConfigError) as raised:
        CrewExecutor.from_config(
            write_files(tmp_path, f"crews: {{shop: {{agents: {agents}, groups: {groups}}}}}"), crew="shop"
        )

    forms = [
        problem for problem in raised.value.problems if "then: {choose: shop_checks:write, targets: […]}" in problem
    ]
    assert len(forms) == 2
