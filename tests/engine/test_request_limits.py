"""How many messages, tokens and readable results a request has under the limits of one run or one agent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from crew import CrewExecutor, Limits, RequestParameters, call, tool
from crew.cli import main
from crew.errors import DefinitionError
from crew.history.policies import MaskToolResults, Rolling, Truncate
from crew.messages import OMITTED, Message, ToolMessage
from crew.runs.events import HistoryPruned
from tests.support.messages import total_size
from tests.support.providers import RecordingProvider
from tests.support.remote_providers import provider, refusal_reasons, worker
from tests.support.runs import events_of_type, executor_for, run_and_collect, solo
from tests.support.tools import look
from tests.wire import WireServer, tool_loop


@tool(name="look")
async def long_look(n: int, words: int) -> str:
    """Look something up."""
    return f"found {n}: " + "lorem ipsum dolor " * words


def looking(steps: int = 60) -> RecordingProvider:
    return RecordingProvider(*[call("look", n=n) for n in range(steps)], "done")


async def sizes(parameters: RequestParameters) -> list[int]:
    """The size of every request of a run with 60 tool calls."""
    model = looking()
    await executor_for(model, look, history="unbounded").execute("go", parameters=parameters)
    return [total_size(shown) for shown in model.shown]


def readable(messages: tuple[Message, ...]) -> int:
    return sum(r.text != OMITTED for m in messages if isinstance(m, ToolMessage) for r in m.results)


# ---------------------------------------------------------------------------------------------------- exact forms


async def test_max_history_size_cuts_to_half_by_default() -> None:
    """So consecutive requests share their prefix."""
    sent = await sizes(RequestParameters(max_history_size=20))
    assert (min(sent[10:]), max(sent)) == (9, 19)


async def test_history_prune_to_sends_as_many_messages_as_fit() -> None:
    """With the number of `max_history_size`, a request lacks at most a part of one group."""
    sent = await sizes(RequestParameters(max_history_size=21, history_prune_to=21))
    assert set(sent[10:]) == {21}
    sent = await sizes(RequestParameters(max_history_size=20, history_prune_to=16))
    assert set(sent[10:]) == {15, 17, 19}


async def test_tokens_prune_to_uses_the_tokens_that_max_tokens_allows() -> None:
    """Each request has nearly as many tokens as allowed; by default it is cut to half."""
    used = {}

    for target in (None, 4_000):
        model = RecordingProvider(*[call("look", n=n, words=40) for n in range(60)], "done")
        executor = executor_for(model, long_look, history="unbounded")
        parameters = RequestParameters(max_tokens=4_000, tokens_prune_to=target)
        events, _ = await run_and_collect(executor, "go", parameters=parameters)
        sent = [event.message.manifest.tokens_billed for event in events if event.kind == "replied"]
        used[target] = sent[-30:]
        assert max(sent) <= 4_000

    assert min(used[None]) < 2_200
    assert min(used[4_000]) > 3_600


async def test_max_readable_keeps_exactly_the_newest_results_readable() -> None:
    """By default a batch is masked once twice `keep_recent` results are readable."""
    seen = {}

    for most in (None, 5, 6):
        model = looking()
        agent = solo(model, look, history=MaskToolResults(keep_recent=5, max_readable=most))
        await CrewExecutor(agent, history="unbounded").execute("go")
        seen[most] = {readable(shown) for shown in model.shown[10:]}

    assert seen == {None: {5, 6, 7, 8, 9}, 5: {5}, 6: {5, 6}}


async def test_exact_limits_reach_the_server() -> None:
    """On the bytes that a server received: every request holds the same number of messages."""
    async with WireServer(tool_loop(30)) as server:
        agent = worker(provider(server, "chat", "classic"))
        parameters = RequestParameters(max_history_size=11, history_prune_to=11)
        await CrewExecutor(agent, parameters=parameters).execute("Work.")
        assert not server.refused, refusal_reasons(server)
        sent = [
            len([m for m in r.body["messages"] if m["role"] not in ("system", "developer")]) for r in server.requests
        ]
        assert set(sent[6:]) == {11}


async def test_exact_limits_are_settings_of_a_configuration_file(tmp_path: Path) -> None:
    """The names are those of the Python API."""
    file = tmp_path / "crew.yaml"
    file.write_text(
        "history: {name: mask_tool_results, keep_recent: 3, max_readable: 3}\n"
        "parameters: {max_history_size: 11, history_prune_to: 11, max_tokens: 9000, tokens_prune_to: 9000}\n"
    )
    model = looking(20)
    await CrewExecutor.from_config(file, solo(model, look)).execute("go")
    assert {total_size(shown) for shown in model.shown[6:]} == {11}
    assert {readable(shown) for shown in model.shown[6:]} == {3}


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: RequestParameters(history_prune_to=5), "history_prune_to=5 has no effect without max_history_size"),
        (lambda: RequestParameters(tokens_prune_to=5), "tokens_prune_to=5 has no effect without max_tokens"),
        (
            lambda: RequestParameters(max_history_size=5, history_prune_to=6),
            "history_prune_to must be at most max_history_size=5, not 6",
        ),
        (
            lambda: RequestParameters(max_tokens=5, tokens_prune_to=6),
            "tokens_prune_to must be at most max_tokens=5, not 6",
        ),
        (
            lambda: RequestParameters(max_history_size=5, history_prune_to=0),
            "history_prune_to must be a positive integer",
        ),
        (lambda: MaskToolResults(keep_recent=5, max_readable=4), "max_readable=4 must be at least keep_recent=5"),
        (lambda: MaskToolResults(keep_recent=0, max_readable=4), "max_readable=4 contradicts keep_recent=0"),
    ],
)
def test_contradictory_targets_are_refused(make: Any, words: str) -> None:
    """A target needs its limit, and can't be beyond it."""
    with pytest.raises(DefinitionError, match=words):
        make()


