"""`execute(model=…, settings=…)`: the model and settings of one run, stored with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from crew import Agent, Crew, CrewExecutor, Parallel, Route, ScriptedProvider, call, tool
from crew.cli import main
from crew.errors import DefinitionError, InvalidInput
from crew.interfaces import ModelSettings
from crew.runs.events import Asked, RunStarted
from crew.store import SQLiteStore
from tests.support.providers import CheckedModels, RecordingProvider
from tests.support.runs import collect, events_of_type
from tests.support.stores import CheckedStore


def asked(events: Any) -> list[tuple[str, str]]:
    return [(event.agent, event.model) for event in events_of_type(events, Asked)]


async def test_the_model_of_a_run_answers_for_all_its_agents(models: CheckedModels, store: CheckedStore) -> None:
    """Also in branches and in agents called as tools; the next run has the agents' models again."""
    inner = Agent("inner", model=models.scripted("Own."))
    one = Agent("one", model=models.scripted("Own."), tools=[inner.as_tool()])
    two = Agent("two", model=models.scripted("Own."))
    end = Agent("end", model=models.scripted("Own."))
    group = Parallel("g", branches=[one, two], then=end)
    crew = Crew("c", agents=[one, two, end, inner], groups=[group], entry="g")
    executor = CrewExecutor(crew, store=store)
    events, result = await collect(executor.execute_stream("Go.", model="scripted:Other."))
    assert result.output == "Other."
    assert sorted(asked(events)) == [("end", "scripted:Other."), ("one", "scripted:Other."), ("two", "scripted:Other.")]
    assert not models.requests
    assert (await executor.execute("Go.")).output == "Own."


async def test_window_tokens_and_budget_follow_the_model(models: CheckedModels, store: CheckedStore) -> None:
    """The budget of each agent is that of the model of the run."""
    agent = Agent("a", model="openai:gpt-5-mini")
    executor = CrewExecutor(agent, store=store)
    stream = executor.execute_stream("Go.", model="scripted:Hello.", run_id="r")
    events, result = await collect(stream)
    (started,) = events_of_type(events, RunStarted)
    (budget,) = started.token_budgets["a"]
    assert (budget.model, budget.window_source) == ("scripted:Hello.", "default")
    assert result.state.overrides.model == "scripted:Hello."


async def test_a_resume_uses_the_stored_model_and_settings(tmp_path: Path) -> None:
    """Another process, with the same crew, asks the same model."""

    @tool(approval=True)
    def pay() -> str:
        """Pay."""
        return "paid"

    def executor(model: Any) -> CrewExecutor:
        agent = Agent("a", model=model, tools=[pay])
        group = Parallel("g", branches=[agent])
        crew = Crew("c", agents=[agent], groups=[group], entry="g")
        return CrewExecutor(crew, store=SQLiteStore(tmp_path / "r.db"))

    first, second = RecordingProvider(call("pay"), "Own."), RecordingProvider(call("pay"), "Own.")
    given = ModelSettings(max_output_tokens=77, extra_body={"tier": "flex"})
    paused = await executor(first).execute("Go.", run_id="r", settings=given)
    await executor(second).resume("r", {paused.pauses[0].id: True})
    assert [request.settings for request in (*first.requests, *second.requests)] == [given, given]


async def test_a_resume_asks_the_stored_model(tmp_path: Path) -> None:
    """The name is stored: a paused run goes on with the model that it was started with."""

    def executor() -> CrewExecutor:
        agent = Agent("a", model="scripted:Own.", wait_for_signal=True, routes=[Route("[DONE]", to=None)])
        return CrewExecutor(agent, store=SQLiteStore(tmp_path / "r.db"))

    paused = await executor().execute("Go.", run_id="r", model="scripted:Other?")
    assert paused.pauses[0].text == "Other?"
    events, _ = await collect(executor().resume_stream("r", {paused.pauses[0].id: "Again."}))
    assert asked(events) == [("a", "scripted:Other?")]


