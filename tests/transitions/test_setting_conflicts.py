"""Settings that can't take effect: a warning says which number applies, at the caller's line or that of the file."""

from __future__ import annotations

import inspect
import linecache
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from crew import (
    Agent,
    Chunked,
    Crew,
    CrewExecutor,
    LastNMessages,
    Limits,
    RequestParameters,
    ScriptedProvider,
    call,
    handoff,
)
from crew.cli import main
from crew.errors import DefinitionError
from crew.history.policies import Checkpoint, HeadTail, MaskToolResults, Rolling, Summarize, Truncate, Unbounded, chain
from crew.interfaces import Policy
from crew.messages import AssistantMessage, UserMessage
from crew.runs.events import HistoryPruned, Warned
from tests.support.messages import total_size
from tests.support.providers import RecordingProvider
from tests.support.runs import events_of_type, executor_for, run_and_collect, solo
from tests.support.tools import look


def agent(history: Any = None, **options: Any) -> Agent:
    return solo(ScriptedProvider("Done."), look, history=history, **options)


def warned(build: Callable[[], object]) -> list[str]:
    """The texts of the warnings while an object is built."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        build()

    return [str(warning.message) for warning in caught]


def source_of(warning: warnings.WarningMessage) -> str:
    """The line that a warning points at."""
    return linecache.getline(warning.filename, warning.lineno).strip()


# ---------------------------------------------------------------------------------------------------- at construction

EXECUTORS: dict[str, tuple[Callable[[], CrewExecutor], str]] = {
    "a request limit above the bound": (
        lambda: CrewExecutor(agent(), parameters=RequestParameters(max_history_size=150)),
        (
            "max_history_size=150 has no effect: the history holds at most 50 messages (max_messages_per_request), "
            "and a pruning cuts it to 25. Set max_messages_per_request and prune_to instead."
        ),
    ),
    "a target of a limit that is never exceeded": (
        lambda: CrewExecutor(agent(), parameters=RequestParameters(max_history_size=50, history_prune_to=40)),
        (
            "history_prune_to=40 has no effect: the history holds at most 50 messages (max_messages_per_request), "
            "and a pruning cuts it to 25. Set max_messages_per_request and prune_to instead."
        ),
    ),
    "a policy limit below the bound": (
        lambda: CrewExecutor(agent(), history=Rolling(limit=10), max_messages_per_request=40),
        (
            "max_messages_per_request=40 replaces the limit of 10 of the policy 'rolling': the history holds up "
            "to 40 messages. Give one of the two numbers."
        ),
    ),
    "a policy limit below the bound, in a chain": (
        lambda: CrewExecutor(agent(), history=chain(MaskToolResults(), Rolling(limit=10)), max_messages_per_request=40),
        (
            "max_messages_per_request=40 replaces the limit of 10 of the policy 'rolling': the history holds up "
            "to 40 messages. Give one of the two numbers."
        ),
    ),
    "summarize with a limit below the bound": (
        lambda: CrewExecutor(agent(), history=Summarize(limit=30), max_messages_per_request=40),
        (
            "max_messages_per_request=40 replaces the limit of 30 of the policy 'summarize': the history holds up "
            "to 40 messages. Give one of the two numbers."
        ),
    ),
    "truncate with a limit below the bound": (
        lambda: CrewExecutor(agent(), history=Truncate(limit=30), max_messages_per_request=40),
        (
            "max_messages_per_request=40 replaces the limit of 30 of the policy 'truncate': the history holds up "
            "to 40 messages. Give one of the two numbers."
        ),
    ),
    "a target of checkpoints": (
        lambda: CrewExecutor(agent(), history=Checkpoint(keep_recent=12), prune_to=50),
        "prune_to=50 has no effect: a checkpoint keeps the newest 12 messages.",
    ),
    "a target below what stays": (
        lambda: CrewExecutor(agent(), history=HeadTail(prune_to=15)),
        "prune_to=15 can't be reached: the policy 'head_tail' keeps the first 1 and the last 20 messages, 21 in all.",
    ),
    "an agent's limit above the bound": (
        lambda: CrewExecutor(agent(Rolling(limit=100))),
        (
            "limit=100 of the policy 'rolling' of agent 'solo' has no effect: the history holds at most 50 messages "
            "(max_messages_per_request)."
        ),
    ),
    "an agent without a limit": (
        lambda: CrewExecutor(agent(Unbounded()), max_messages_per_request=30),
        (
            "limit=None of the policy 'unbounded' of agent 'solo' has no effect: the history holds at most 30 messages "
            "(max_messages_per_request)."
        ),
    ),
    "an agent's masks that never start": (
        lambda: CrewExecutor(agent(MaskToolResults(keep_recent=30))),
        (
            "keep_recent=30 of the policy 'mask_tool_results' of agent 'solo' has no effect: the history holds at "
            "most 50 messages (max_messages_per_request)."
        ),
    ),
    "masks that never start": (
        lambda: CrewExecutor(
            agent(), history=chain(MaskToolResults(keep_recent=3, max_readable=40), Rolling(limit=20))
        ),
        (
            "max_readable=40 of the policy 'mask_tool_results' has no effect: the history holds at most 20 messages "
            "(max_messages_per_request)."
        ),
    ),
    "an agent's target near its limit": (
        lambda: CrewExecutor(agent(Rolling(limit=10, prune_to=9))),
        (
            "prune_to=9 is above 0.8 of limit=10 of the policy 'rolling' of agent 'solo': the front of the requests "
            "will move often, which defeats prompt caching. Half of the limit is a good value."
        ),
    ),
    "more verbatim messages than the bound": (
        lambda: CrewExecutor(agent(), parameters=RequestParameters(compression_strategy=LastNMessages(60))),
        ("LastNMessages(60) can't have 60 messages: the history holds at most 50 (max_messages_per_request)."),
    ),
    "chunks above the bound": (
        lambda: CrewExecutor(agent(), parameters=RequestParameters(compression_strategy=Chunked(60))),
        ("Chunked(60) can't have 60 messages: the history holds at most 50 (max_messages_per_request)."),
    ),
    "more verbatim messages than a request shows": (
        lambda: CrewExecutor(
            agent(), parameters=RequestParameters(compression_strategy=LastNMessages(30), max_history_size=20)
        ),
        ("LastNMessages(30) keeps 30 messages, but requests show fewer: max_history_size=20 applies."),
    ),
    "a summarizer without summaries": (
        lambda: CrewExecutor(agent(), history=HeadTail(summarizer="scripted:Short.")),
        "The summarizer of head_tail has no effect without summarize_on_trim.",
    ),
}


@pytest.mark.parametrize("case", EXECUTORS)
def test_an_ineffective_setting_is_reported_once_at_the_callers_line(case: str) -> None:
    """One warning says which number applies, and points at the line that built the executor."""
    build, text = EXECUTORS[case]

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        build()

    assert [(str(w.message), w.filename) for w in caught] == [(text, __file__)]
    lines, first = inspect.getsourcelines(build)
    assert first <= caught[0].lineno <= first + len(lines)


@pytest.mark.parametrize(
    "build",
    [
        lambda: CrewExecutor(agent(), history="head_tail", max_messages_per_request=150),
        lambda: CrewExecutor(agent(), history="summarize", max_messages_per_request=20),
        lambda: CrewExecutor(agent(), history="rolling", max_messages_per_request=150),
        lambda: CrewExecutor(agent(), history=Checkpoint(trigger_at=60), max_messages_per_request=150),
        lambda: CrewExecutor(agent(), history="truncate", max_messages_per_request=150, prune_to=70),
        lambda: CrewExecutor(agent("rolling")),
        lambda: CrewExecutor(agent(MaskToolResults(keep_recent=10))),
        lambda: CrewExecutor(agent(Unbounded()), history="unbounded"),
        lambda: CrewExecutor(agent(Truncate()), history=chain(Truncate(limit=None), Rolling())),
        lambda: CrewExecutor(agent(), parameters=RequestParameters(max_history_size=50, max_tokens=1_000)),
        lambda: CrewExecutor(
            agent(), history="unbounded", parameters=RequestParameters(max_history_size=150, history_prune_to=150)
        ),
    ],
)
def test_settings_that_take_effect_cause_no_warning(build: Callable[[], CrewExecutor]) -> None:
    """Defaults of a policy are not settings of the user, and equal numbers agree."""
    assert warned(build) == []


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (
            lambda: CrewExecutor(agent(), history="unbounded", prune_to=10),
            "prune_to=10 contradicts the policy 'unbounded'",
        ),
        (
            lambda: CrewExecutor(agent(), history=Summarize(limit=None, prune_to=10)),
            "contradicts the policy 'summarize'",
        ),
        (
            lambda: CrewExecutor(agent(), history=HeadTail(max_messages=0, prune_to=9)),
            "contradicts the policy 'head_tail'",
        ),
        (lambda: CrewExecutor(agent(), history=Truncate(limit=None), prune_to=9), "contradicts the policy 'truncate'"),
        (
            lambda: CrewExecutor(agent(), history=Truncate(limit=None), max_messages_per_request=9),
            "max_messages_per_request=9 contradicts the policy 'truncate', which has no bound",
        ),
        (
            lambda: CrewExecutor(agent(Rolling(limit=10, prune_to=11))),
            "prune_to must be at most its limit of 10, not 11",
        ),
        (
            lambda: CrewExecutor(agent(HeadTail(max_messages=0, prune_to=9))),
            "prune_to=9, which has no effect without a limit",
        ),
        (lambda: CrewExecutor(agent(), history=Truncate(limit=80), max_messages_per_request=40), "raise it to 80"),
        (
            lambda: CrewExecutor(agent(), history=chain(MaskToolResults(), Rolling(prune_to=10)), prune_to=20),
            "prune_to=20 contradicts prune_to=10 of the policy 'rolling'",
        ),
        (lambda: Truncate(limit=0), "limit must be a positive integer such as 50, or None, not 0"),
    ],
)
def test_contradictory_settings_are_refused(build: Callable[[], object], words: str) -> None:
    """Two settings that can't both hold are an error."""
    with pytest.raises(DefinitionError, match=words):
        build()


