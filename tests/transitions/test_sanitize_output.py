"""`sanitize_output` removes leaked reasoning tags from answers; the transcript keeps the original."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from crew import Agent, Crew, CrewExecutor, Parallel, Route, ScriptedProvider
from crew.errors import ConfigError
from crew.transitions.sanitize_output import sanitize_output


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think>hm,\n\nwell</think>\n\nBlue.", "Blue."),
        ("<THINKING effort='low'>hm</Thinking> Blue.", "Blue."),
        ("hm, well</think>Blue.", "Blue."),  # the opening tag was the template's
        ("<think>a <think>b</think> c</think>Blue.", "Blue."),
        ("<think>so many words that the reply was cut", ""),
        ("<think>a fence is ``` so</think>Blue.", "Blue."),
        ("Blue. <think>or red?</think>Yes.", "Blue. Yes."),
        ("Write `<think>` before, `</think>` after.", "Write `<think>` before, `</think>` after."),
        ("```xml\n<think>x</think>  \n\n\n\n```", "```xml\n<think>x</think>  \n\n\n\n```"),
        ("Never <think> of it.", "Never <think> of it."),
        ("a \t\r\nb\n\n\n\n\nc\0\n ", "a\nb\n\nc"),
        ("\ufeff Blue.\u200b", "Blue."),
        ("1 < 2 and 3 > 2", "1 < 2 and 3 > 2"),
        ("", ""),
    ],
)
def test_leaked_tags_are_removed(text: str, expected: str) -> None:
    """Code blocks, and tags that the text only mentions, stay."""
    assert sanitize_output(text) == expected


PIECES = st.sampled_from(
    ["<think>", "</think>", "<thought>", "</thought>", "```", "`", "\n", " ", "\0", "a", "b <", ">"]
)


@given(st.lists(PIECES, max_size=30).map("".join))
def test_plain_text_stays(text: str) -> None:
    """Text without tags and NUL characters loses outer white space only."""
    assert "\0" not in sanitize_output(text)

    if "<t" not in text and "</t" not in text:
        assert "".join(sanitize_output(text).split()) == "".join(text.replace("\0", "").split())


class Colour(BaseModel):
    """A structured answer."""

    name: str


RAW = "<think>[DONE]? no</think>\n\nBlue.  \n"


async def test_output_is_sanitized_and_the_transcript_is_not() -> None:
    """Set on the executor, it applies to all agents."""
    agent = Agent("painter", model=ScriptedProvider(RAW))
    plain = await CrewExecutor(agent).execute("Which colour?")
    clean = await CrewExecutor(agent, sanitize_output=True).execute("Which colour?")
    assert (plain.output, clean.output) == (RAW, "Blue.")
    assert clean.transcript[-1].text == clean.history[-1].text == RAW


async def test_agent_setting_overrides_the_executor() -> None:
    """In both directions, also in a branch."""
    clean = Agent("clean", model=ScriptedProvider(RAW), sanitize_output=True)
    raw = Agent("raw", model=ScriptedProvider(RAW), sanitize_output=False)
    assert (await CrewExecutor(clean).execute("Go")).output == "Blue."
    assert (await CrewExecutor(raw, sanitize_output=True).execute("Go")).output == RAW
    crew = Crew("both", agents=[clean, raw], groups=[Parallel("panel", branches=[clean, raw])], entry="panel")
    result = await CrewExecutor(crew).execute("Go")
    assert [branch.output for branch in result.branches] == ["Blue.", RAW]


async def test_signal_inside_reasoning_is_ignored() -> None:
    """Routes and output schemas read the sanitized text."""
    other = Agent("other", model=ScriptedProvider("Never asked."))
    agent = Agent("painter", model=ScriptedProvider(RAW), routes=[Route("[DONE]", to=other, match="anywhere")])
    crew = Crew("studio", agents=[agent, other])
    assert (await CrewExecutor(crew).execute("Go")).agent == "other"
    assert (await CrewExecutor(crew, sanitize_output=True).execute("Go")).output == "Blue."


async def test_structured_output_is_read_after_the_reasoning() -> None:
    """No repair request is sent."""
    model = ScriptedProvider('<think>{"name": 1}</think>{"name": "blue"}')
    agent = Agent("painter", model=model, output=Colour, sanitize_output=True)
    result = await CrewExecutor(agent).execute("Which colour?")
    assert result.output == Colour(name="blue")
    assert result.usage.requests == 1


async def test_configuration_file_can_set_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For the executor and for an agent, with an output type by name."""
    (tmp_path / "colours.py").write_text("from pydantic import BaseModel\n\nclass Colour(BaseModel):\n    name: str\n")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "config.yaml").write_text(
        """
sanitize_output: true
crews:
  studio:
    agents:
      painter:
        model: 'scripted:<think>hm</think>{"name": "blue"}'
        output: colours:Colour
        handoffs: [{to: raw, payload: colours:Colour}]
      raw: {model: "scripted:<think>hm</think>Blue.", sanitize_output: false}
"""
    )
    executor = CrewExecutor.from_config(tmp_path / "config.yaml", "studio")
    assert (await executor.execute("Go")).output.name == "blue"
    assert (await executor.execute("Go", agent="raw")).output == "<think>hm</think>Blue."
    transfer = executor.plan.toolkits["painter"].specs[0]
    assert transfer.parameters["properties"]["name"] == {"title": "Name", "type": "string"}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("output: no_such_module:Colour", "output: can't load 'no_such_module:Colour'"),
        ("output: json:loads", "is a value, not a type"),
        (
            "handoffs: [{to: painter, payload: json:nothing}]",
            "payload of the handoff to 'painter': can't load 'json:nothing'",
        ),
    ],
)
def test_invalid_output_type_in_a_file_is_refused(text: str, problem: str, tmp_path: Path) -> None:
    """The error names the agent, the place and the value."""
    path = tmp_path / "config.yaml"
    path.write_text(f"crews: {{studio: {{agents: {{painter: {{model: 'scripted:Hi', {text}}}}}}}}}\n")

    with pytest.raises(ConfigError, match=problem):
        CrewExecutor.from_config(path, "studio")
