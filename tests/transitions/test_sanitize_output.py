"""Answers without what models leak into them, where that is asked for; nothing is lost in the transcript."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from crew import Agent, Crew, CrewExecutor, Parallel, Route, ScriptedProvider
from crew.errors import ConfigError
from crew.transitions.sanitize_output import sanitize_output


@pytest.mark.parametrize(
    ("said", "meant"),
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
def test_what_is_meant(said: str, meant: str) -> None:
    """Code is left alone, and so is a tag that is only spoken of."""
    assert sanitize_output(said) == meant


PIECES = st.sampled_from(
    ["<think>", "</think>", "<thought>", "</thought>", "```", "`", "\n", " ", "\0", "a", "b <", ">"]
)


@given(st.lists(PIECES, max_size=30).map("".join))
def test_plain_words_stay(text: str) -> None:
    """What has neither tags nor NULs loses white space only."""
    assert "\0" not in sanitize_output(text)

    if "<t" not in text and "</t" not in text:
        assert "".join(sanitize_output(text).split()) == "".join(text.replace("\0", "").split())


class Colour(BaseModel):
    """An answer with a shape."""

    name: str


SAID = "<think>[DONE]? no</think>\n\nBlue.  \n"


async def test_the_output_is_tidy_and_the_transcript_is_whole() -> None:
    """On the executor, for all agents."""
    agent = Agent("painter", model=ScriptedProvider(SAID))
    plain = await CrewExecutor(agent).execute("Which colour?")
    tidy = await CrewExecutor(agent, sanitize_output=True).execute("Which colour?")
    assert (plain.output, tidy.output) == (SAID, "Blue.")
    assert tidy.transcript[-1].text == tidy.history[-1].text == SAID


async def test_an_agent_may_say_otherwise() -> None:
    """Either way, and also as a branch of a group."""
    tidy = Agent("tidy", model=ScriptedProvider(SAID), sanitize_output=True)
    raw = Agent("raw", model=ScriptedProvider(SAID), sanitize_output=False)
    assert (await CrewExecutor(tidy).execute("Go")).output == "Blue."
    assert (await CrewExecutor(raw, sanitize_output=True).execute("Go")).output == SAID
    crew = Crew("both", agents=[tidy, raw], groups=[Parallel("panel", branches=[tidy, raw])], entry="panel")
    result = await CrewExecutor(crew).execute("Go")
    assert [branch.output for branch in result.branches] == ["Blue.", SAID]


async def test_a_signal_that_was_only_thought_of_leads_nowhere() -> None:
    """Routes and schemas read what was said, not what was thought."""
    other = Agent("other", model=ScriptedProvider("Never asked."))
    agent = Agent("painter", model=ScriptedProvider(SAID), routes=[Route("[DONE]", to=other)])
    crew = Crew("studio", agents=[agent, other])
    assert (await CrewExecutor(crew).execute("Go")).agent == "other"
    assert (await CrewExecutor(crew, sanitize_output=True).execute("Go")).output == "Blue."


async def test_a_shape_is_read_after_the_thinking() -> None:
    """Without a second question."""
    model = ScriptedProvider('<think>{"name": 1}</think>{"name": "blue"}')
    agent = Agent("painter", model=model, output=Colour, sanitize_output=True)
    result = await CrewExecutor(agent).execute("Which colour?")
    assert result.output == Colour(name="blue")
    assert result.usage.requests == 1


async def test_a_file_may_ask_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For the executor and for an agent; shapes are written as tools are."""
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
    ("said", "problem"),
    [
        ("output: no_such_module:Colour", "output: can't load 'no_such_module:Colour'"),
        ("output: json:loads", "output must be a subclass of pydantic.BaseModel"),
        (
            "handoffs: [{to: painter, payload: json:nothing}]",
            "payload of the handoff to 'painter': can't load 'json:nothing'",
        ),
    ],
)
def test_a_shape_that_is_none_is_refused(said: str, problem: str, tmp_path: Path) -> None:
    """With the agent, the place and the value."""
    path = tmp_path / "config.yaml"
    path.write_text(f"crews: {{studio: {{agents: {{painter: {{model: 'scripted:Hi', {said}}}}}}}}}\n")

    with pytest.raises(ConfigError, match=problem):
        CrewExecutor.from_config(path, "studio")