# ---------------------------------------------------------------------------------------------------- the place

NEAR = "is above 0.8 of max_messages_per_request=50"


class Cautious:
    """A custom policy."""

    name = "cautious"
    options = Rolling(limit=50, prune_to=49).options
    prune = Rolling().prune


class Subclass(CrewExecutor):
    """An executor of a user."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)


@pytest.mark.parametrize(
    "options",
    [
        {"prune_to": 49},
        {"history": Rolling(prune_to=49)},
        {"history": {"name": "rolling", "prune_to": 49}},
        {"history": Summarize(prune_to=49)},
        {"history": HeadTail(max_messages=50, prune_to=49)},
        {"history": chain(MaskToolResults(), Rolling(prune_to=49))},
        {"history": {"name": "chain", "policies": ["truncate", {"name": "rolling", "prune_to": 49}]}},
        {"history": Cautious()},
    ],
)
def test_a_target_near_the_limit_points_at_the_callers_line(options: dict[str, Any]) -> None:
    """In whichever way it is given: by the executor, by a policy, by its mapping, in a chain."""
    with pytest.warns(UserWarning, match=f"prune_to=49 {NEAR}") as caught:
        CrewExecutor(agent(), **options)

    assert [source_of(warning) for warning in caught] == ["CrewExecutor(agent(), **options)"]


def test_policies_point_at_the_line_that_builds_them() -> None:
    """Through the generated __init__ of the dataclass, or through the executor that looks the policy up by name."""
    options = {"name": "head_tail", "max_messages": 10}

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        HeadTail(max_messages=10)
        CrewExecutor(agent(), history=options)
        CrewExecutor(agent(options))

    lines = ["HeadTail(max_messages=10)", "CrewExecutor(agent(), history=options)", "CrewExecutor(agent(options))"]
    assert [source_of(warning) for warning in caught] == lines


def test_a_subclass_of_the_executor_is_code_of_the_user() -> None:
    """The first line outside Crew is in its constructor."""
    with pytest.warns(UserWarning, match=NEAR) as caught:
        Subclass(agent(), prune_to=49)

    assert [source_of(warning) for warning in caught] == ["super().__init__(*args, **options)"]


FILE = """\
max_messages_per_request: 20
{top}
crews:
  one:
    agents:
      host:
        model: "scripted:Hello."
        {own}