# ---------------------------------------------------------------------------------------------------- events


async def test_pruned_views_report_the_limit_that_cut_them() -> None:
    """Not the bound of the shared history: the number that the view exceeded."""
    cases: list[tuple[dict[str, Any], RequestParameters, str, int]] = [
        ({}, RequestParameters(max_history_size=12), "max_history_size", 12),
        ({}, RequestParameters(max_tokens=3_000), "max_tokens", 3_000),
        ({"history": Rolling(limit=14)}, RequestParameters(), "rolling", 14),
        ({"history": MaskToolResults(keep_recent=4)}, RequestParameters(), "mask_tool_results", 7),
        ({"history": Truncate(threshold=0.7), "max_input_tokens": 4_000}, RequestParameters(), "truncate", 2_800),
        ({"max_input_tokens": 4_000}, RequestParameters(), "window", 3_200),
    ]

    for options, parameters, policy, limit in cases:
        model = RecordingProvider(*[call("look", n=n, words=40) for n in range(22)], "done")
        executor = CrewExecutor(solo(model, long_look, **options), limits=Limits(rounds=None))
        events, _ = await run_and_collect(executor, "go", parameters=parameters)
        found = {(event.policy, event.limit) for event in events_of_type(events, HistoryPruned)}
        assert found == {(policy, limit)}


def test_the_command_line_prints_summaries_and_failed_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A summary has its sign; one that failed is a warning with its reason."""
    file = tmp_path / "crews.py"
    file.write_text(CREWS)
    summarize = ["--history", "summarize", "--max-messages", "20"]
    assert main(["run", f"{file}:works", "go", *summarize]) == 0
    assert "\n✎ 12 messages summarized for summarize: " in capsys.readouterr().err
    assert main(["run", f"{file}:fails", "go", *summarize]) == 0
    assert "\n! no summary for summarize: " in capsys.readouterr().err


CREWS = '''
from crew import Agent, ScriptedProvider, call, tool

@tool
def look(n: int) -> str:
    """Look."""
    return "Nothing to see here. " * 20

def agent(summary):
    calls = [call("look", n=n) for n in range(20)]
    return Agent("looker", model=ScriptedProvider(*calls, "done", summary=summary), tools=[look])

works, fails = agent("They looked."), agent("They looked. " * 900)
'''