async def test_settings_are_merged_over_those_of_the_agent(models: CheckedModels, store: CheckedStore) -> None:
    """What the run does not set stays; extra fields and headers are merged by name."""
    own = ModelSettings(temperature=0.5, seed=1, extra_body={"a": 1, "b": 1}, extra_headers={"x-a": "1"})
    agent = Agent("a", model=models.scripted("Hi."), settings=own)
    given = ModelSettings(seed=2, extra_body={"b": 2}, extra_headers={"x-b": "2"})
    await CrewExecutor(agent, store=store).execute("Go.", settings=given)
    (request,) = models.requests
    assert request.settings == ModelSettings(
        temperature=0.5, seed=2, extra_body={"a": 1, "b": 2}, extra_headers={"x-a": "1", "x-b": "2"}
    )


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"model": "opnai:gpt-5"}, "unknown provider 'opnai'"),
        ({"model": "gpt-5"}, "a model is provider:name"),
        ({"model": ""}, "model must be a name"),
        ({"model": ScriptedProvider("Hi.")}, "it is stored with the run"),
        ({"settings": {"seed": 1}}, "settings must be ModelSettings(...)"),
        ({"model": "openai:gpt-5", "settings": ModelSettings(temperature=0.1)}, "temperature=0.1 is not supported"),
        ({"settings": ModelSettings(extra_headers={"Authorization": "Bearer abc"})}, "would be stored with the run"),
    ],
)
async def test_overrides_that_cannot_work_are_refused(
    options: dict[str, Any], text: str, models: CheckedModels, store: CheckedStore
) -> None:
    """Before anything is stored, and without the value of a secret."""
    executor = CrewExecutor(Agent("a", model=models.scripted("Hi.")), store=store)

    with pytest.raises(InvalidInput) as caught:
        await executor.execute("Go.", **options)

    assert text in str(caught.value)
    assert "abc" not in str(caught.value)
    assert not store.snapshots


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (
            None,
            "Settings of the agent that the run does not replace apply: change those of 'b', or choose another model.",
        ),
        (ModelSettings(seed=1), "change those of 'b'"),
    ],
)
async def test_the_error_names_the_agent_whose_settings_the_model_refuses(
    settings: ModelSettings | None, text: str
) -> None:
    """The caller did not set the value: the error says where it is."""
    first = Agent("a", model="scripted:Hi.", then="b")
    second = Agent("b", model="scripted:Hi.", settings=ModelSettings(temperature=0.5))
    executor = CrewExecutor(Crew("c", agents=[first, second]))

    with pytest.raises(InvalidInput, match=r"Agent 'b': Settings of 'gpt-5' .*: temperature=0\.5 is not") as caught:
        await executor.execute("Go.", model="openai:gpt-5", settings=settings)

    assert text in str(caught.value)


def test_an_executor_names_the_agent_whose_settings_its_model_refuses() -> None:
    """A crew may have many agents with the same model."""
    second = Agent("b", model="openai:gpt-5", settings=ModelSettings(top_k=3))
    agents = [Agent("a", model="openai:gpt-5", then=second), second]

    with pytest.raises(DefinitionError, match=r"Agent 'b': Settings of 'gpt-5' .*: top_k=3 is not supported"):
        CrewExecutor(Crew("c", agents=agents))


async def test_overrides_do_not_build_the_agents_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Output types and tools stay the objects that the agents made: with 20 agents this took 0.3 s a run."""
    executor = CrewExecutor(Agent("a", model="scripted:[1]", output=list[int]), max_input_tokens=50_000)
    monkeypatch.setattr(Agent, "__post_init__", lambda self: pytest.fail("the agent was built again"))
    result = await executor.execute("Go.", model="scripted:[2]", settings=ModelSettings(seed=1))
    assert result.output == [2]


def test_the_command_line_has_the_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`crew run --model` is for this run; an unknown provider is wrong usage."""
    path = tmp_path / "model_crew.py"
    path.write_text('from crew import Agent\nagent = Agent("a", model="scripted:Own.")\n', encoding="utf-8")
    assert main(["run", f"{path}:agent", "Go.", "--model", "scripted:Other."]) == 0
    assert capsys.readouterr().out == "Other.\n"
    assert main(["run", f"{path}:agent", "Go.", "--model", "opnai:x"]) == 2
    assert "unknown provider 'opnai'" in capsys.readouterr().err