"""


@pytest.mark.parametrize(
    ("top", "own", "line", "words"),
    [
        ("prune_to: 19", "", "2:1", "prune_to=19 is above 0.8 of max_messages_per_request=20"),
        ("history: {name: rolling, prune_to: 19}", "", "2:26", "prune_to=19 is above"),
        ("history: {name: chain, policies: [{name: rolling, prune_to: 19}]}", "", "2:1", "prune_to=19 is above"),
        (
            "execution: {conversation: {max_messages: 20, preserve_last_n: 5, prune_to: 19}}",
            "",
            "2:66",
            "prune_to=19 is",
        ),
        ("", "history: {name: rolling, limit: 10, prune_to: 9}", "8:45", "prune_to=9 is above 0.8 of limit=10"),
        (
            "",
            "history: {name: rolling, limit: 30}",
            "8:9",
            "limit=30 of the policy 'rolling' of agent 'host' has no effect",
        ),
        ("", "history: {name: head_tail, max_messages: 8}", "8:9", "head_tail keeps the first 1 and the last 20"),
        ("parameters: {max_history_size: 21}", "", "2:14", "max_history_size=21 has no effect"),
        ("history: {name: rolling, limit: 9}", "", "1:1", "max_messages_per_request=20 replaces the limit of 9"),
    ],
)
def test_a_setting_of_a_file_is_reported_with_file_and_line(
    tmp_path: Path, top: str, own: str, line: str, words: str
) -> None:
    """The text starts with the place in the file, and the warning points at the caller of `from_config`."""
    file = tmp_path / "crew.yaml"
    file.write_text(FILE.format(top=top, own=own))

    with pytest.warns(UserWarning, match="crew.yaml") as caught:
        CrewExecutor.from_config(file, "one")

    assert {source_of(warning) for warning in caught} == {'CrewExecutor.from_config(file, "one")'}
    assert str(caught[0].message).startswith(f"{file}:{line}: {words}")


def test_an_argument_that_overrides_the_file_has_no_place_in_it(tmp_path: Path) -> None:
    """The caller's line is its place."""
    file = tmp_path / "crew.yaml"
    file.write_text(FILE.format(top="prune_to: 5", own=""))

    with pytest.warns(UserWarning, match="^prune_to=19 is above"):
        CrewExecutor.from_config(file, "one", prune_to=19)


