"""Views are valid, bounded, contain the goal and the newest messages, and keep their prefix between cuts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crew import Agent, CrewExecutor, Limits, Parallel, ScriptedProvider, call, handoff, tool
from crew.agents import Crew
from crew.errors import ContextOverflow, DefinitionError, RunError
from crew.history import estimate_message_tokens
from crew.history.policies import MaskToolResults, Rolling, Truncate, Unbounded, chain
from crew.interfaces import HistoryBudget, MessageGroup, ModelReply, ModelRequest, ModelSettings, Policy, PruneDecision
from crew.message_rules import PROFILES, validate
from crew.messages import OMITTED, SystemMessage, ToolMessage, Usage
from crew.runs import Event, RequestParameters, RunResult
from crew.runs.events import Asked, HistoryPruned, Replied, Warned
from tests.support.messages import total_size
from tests.support.providers import RecordingProvider
from tests.support.runs import run_and_collect
from tests.support.stores import CheckedStore


@tool
async def read(part: int, words: int = 40) -> str:
    """Read a part of the report."""
    return f"part {part}: " + "lorem ipsum dolor " * words


def reader(parts: int, words: int = 40) -> Any:
    return lambda request: call("read", part=request.turn, words=words) if request.turn < parts else "All read."


def manifests(events: Sequence[Event]) -> list[Any]:
    return [event.message.manifest for event in events if isinstance(event, Replied)]


# ---------------------------------------------------------------------------------------------------- the property


@dataclass(frozen=True)
class RandomRun:
    """A random run: the calls of each step, and the limits."""

    steps: list[list[int]]
    policy: Any
    limit: int | None
    parameters: RequestParameters
    window: int | None
    own: Any


policies = st.one_of(
    st.none(),
    st.builds(Truncate),
    st.builds(MaskToolResults, keep_recent=st.integers(0, 6)),
    st.builds(Rolling, limit=st.integers(8, 20)),
    st.builds(Unbounded),
)
runs = st.builds(
    RandomRun,
    steps=st.lists(st.lists(st.integers(0, 120), min_size=1, max_size=4), min_size=4, max_size=25),
    policy=st.one_of(
        st.builds(Rolling),
        st.builds(Unbounded),
        st.builds(Truncate),
        st.builds(MaskToolResults, keep_recent=st.just(3)),
    ),
    limit=st.one_of(st.none(), st.integers(8, 40)),
    parameters=st.builds(
        RequestParameters,
        max_history_size=st.one_of(st.none(), st.integers(7, 30)),
        max_tokens=st.one_of(st.none(), st.integers(3_500, 8_000)),
    ),
    window=st.one_of(st.none(), st.integers(5_000, 12_000)),
    own=policies,
)


@pytest.mark.filterwarnings("ignore::UserWarning")  # some combinations have a limit that can't take effect
@given(runs)
@settings(max_examples=60)
def test_every_view_is_valid_bounded_and_stable(run: RandomRun) -> None:
    """Invariants 1, 2, 3 and 5 for every request, with any policies and limits, on every profile."""

    def step(request: ModelRequest) -> Any:
        if request.turn >= len(run.steps):
            return "Done."

        return [call("read", part=request.turn, words=words) for words in run.steps[request.turn]]

    model = RecordingProvider(step)
    agent = Agent("reader", model=model, tools=[read], history=run.own, max_input_tokens=run.window)
    limit = None if isinstance(run.policy, Unbounded) else run.limit
    store = CheckedStore(limit)
    executor = CrewExecutor(agent, history=run.policy, max_messages_per_request=limit, store=store)
    events, result = asyncio.run(run_and_collect(executor, "Read it.", parameters=run.parameters))
    assert not store.violations
    assert result.output == "Done."
    bound = 10_000 if isinstance(run.policy, Unbounded) else limit or 50
    sent = manifests(events)

    for request, manifest in zip(model.requests, sent, strict=True):
        for profile in PROFILES.values():
            assert not validate(request.messages, profile)

        assert total_size(request.messages) <= min(bound, run.parameters.max_history_size or 10_000)
        assert total_size(request.messages) == manifest.messages
        assert manifest.tokens_estimated <= (run.parameters.max_tokens or 10**9)
        assert any(message.text == "Read it." for message in request.messages if message.role == "user")
        newest = request.messages[-1]
        assert not isinstance(newest, ToolMessage) or all(r.text != OMITTED for r in newest.results)

    for before, after, manifest in zip(model.requests, model.requests[1:], sent[1:], strict=False):
        still = after.messages[: len(before.messages)] == before.messages
        assert still == (manifest.moved_by == "")
        assert after.messages[: manifest.same_messages] == before.messages[: manifest.same_messages]
        assert (
            manifest.moved_by == "" or after.messages[manifest.same_messages] != before.messages[manifest.same_messages]
        )


# ---------------------------------------------------------------------------------------------------- the default


async def test_default_run_stays_within_its_window() -> None:
    """At four fifths of the window the view is cut to half, and then stays until the next cut."""
    model = RecordingProvider(reader(60, words=60))
    agent = Agent("reader", model=model, tools=[read], max_input_tokens=4_000)
    events, result = await run_and_collect(CrewExecutor(agent, history="unbounded"))
    sent = manifests(events)
    assert max(manifest.tokens_billed for manifest in sent) <= 0.85 * 4_000
    assert {manifest.moved_by for manifest in sent} == {"first request", "", "window"}
    cuts = [event for event in events if isinstance(event, HistoryPruned)]
    assert all(event.where == "view" and event.policy == "window" for event in cuts)
    assert all(event.tokens_after <= 2_000 for event in cuts)
    assert len(result.history) == len(result.transcript) == 122, "the view was cut, not the history"
    assert result.metrics.by_policy == {"window": len(cuts)}
    assert result.metrics.prefix_breaks == len(cuts)
    assert result.metrics.tokens_saved > 20 * 4_000


async def test_window_comes_from_the_registry() -> None:
    """Explicit, else registered, else 128,000; the manifest names the source."""
    named = ScriptedProvider("Hello.", name="openai", model="gpt-4o")
    events, _ = await run_and_collect(CrewExecutor(Agent("a", model=named)))
    explicit, _ = await run_and_collect(CrewExecutor(Agent("a", model=named, max_input_tokens=9_000)))
    default, _ = await run_and_collect(CrewExecutor(Agent("a", model=ScriptedProvider("Hello."))))
    seen = [manifests(sent)[0] for sent in (events, explicit, default)]
    assert [(manifest.window, manifest.window_source) for manifest in seen] == [
        (128_000, "registry"),
        (9_000, "explicit"),
        (128_000, "default"),
    ]


async def test_output_tokens_are_reserved_in_the_window() -> None:
    """The output limit of the settings is kept free."""

    model = RecordingProvider(reader(30, words=60), name="openai", model="gpt-4")
    settings = ModelSettings(max_output_tokens=4_000)
    _, result = await run_and_collect(CrewExecutor(Agent("reader", model=model, tools=[read], settings=settings)))
    window = result.state.token_budgets["reader"][0].window
    assert window <= 10_000
    assert max(manifest.tokens_estimated for manifest in _in_transcript(result)) <= window - 4_000


def _in_transcript(result: RunResult) -> list[Any]:
    return [message.manifest for message in result.transcript if message.role == "assistant"]


# ---------------------------------------------------------------------------------------------------- parameters


async def test_max_history_size_cuts_to_half() -> None:
    """The limit is never exceeded, and the cut holds until the limit is reached again."""
    model = RecordingProvider(reader(60))
    events, _ = await run_and_collect(
        CrewExecutor(Agent("reader", model=model, tools=[read])), parameters=RequestParameters(max_history_size=20)
    )
    sizes = [total_size(request.messages) for request in model.requests]
    assert max(sizes) <= 20
    assert max(sizes) >= 19
    moved = [manifest for manifest in manifests(events) if manifest.moved_by == "max_history_size"]
    assert 4 <= len(moved) <= 14
    assert all(manifest.messages <= 11 for manifest in moved)


async def test_max_tokens_holds_for_the_billed_tokens() -> None:
    """Not only for the estimate."""
    model = RecordingProvider(reader(60, words=80))
    events, result = await run_and_collect(
        CrewExecutor(Agent("reader", model=model, tools=[read])), parameters=RequestParameters(max_tokens=2_500)
    )
    assert result.output == "All read."
    assert max(manifest.tokens_billed for manifest in manifests(events)) <= 2_500


async def test_max_tokens_below_the_instructions_is_an_error() -> None:
    """The error names the parts of the request."""
    agent = Agent("reader", instructions="Read with care. " * 100, model=ScriptedProvider("x"), tools=[read])

    with pytest.raises(ContextOverflow, match="max_tokens must accommodate the system prompt") as caught:
        await CrewExecutor(agent).execute("Hello", parameters=RequestParameters(max_tokens=100))

    assert [name for name, _ in caught.value.items] == ["instructions", "tool read"]


@pytest.mark.parametrize(
    "parameters", [RequestParameters(max_tokens=300), RequestParameters(max_history_size=2)], ids=["tokens", "size"]
)
async def test_overflow_of_a_limit_is_itemized(parameters: RequestParameters) -> None:
    """Invariant 6: only if the mandatory part exceeds the limit; the error lists its parts."""
    agent = Agent("reader", model=ScriptedProvider(reader(3, words=200)), tools=[read])

    with pytest.raises(ContextOverflow, match="mandatory part") as caught:
        await CrewExecutor(agent).execute("Read it.", parameters=parameters)

    kinds = [name.split()[0] for name, _ in caught.value.items]
    assert kinds[-2:] == ["user", "exchange"]


async def test_overflow_of_a_known_window_is_itemized() -> None:
    """The newest result does not fit even if it is cut: no request is sent."""
    model = RecordingProvider(reader(3, words=400))
    agent = Agent("reader", model=model, tools=[read], max_input_tokens=300)

    with pytest.raises(ContextOverflow, match="more than its window of 300"):
        await CrewExecutor(agent).execute("Read it.")

    assert len(model.requests) == 1


def test_instructions_above_the_window_fail_when_built() -> None:
    """No run could work."""
    agent = Agent("a", instructions="word " * 900, model=ScriptedProvider("x"), max_input_tokens=1_000)

    with pytest.raises(DefinitionError, match=r"instructions and tools of agent 'a' hold about .* instructions: "):
        CrewExecutor(agent)

    registered = ScriptedProvider("x", name="openai", model="gpt-4")

    with pytest.raises(DefinitionError, match="80% of its window of 8192"):
        CrewExecutor(Agent("a", instructions="word " * 9_000, model=registered))

    with pytest.raises(DefinitionError, match="max_input_tokens must be a positive integer, not 0"):
        CrewExecutor(Agent("a", model=registered, max_input_tokens=0))

    CrewExecutor(Agent("a", instructions="word " * 200_000, model=ScriptedProvider("x")))


# ---------------------------------------------------------------------------------------------------- policies


async def test_truncate_keeps_the_first_message_and_a_marker() -> None:
    """The marker follows the first user message, and its count only grows."""
    model = RecordingProvider(reader(60, words=60))
    agent = Agent("reader", model=model, tools=[read], max_input_tokens=4_000)
    events, result = await run_and_collect(
        CrewExecutor(agent, history="truncate", max_messages_per_request=200), "Read it."
    )
    assert result.output == "All read."
    markers = [[m.text for m in r.messages if m.role == "user" and m.origin == "marker"] for r in model.requests]
    assert all(len(found) <= 1 for found in markers)
    texts = list(dict.fromkeys(found[0] for found in markers if found))
    assert len(texts) >= 3
    numbers = [int(text.removeprefix("[").split()[0]) for text in texts]
    assert numbers == sorted(numbers)
    assert texts[0] == f"[{numbers[0]} earlier messages truncated to fit context window]"
    assert all(request.messages[0].text == "Read it." for request in model.requests)
    last = model.requests[-1].messages
    assert last[1].text == texts[-1]
    assert len(result.transcript) - 1 == numbers[-1] + total_size(last) - 1, "every message is shown or counted"
    assert {m.moved_by for m in manifests(events)} == {"first request", "", "truncate"}


async def test_old_results_are_masked_in_batches() -> None:
    """At twice the number to keep, the older half becomes [Omitted]; the count and the ids stay."""
    model = RecordingProvider(reader(20))
    agent = Agent("reader", model=model, tools=[read], history=MaskToolResults(keep_recent=3))
    events, result = await run_and_collect(CrewExecutor(agent), "Read it.")
    readable = []

    for request in model.requests:
        results = [r for m in request.messages if isinstance(m, ToolMessage) for r in m.results]
        readable.append(sum(r.text != OMITTED for r in results))
        assert [r.call_id for r in results] == [
            c.id for m in request.messages if m.role == "assistant" for c in m.calls
        ]
        assert len(request.messages) == 1 + 2 * request.turn

    assert readable[:10] == [0, 1, 2, 3, 4, 5, 3, 4, 5, 3]
    assert result.metrics.by_policy == {"mask_tool_results": 5}
    masks = [event for event in events if isinstance(event, HistoryPruned)]
    assert all(len(event.masked) == 3 and not event.evicted for event in masks)
    assert OMITTED not in [r.text for m in result.transcript if isinstance(m, ToolMessage) for r in m.results]


async def test_policy_of_an_agent_changes_only_its_view() -> None:
    """The shared history and the views of other agents stay."""
    second = RecordingProvider("Summed up.")
    first = Agent("first", model=ScriptedProvider(reader(12)), tools=[read], then="second", history=Rolling(limit=8))
    crew = Crew("pair", agents=[first, Agent("second", model=second)])
    events, result = await run_and_collect(CrewExecutor(crew), "Read it.")
    asked = [event for event in events if isinstance(event, Asked) and event.agent == "first"]
    assert max(event.messages for event in asked) <= 8
    assert total_size(second.requests[0].messages) == len(result.transcript) - 1 == 27


class Forgetful:
    """A bad custom policy: it keeps only the third group and masks everything."""

    name = "forgetful"

    def prune(self, history: Sequence[MessageGroup], budget: HistoryBudget) -> PruneDecision:
        ids = tuple(entry.message.id for g in history for entry in g.entries)
        return PruneDecision(kept=tuple(history[2:3]), masked=ids, reason="a bad day")


async def test_custom_policy_cannot_break_a_view() -> None:
    """The goal and the newest messages stay, requests are valid, the newest results stay readable."""
    model = RecordingProvider(reader(9))
    agent = Agent("reader", model=model, tools=[read], history=Forgetful())
    _, result = await run_and_collect(CrewExecutor(agent), "Read it.")
    assert result.output == "All read."

    for request in model.requests:
        assert not validate(request.messages)
        assert request.messages[0].text == "Read it."
        assert OMITTED not in str(request.messages[-1])


class Failing:
    """A custom policy with a mistake in `prune`."""

    name = "bad"

    def __init__(self, prune: Callable[..., Any]) -> None:
        self.prune = prune


@pytest.mark.parametrize(
    ("prune", "words"),
    [
        (lambda history, budget: 1 / 0, "The history policy 'bad' failed: ZeroDivisionError: division by zero"),
        (lambda history, budget: list(history), "The history policy 'bad' must return a PruneDecision, not list"),
    ],
)
@pytest.mark.parametrize("stage", ["history", "chain", "view"])
async def test_the_error_of_a_failing_policy_names_it(prune: Callable[..., Any], words: str, stage: str) -> None:
    """In the shared history, in a chain, and in the view of an agent."""
    bad = Failing(prune)
    agent = Agent("reader", model=RecordingProvider(reader(9)), tools=[read], history=bad if stage == "view" else None)
    shared: Policy = {"history": bad, "chain": chain(Rolling(), bad), "view": Rolling()}[stage]
    executor = CrewExecutor(agent, history=shared, max_messages_per_request=6)

    with pytest.raises(RunError) as caught:
        await executor.execute("Read it.")

    assert str(caught.value) == words
    assert caught.value.result is not None  # also if it failed before the first commit
    assert caught.value.result.stop_reason == "failed"


class KeepsAll:
    """A view policy that changes nothing. Its attributes are its own: none of them is an option."""

    name = "keeps_all"
    threshold, limit, prune_to, eager, summarizes, stage, marks, policies = 0.99, 3, 1, True, True, "view", True, ()

    def prune(self, history: Sequence[MessageGroup], budget: HistoryBudget) -> PruneDecision:
        return PruneDecision(kept=tuple(history))


async def test_unrelated_attributes_of_a_view_policy_change_nothing() -> None:
    """Only `options` configures a policy; an attribute `threshold` does not switch the window threshold off."""
    sent = []

    for policy in (None, KeepsAll()):
        model = RecordingProvider(reader(40, words=60))
        agent = Agent("reader", model=model, tools=[read], max_input_tokens=4_000, history=policy)
        _, result = await run_and_collect(CrewExecutor(agent, max_messages_per_request=200))
        assert set(result.metrics.by_policy) == {"window"}
        sent.append([[(m.role, getattr(m, "text", "")) for m in request.messages] for request in model.requests])

    assert sent[0] == sent[1]


async def test_chain_is_split_into_history_and_view_policies() -> None:
    """Members that bound the history apply to it; members that shape views apply to every agent."""
    mask = MaskToolResults(keep_recent=2)
    for members, name in [((Rolling(limit=12), mask), "rolling"), ((Rolling(), Rolling(limit=12), mask), "chain")]:
        model = RecordingProvider(reader(20))
        executor = CrewExecutor(Agent("reader", model=model, tools=[read]), history=chain(*members))
        _, result = await run_and_collect(executor, "Read it.")
        assert max(total_size(request.messages) for request in model.requests) <= 12
        assert set(result.metrics.by_policy) == {name, "mask_tool_results"}


async def test_agent_policy_below_the_mandatory_part_overflows() -> None:
    """The error is an overflow, not an invalid request."""
    agent = Agent("reader", model=ScriptedProvider(reader(3)), tools=[read], history=Rolling(limit=3))

    with pytest.raises(ContextOverflow, match="more than the limit of 3 of the policy"):
        await CrewExecutor(agent).execute("Read it.", history=[SystemMessage("Be brief.")])

    agent = Agent("reader", model="scripted:hi", tools=[read], history=Rolling(limit=2))

    with pytest.raises(DefinitionError, match="must let it see at least 3 messages, not 2"):
        CrewExecutor(agent)


@pytest.mark.parametrize("make", [lambda: Truncate(target=0.9), lambda: MaskToolResults(keep_recent=-1)])
def test_view_policies_refuse_invalid_options(make: Any) -> None:
    """A policy is checked when it is built."""
    with pytest.raises(DefinitionError):
        make()


# ---------------------------------------------------------------------------------------------------- the rest


async def test_warning_near_a_limit_is_emitted_once() -> None:
    """A history that is pruned in blocks comes near its limit repeatedly; one warning is enough."""
    model = ScriptedProvider(reader(60, words=60))
    agent = Agent("reader", model=model, tools=[read], max_input_tokens=4_000)
    executor = CrewExecutor(agent, max_messages_per_request=20, limits=Limits(rounds=70))
    events, _ = await run_and_collect(
        executor, "Read it.", parameters=RequestParameters(max_tokens=3_000, max_history_size=18)
    )
    texts = [event.text.split(":")[0] for event in events if isinstance(event, Warned)]
    assert sorted(texts) == sorted(set(texts))
    assert {"max_messages_per_request", "max_history_size of reader", "limits.rounds"} <= set(texts)


async def test_views_continue_in_the_next_run() -> None:
    """The next run starts with the same prefix: cuts, masks and counts are kept."""
    model = RecordingProvider(reader(30, words=60))
    agent = Agent("reader", model=model, tools=[read], max_input_tokens=4_000)
    executor = CrewExecutor(agent, history="unbounded")
    first = await executor.execute("Read it.")
    before = model.requests[-1].messages
    second = await executor.execute("And now?", history=first)
    after = model.requests[-1].messages
    assert second.state.views["reader"].hidden_before == first.state.views["reader"].hidden_before > 0
    assert after[: len(before)] == before
    assert (
        second.state.calibrations["scripted:scripted"].bill_count
        == first.state.calibrations["scripted:scripted"].bill_count + 1
    )


async def test_branches_have_separate_views() -> None:
    """A branch cuts its view; a learned window stays when it joins."""
    branch = RecordingProvider(reader(12, words=60))
    narrow = Agent("narrow", model=branch, tools=[read], max_input_tokens=2_000)
    group = Parallel("group", branches=[narrow], then="end")
    start = Agent("start", model=ScriptedProvider("Go."), then=group)
    crew = Crew("c", agents=[start, narrow, Agent("end", model=ScriptedProvider("Done."))], groups=[group])
    events, result = await run_and_collect(CrewExecutor(crew), "Read it.")
    assert result.output == "Done."
    assert result.metrics.by_policy["window"] >= 1
    assert (
        max(event.tokens_estimated for event in events if isinstance(event, Asked) and event.agent == "narrow") <= 1_700
    )


async def test_cut_applies_within_the_handoff_filter(store: CheckedStore) -> None:
    """The filter is fixed at the handoff; the cut moves within it."""
    second = RecordingProvider(reader(14, words=60))
    target = Agent("second", model=second, tools=[read], max_input_tokens=2_500)
    first = Agent(
        "first",
        model=ScriptedProvider(call("read", part=0), ModelReply(text="Over.", calls=(call("transfer_to_second"),))),
        tools=[read],
        handoffs=[handoff(target, history="text_only")],
    )
    events, result = await run_and_collect(CrewExecutor(Crew("c", agents=[first, target]), store=store))
    assert result.output == "All read."
    assert [m.role for m in second.requests[0].messages] == ["user", "assistant", "tool"]
    assert "window" in {m.moved_by for m in manifests(events)}
    assert all(not validate(request.messages) for request in second.requests)


async def test_custom_token_counter_and_cache_setting() -> None:
    """The counter counts every new message once; with caching off, every time."""

    class Words:
        def __init__(self) -> None:
            self.texts: list[str] = []

        def count(self, text: str) -> int:
            self.texts.append(text)
            return len(text.split())

    for caching, times in ((True, 1), (False, 2)):
        counter = Words()
        agent = Agent(
            "a", instructions="Be brief.", model=ScriptedProvider(call("read", part=1), "Well."), tools=[read]
        )
        executor = CrewExecutor(agent, counter=counter)
        given = [m for m in (await executor.execute("one two three")).history if m.role == "user"]
        assert {"Be brief.", "one two three", "Well."} <= set(counter.texts)
        assert any(text.startswith("part 1:") for text in counter.texts)
        counter.texts.clear()

        for _ in range(2):
            parameters = RequestParameters(enable_token_caching=caching)
            await executor.execute("four", history=given, parameters=parameters)

        assert counter.texts.count("one two three") == times


async def test_missing_usage_leaves_the_estimates_unchanged() -> None:
    """A provider without usage does not calibrate."""
    silent = ScriptedProvider(ModelReply(text="Hi.", usage=Usage(requests=1, output_tokens=1)))
    result = await CrewExecutor(Agent("a", model=silent)).execute("Hello")
    assert result.state.calibrations == {}
    assert result.state.history.entries[0].tokens == estimate_message_tokens(result.history[0])
