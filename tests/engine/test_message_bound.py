"""The message limit, checked on what a provider receives and on the result."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crew import CrewExecutor, InputValidator, Limits, RequestParameters, ScriptedProvider, call, tool
from crew.errors import ContextOverflow, DefinitionError
from crew.history.policies import Checkpoint, HeadTail, Rolling, Summarize, Truncate, chain
from crew.interfaces import ModelReply, ModelRequest
from crew.message_rules import PROFILES, validate
from crew.messages import AssistantMessage, Message, SystemMessage, ToolCall, ToolMessage, UserMessage
from crew.runs.events import CallsDeclined, HistoryPruned, HistoryRepaired
from tests.support.messages import total_size
from tests.support.providers import RecordingProvider
from tests.support.runs import collect, executor_for, solo
from tests.support.strategies import broken_conversations, budgets
from tests.support.tools import look

ROUNDS = Limits(rounds=None)


def check_requests(provider: RecordingProvider, limit: int, goal: str) -> None:
    """Invariants 1 to 3 for every request."""
    for shown in provider.shown:
        assert total_size(shown) <= limit
        assert any(isinstance(m, UserMessage) and m.text == goal for m in shown)
        assert all(validate(shown, profile) == [] for profile in PROFILES.values())


@given(
    broken_conversations(max_turns=5),
    st.lists(st.integers(1, 9), max_size=12),
    budgets(least=6),
)
async def test_invariants_hold_for_any_input_history(
    before: list[Message], rounds: list[int], budget: tuple[int, int]
) -> None:
    """Any history, any calls, any limit: bounded, valid, with the goal, a complete transcript and the right answer."""
    limit, target = budget
    lines: list[Any] = [[call("look", n=n) for n in range(size)] for size in rounds]
    provider = RecordingProvider(*lines, "the answer")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a target near the limit is valid, with a warning
        executor = executor_for(provider, look, max_messages_per_request=limit, prune_to=target, limits=ROUNDS)

    events, result = await collect(executor.execute_stream("the goal", history=before, run_id="r"))
    assert result.output == "the answer"
    check_requests(provider, limit, "the goal")
    assert total_size(result.history) <= limit
    check_transcript(before, result, rounds)
    check_prefix(provider, events)
    # The result is valid input: the validator accepts it unchanged.
    assert InputValidator(tool_pairs="refuse").check("next", history=result.history) == result.history


def check_transcript(before: list[Message], result: Any, rounds: list[int]) -> None:
    """Invariant 4: the repaired input and every message of the run, complete and in order."""
    texts = [m.text for m in before if isinstance(m, UserMessage | SystemMessage) and m.text.strip()]
    kept = [m.text for m in result.transcript if isinstance(m, UserMessage | SystemMessage)]
    assert [text for text in kept if not text.startswith("[")][: len(texts)] == texts
    start = next(i for i, m in enumerate(result.transcript) if getattr(m, "text", "") == "the goal")
    happened = result.transcript[start + 1 :]
    assert [len(m.calls) for m in happened if isinstance(m, AssistantMessage)] == [*rounds, 0]
    ids = [m.id for m in result.transcript]
    assert len(set(ids[start:])) == len(ids[start:])
    assert all(ids)


def check_prefix(provider: RecordingProvider, events: list[Any]) -> None:
    """Invariant 5: between two prunings, each request starts with the previous one."""
    prunings = [e.sequence for e in events if isinstance(e, HistoryPruned)]
    asked = [e.sequence for e in events if e.kind == "asked"]
    pairs = zip(zip(asked, provider.shown, strict=True), zip(asked[1:], provider.shown[1:], strict=True), strict=False)

    for (sent, first), (then, second) in pairs:
        if not any(sent < pruned < then for pruned in prunings):
            assert second[: len(first)] == first


async def test_sixty_calls_at_a_limit_of_ten() -> None:
    """The answer is right, and every request holds the goal and at most ten messages."""
    provider = RecordingProvider(*[call("look", n=n) for n in range(60)], "sixty looked up")
    result = await executor_for(provider, look, max_messages_per_request=10).execute("the goal")
    assert result.output == "sixty looked up"
    assert len(provider.requests) == 61
    check_requests(provider, 10, "the goal")
    assert len(result.transcript) == 1 + 120 + 1
    assert result.metrics.messages <= result.metrics.limit == 10  # type: ignore[operator]
    assert result.metrics.prunings == len(result.metrics.sizes) > 5
    assert result.metrics.messages_pruned == sum(before - after for before, after in result.metrics.sizes)
    assert result.metrics.by_tool["look"].calls == 60


async def test_forty_parallel_calls_at_a_limit_of_ten() -> None:
    """The calls that fit are run, the others get an error result, and the run continues within the limit."""
    provider = RecordingProvider([call("look", n=n) for n in range(40)], "enough")
    executor = executor_for(provider, look, max_messages_per_request=10)
    events, result = await collect(executor.execute_stream("the goal"))
    assert result.output == "enough"
    check_requests(provider, 10, "the goal")
    answered = provider.shown[1][-1]
    assert isinstance(answered, ToolMessage)
    assert [r.text for r in answered.results[:-1]] == [f"found {n}" for n in range(7)]
    assert "32 more calls were not run" in answered.results[-1].text
    whole = result.transcript[1]
    assert isinstance(whole, AssistantMessage)
    assert len(whole.calls) == 40
    declined = next(e for e in events if isinstance(e, CallsDeclined))
    assert (declined.accepted, len(declined.calls)) == (8, 32)


async def test_tool_calls_per_turn_limits_a_reply() -> None:
    """`tool_calls_per_turn` limits the calls of one reply."""
    provider = RecordingProvider([call("look", n=n) for n in range(5)], "enough")
    result = await executor_for(provider, look, limits=Limits(tool_calls_per_turn=2)).execute("go")
    assert result.metrics.by_tool["look"].calls == 2


async def test_default_limit_is_fifty() -> None:
    """By default a history holds at most fifty messages, and a pruning halves it."""
    provider = RecordingProvider(*[call("look", n=n) for n in range(60)], "done")
    result = await executor_for(provider, look).execute("the goal")
    assert result.metrics.limit == 50
    assert max(map(total_size, provider.shown)) in (49, 50)
    assert all(before == 51 and after == 25 for before, after in result.metrics.sizes)


@pytest.mark.parametrize("limit", [0, -1, "50", 2.5, True, [], float("nan")])
def test_invalid_limits_are_refused(limit: Any) -> None:
    """The error names the accepted values."""
    with pytest.raises(DefinitionError, match="positive integer such as 50"):
        executor_for("scripted:hi", max_messages_per_request=limit)

    with pytest.raises(DefinitionError, match="prune_to must be a positive integer"):
        executor_for("scripted:hi", prune_to=limit)


async def test_limit_of_one_answers_without_tools() -> None:
    """With a limit of 1 the request holds the goal alone; the next run continues the conversation."""
    provider = RecordingProvider(lambda request: f"heard {request.messages[-1].text}")  # type: ignore[union-attr]
    executor = executor_for(provider, max_messages_per_request=1)
    result = await executor.execute("one")
    assert [m.text for m in result.history] == ["heard one"]  # type: ignore[union-attr]
    again = await executor.execute("two", history=result)
    third = await executor.execute("three", history=list(again.history))
    assert third.output == "heard three"
    assert [len(shown) for shown in provider.shown] == [1, 1, 1]
    assert [m.text for m in again.transcript] == ["one", "heard one", "two", "heard two"]  # type: ignore[union-attr]


async def test_limit_of_three_is_enough_for_tools() -> None:
    """Goal, call and result; a lower limit is refused when the executor is built."""
    provider = RecordingProvider(*[call("look", n=n) for n in range(5)], "done")
    result = await executor_for(provider, look, max_messages_per_request=3).execute("the goal")
    assert result.output == "done"
    check_requests(provider, 3, "the goal")

    for limit in (1, 2):
        with pytest.raises(DefinitionError, match="at least 3"):
            executor_for(provider, look, max_messages_per_request=limit)


def test_prune_target_is_checked_against_the_limit() -> None:
    """A target above the limit is an error; a target close to it is a warning about cache misses."""
    with pytest.raises(DefinitionError, match="at most max_messages_per_request=10"):
        executor_for("scripted:hi", max_messages_per_request=10, prune_to=11)

    with pytest.warns(UserWarning, match="prompt caching"):
        executor_for("scripted:hi", max_messages_per_request=10, prune_to=9)

    executor_for("scripted:hi", max_messages_per_request=10, prune_to=8)


async def test_limit_of_the_policy_is_the_default() -> None:
    """An unbounded policy and an explicit limit contradicts the policy."""
    assert executor_for("scripted:hi", history=Rolling(limit=7)).plan.budget.limit == 7
    assert executor_for("scripted:hi", history="unbounded").plan.budget.limit is None
    one, two = (executor_for("scripted:hi", max_messages_per_request=n) for n in (5, 6))
    assert (one.plan.budget.limit, two.plan.budget.limit) == (5, 6)

    with pytest.raises(DefinitionError, match="contradicts the policy"):
        executor_for("scripted:hi", history="unbounded", max_messages_per_request=50)


async def test_unbounded_sends_everything() -> None:
    """`unbounded` never prunes."""
    provider = RecordingProvider(*[call("look", n=n) for n in range(60)], "done")
    result = await executor_for(provider, look, history="unbounded").execute("go")
    assert total_size(provider.shown[-1]) == 121
    assert result.metrics.limit is None


async def test_system_messages_above_the_limit_overflow_at_once() -> None:
    """The overflow is itemized, and no request is sent."""
    provider = RecordingProvider("never")
    rules = [{"role": "system", "content": f"rule {n}"} for n in range(8)]

    with pytest.raises(ContextOverflow) as caught:
        await executor_for(provider, look, max_messages_per_request=10).execute("go", history=rules)

    assert caught.value.items == (("system messages", 8), ("goal and one step", 3))
    assert provider.requests == []
    same = [{"role": "system", "content": "rule"} for _ in range(8)]
    fits = executor_for(RecordingProvider("fits"), look, max_messages_per_request=10)
    assert (await fits.execute("go", history=same)).output == "fits"


async def test_repair_of_the_input_is_reported() -> None:
    """Invariant 2: a broken history is repaired, counted and reported by an event."""
    orphan = {"role": "tool", "tool_call_id": "x", "content": "?"}
    executor = executor_for(RecordingProvider("fine"))
    events, result = await collect(executor.execute_stream("go", history=[orphan]))
    assert result.output == "fine"
    assert [e.where for e in events if isinstance(e, HistoryRepaired)] == ["input"]


async def test_reused_and_invalid_call_ids_are_renamed() -> None:
    """Call ids of a model never make the next request invalid, and each result keeps its call."""

    def odd(request: ModelRequest) -> ModelReply:
        calls = [ToolCall(id=id, name="look", arguments='{"n": 1}') for id in ("same", "same", "", "x" * 60, "a b")]
        return ModelReply(calls=(*calls, ToolCall(id="n", name="no such näme", arguments="{}")))

    provider = RecordingProvider(odd, odd, odd, "done")
    executor = executor_for(provider, look, max_messages_per_request=30)
    events, result = await collect(executor.execute_stream("the goal"))
    assert result.output == "done"
    check_requests(provider, 30, "the goal")
    assert not any(isinstance(e, HistoryRepaired) for e in events)


@pytest.mark.parametrize("taken", ["call_3_0", "call_1_0"])
async def test_new_call_id_avoids_ids_in_use(taken: str) -> None:
    """A generated call id differs from all ids in the history."""
    first = ModelReply(calls=(ToolCall(id="same", name="look"), ToolCall(id=taken, name="look")))
    provider = RecordingProvider(first, ModelReply(calls=(ToolCall(id="same", name="look"),)), "done")
    events, _ = await collect(executor_for(provider, look).execute_stream("the goal"))
    check_requests(provider, 50, "the goal")
    assert not any(isinstance(e, HistoryRepaired) for e in events)


def test_single_agent_is_a_crew() -> None:
    """An agent alone becomes a crew with its name."""
    assert CrewExecutor(solo(ScriptedProvider("hi"))).plan.crew.name == "solo"


@pytest.mark.parametrize(
    ("history", "problem"),
    [
        (lambda: {"name": "rolling", "limit": "50"}, "limit must be a positive integer such as 50, not '50'"),
        (lambda: {"name": "rolling", "limit": 2.5}, "limit must be a positive integer such as 50, not 2.5"),
        (lambda: {"name": "rolling", "prune_to": 0}, "prune_to must be a positive integer, not 0"),
        (lambda: chain(Rolling(), HeadTail(prune_to=-1)), "prune_to .*must be a"),
        (lambda: chain(5), "give one such as Rolling\\(\\), not 5"),
        (chain, "it has no members"),
        (lambda: {"name": "summarize", "threshold": "0.8"}, "threshold must be a number above 0 .*, not '0.8'"),
        (lambda: {"name": "summarize", "window": "8k"}, "window must be a positive integer, not '8k'"),
        (lambda: {"name": "truncate", "target": None}, "target must be a number above 0 .*, not None"),
        (lambda: Truncate(target=0.9), "target=0.9 must be below threshold=0.8"),
        (lambda: Rolling, r"pass an object: Rolling\(\)"),
        (lambda: None, "a policy has a name and a method 'prune'"),
    ],
)
def test_invalid_policies_are_refused(history: Callable[[], Any], problem: str) -> None:
    """The options of a policy follow the same rules as the parameters of the executor."""
    with pytest.raises(DefinitionError, match=problem):
        executor_for("scripted:hi", history=history())


def test_limit_below_the_limit_of_a_policy_is_an_error() -> None:
    """Also in a chain; the default of fifty of `rolling` and `summarize` gives way to an explicit limit."""
    for policy in (Rolling(limit=80), chain(Rolling(), HeadTail(max_messages=80)), Checkpoint(trigger_at=80)):
        with pytest.raises(DefinitionError, match="max_messages_per_request=20 is below"):
            executor_for("scripted:hi", history=policy, max_messages_per_request=20)

    for default in (Rolling(), chain(Rolling(), Summarize())):
        assert executor_for("scripted:hi", history=default, max_messages_per_request=20).plan.budget.limit == 20


async def test_truncation_marker_counts_in_the_limit() -> None:
    """A marker can outlive the messages it stands for; the view stays within the limit."""
    provider = RecordingProvider(*[call("report", n=n) for n in range(40)], "done")

    @tool(effect="read")
    async def report(n: int) -> str:
        """Report something long."""
        return "word " * (60 if n % 9 == 0 else 3)

    agent = solo(provider, report, history=Truncate(threshold=0.5, target=0.3), max_input_tokens=260)
    await CrewExecutor(agent, max_messages_per_request=5).execute("the goal")
    check_requests(provider, 5, "the goal")
    assert any("truncated to fit" in m.text for shown in provider.shown for m in shown if isinstance(m, UserMessage))


@pytest.mark.parametrize("way", ["parameters", "agent"])
async def test_accepted_calls_fit_the_view(way: str) -> None:
    """The limit of a view can be lower than that of the history; a reply with many calls does not overflow it."""
    provider = RecordingProvider([call("look", n=n) for n in range(12)], "enough")
    agent = solo(provider, look, history=Rolling(limit=6) if way == "agent" else None)
    parameters = RequestParameters(max_history_size=6) if way == "parameters" else None
    result = await CrewExecutor(agent, parameters=parameters).execute("the goal")
    assert result.output == "enough"
    assert result.metrics.by_tool["look"].calls == 4
    check_requests(provider, 6, "the goal")