def test_the_command_line_prints_warnings_about_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As one line with the place in the file; with --quiet, only the answer is printed."""
    file = tmp_path / "crew.yaml"
    file.write_text(FILE.format(top="prune_to: 19", own=""))
    assert main(["run", str(file), "hi"]) == 0
    assert capsys.readouterr().err.startswith(
        f"! {file}:2:1: prune_to=19 is above 0.8 of max_messages_per_request=20: "
    )
    assert main(["run", str(file), "hi", "--quiet"]) == 0
    assert capsys.readouterr().err == ""


# ---------------------------------------------------------------------------------------------------- in a run


async def test_parameters_of_one_run_that_have_no_effect_emit_a_warning() -> None:
    """`execute(parameters=…)`: 150 messages asked for, 50 are possible; reported before the first request."""
    parameters = RequestParameters(max_history_size=150, max_tokens=500_000)
    events, _ = await run_and_collect(CrewExecutor(agent()), "go", parameters=parameters)
    texts = [event.text for event in events_of_type(events, Warned)]
    assert [text.split(":")[0] for text in texts] == [
        "max_history_size=150 has no effect",
        "max_tokens=500000 has no effect",
    ]
    assert "102400 tokens" in texts[1]
    assert [event.kind for event in events].index("warned") < [event.kind for event in events].index("asked")


async def test_a_window_of_a_policy_above_every_model_emits_a_warning() -> None:
    """The models' windows fill up before the policy would summarize."""
    executor = CrewExecutor(agent(max_input_tokens=10_000), history=Summarize(window=50_000))
    events, _ = await run_and_collect(executor)
    (event,) = events_of_type(events, Warned)
    assert event.text.startswith("window=50000 of the policy 'summarize' has no effect: no model of this crew has")


def looking(steps: int) -> RecordingProvider:
    return RecordingProvider(*[call("look", n=n) for n in range(steps)], "done")


async def warnings_of(policy: Policy | str, **options: Any) -> tuple[list[str], int]:
    """The warnings that name `limit: null` in a run of 60 steps, and the size of its largest request."""
    model = looking(60)
    events, _ = await run_and_collect(executor_for(model, look, history=policy, **options))
    texts = [event.text for event in events_of_type(events, Warned) if "limit: null" in event.text]
    return texts, max(total_size(request.messages) for request in model.replies)


@pytest.mark.parametrize(
    ("name", "short"), [("truncate", "Truncate(limit=None)"), ("summarize", "Summarize(limit=None)")]
)
async def test_the_first_pruning_by_count_under_a_window_policy_warns(name: str, short: str) -> None:
    """Once a run; the warning names the limit and the short form that removes it."""
    texts, largest = await warnings_of(name)
    assert largest <= 50
    (text,) = texts
    assert "pruned at 50 messages (max_messages_per_request)" in text
    assert f"limit: null in the policy, in Python {short}" in text


@pytest.mark.parametrize(
    "policy",
    [Truncate(limit=None), Summarize(limit=None), chain(MaskToolResults(), Truncate(limit=None))],
)
async def test_without_a_limit_only_the_window_prunes(policy: Policy) -> None:
    """`limit=None`, in YAML `limit: null`, keeps all messages while they fit the window."""
    assert await warnings_of(policy) == ([], 121)


@pytest.mark.parametrize("policy", [Truncate(limit=20), Summarize(limit=20), chain(Truncate(), Rolling(limit=20))])
async def test_a_limit_that_was_chosen_is_no_surprise(policy: Policy) -> None:
    """The bound that the user wrote causes no warning."""
    texts, largest = await warnings_of(policy)
    assert (texts, largest <= 20) == ([], True)


async def test_limit_of_truncate_cuts_an_agents_view_in_blocks() -> None:
    """On an agent, the limit bounds its view; the marker counts."""
    model = looking(30)
    executor = CrewExecutor(solo(model, look, history=Truncate(limit=12)))
    events, _ = await run_and_collect(executor)
    sizes = [total_size(shown) for shown in model.shown]
    assert (max(sizes), min(sizes[8:])) == (12, 6)
    cuts = [event for event in events_of_type(events, HistoryPruned) if event.where == "view"]
    assert {(cut.policy, cut.limit) for cut in cuts} == {("truncate", 12)}
    assert len(cuts) < 10


# ---------------------------------------------------------------------------------------------------- handoffs


def two_agents(handoffs: int = 1, **options: Any) -> Crew:
    there = [call("transfer_to_second")] * handoffs
    back = [call("transfer_to_first")] * handoffs
    first = Agent("first", model=ScriptedProvider(*there, "done"), handoffs=[handoff("second")])
    second = Agent("second", model=ScriptedProvider(*back, "done"), handoffs=[handoff("first")], **options)
    return Crew("pair", agents=[first, second])


async def warnings_at(crew: Crew, parameters: RequestParameters | None = None, **options: Any) -> list[tuple[str, str]]:
    talk = [kind(f"Message {n}: " + "some words " * 20) for n in range(15) for kind in (UserMessage, AssistantMessage)]
    events, _ = await run_and_collect(CrewExecutor(crew, **options), "go", history=talk, parameters=parameters)
    return [(event.agent, event.text.split(":")[0]) for event in events_of_type(events, Warned)]


async def test_a_nearly_full_window_of_the_receiving_agent_is_reported() -> None:
    """At the handoff: the window of the first agent is large, that of the second is nearly full."""
    assert await warnings_at(two_agents(max_input_tokens=1_700)) == [("second", "window of second")]


async def test_a_nearly_full_view_of_the_receiving_agent_is_reported() -> None:
    """The limit of its policy, and limits of the run that the view of the first agent reached before."""
    assert await warnings_at(two_agents(history=Rolling(limit=36))) == [("second", "policy rolling of second")]
    parameters = RequestParameters(max_history_size=36)
    expected = [("first", "max_history_size of first"), ("second", "max_history_size of second")]
    assert await warnings_at(two_agents(), parameters) == expected


async def test_a_view_that_is_cut_at_a_handoff_is_reported() -> None:
    """The size before the cut counts."""
    assert await warnings_at(two_agents(history=Rolling(limit=20))) == [("second", "policy rolling of second")]


async def test_the_limit_of_handoffs_warns_before_it_ends_the_run() -> None:
    """At 80 %, as the other limits of a run do."""
    crew = two_agents(handoffs=3)
    assert ("first", "limits.handoffs") in await warnings_at(crew, limits=Limits(handoffs=5))
