"""A request that a model refuses as too long is cut further; a model that is down is replaced by its backup."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from crew import Agent, CrewExecutor, Parallel, RunError, ScriptedProvider, call, tool
from crew.agents import Crew
from crew.errors import AuthenticationFailed, ContextOverflow, ContextTooLong, Overloaded, QuotaExceeded, Unavailable
from crew.history import estimate_message_tokens
from crew.interfaces import ModelReply, ModelRequest, OnDelta
from crew.message_rules import PROFILES, validate
from crew.messages import UserMessage
from crew.runs.events import Asked, FellBack, HistoryPruned, Replied, TooLong
from crew.store import MemoryStore
from tests.support.providers import RecordingProvider
from tests.support.runs import run_and_collect

GOAL = "Read the report."


@tool
async def read(part: int) -> str:
    """Read a part of the report."""
    return f"part {part}: " + "the quick brown fox jumps over the lazy dog. " * 12


class NarrowProvider(RecordingProvider):
    """A model with a window: it refuses longer requests, as the services do."""

    def __init__(self, *lines: Any, window: int, named: int | None = None) -> None:
        super().__init__(*lines, name="narrow", model="narrow-1")
        self.window, self.named = window, named
        self.refused: list[int] = []

    async def complete(self, request: ModelRequest, on_delta: OnDelta | None = None) -> ModelReply:
        size = sum(map(estimate_message_tokens, request.messages))

        if size > self.window:
            self.requests.append(request)
            self.refused.append(size)
            raise ContextTooLong(f"prompt is too long: {size} tokens > {self.window} maximum", maximum=self.named)

        return await super().complete(request, on_delta)


def reader(parts: int) -> Callable[[ModelRequest], object]:
    return lambda request: call("read", part=request.turn) if request.turn < parts else "All read."


@pytest.mark.parametrize("named", [1500, None])
async def test_unknown_window_is_learned_from_the_refusal(named: int | None) -> None:
    """Invariant 6: the next request is strictly smaller, and no later one exceeds the window."""
    model = NarrowProvider(reader(40), window=1500, named=named)
    executor = CrewExecutor(Agent("reader", model=model, tools=[read]), max_messages_per_request=200)
    events, result = await run_and_collect(executor, GOAL)
    assert result.output == "All read."
    assert len(model.refused) == 1
    refusals = [event for event in events if isinstance(event, TooLong)]
    assert [event.maximum for event in refusals] == [named]
    assert any(isinstance(event, HistoryPruned) and event.policy == "too_long" for event in events)
    last = [event.manifest for event in events if isinstance(event, Asked)][-1]
    assert last is not None
    assert last.window_source == "learned"
    assert last.window == (named or refusals[0].tokens)
    assert all(not validate(request.messages, profile) for request in model.requests for profile in PROFILES.values())
    assert all(request.messages[0].text == GOAL for request in model.requests)


async def test_each_attempt_after_a_refusal_is_smaller() -> None:
    """Invariant 6: at most three more attempts, the last with the mandatory part alone, then an itemized error."""
    too_long = ContextTooLong("prompt is too long")
    model = RecordingProvider(*[call("read", part=n) for n in range(20)], lambda request: too_long)
    executor = CrewExecutor(Agent("reader", instructions="Read.", model=model, tools=[read]))

    with pytest.raises(ContextOverflow) as caught:
        await executor.execute(GOAL)

    tries = [len(request.messages) for request in model.requests[20:]]
    assert len(tries) == 4
    assert tries == sorted(tries, reverse=True)
    assert len(set(tries)) == 4
    assert tries[-1] == 3, "goal, call, result"
    assert {name.split()[0] for name, _ in caught.value.items} == {"instructions", "tool", "user", "exchange"}
    assert caught.value.result.stop_reason == "failed"


async def test_refusal_of_a_fitting_request_raises_the_estimate() -> None:
    """A model that counts more than estimated says so in its error, before the first bill."""
    lines = [call("read", part=n) for n in range(4)]
    long = ContextTooLong("prompt is too long: 90000 tokens > 50000 maximum", maximum=50_000)
    refusing = ScriptedProvider(lambda request: long if len(request.messages) > 3 else "All read.", model="dense")
    first = Agent("first", model=ScriptedProvider(*lines, "Over."), tools=[read], then="second")
    crew = Crew("c", agents=[first, Agent("second", model=refusing, max_input_tokens=60_000)])
    events, result = await run_and_collect(CrewExecutor(crew), GOAL)
    assert result.output == "All read."
    asked = [event.tokens_estimated for event in events if isinstance(event, Asked) and event.agent == "second"]
    assert len(asked) == 3
    budget = result.state.token_budgets["second"][0]
    assert (budget.window, budget.window_source) == (50_000, "learned")
    refusals = [event for event in events if isinstance(event, TooLong)]
    assert refusals[1].tokens > refusals[0].tokens / 2, "a third of the messages, each of which counts for more now"


async def test_refusal_is_final_if_nothing_can_be_removed() -> None:
    """The same request is not sent again."""
    model = NarrowProvider("never", window=1)
    executor = CrewExecutor(Agent("solo", model=model))

    with pytest.raises(ContextOverflow, match="refuses even the mandatory part"):
        await executor.execute("A question.")

    assert len(model.requests) == 1


async def test_backup_takes_over_for_the_rest_of_the_run() -> None:
    """After the retries of the primary the backup answers; the state stores it, and no later request goes to the
    primary."""
    asked: list[int] = []

    def primary(request: ModelRequest) -> object:
        asked.append(request.turn)

        if request.turn >= 2:
            raise Overloaded("529")

        return call("read", part=request.turn)

    backup = ScriptedProvider(reader(5), name="other", model="spare")
    agent = Agent("reader", model=ScriptedProvider(primary), backup=backup, tools=[read])
    events, result = await run_and_collect(CrewExecutor(agent), GOAL)
    fallen = [event for event in events if isinstance(event, FellBack)]
    assert result.output == "All read."
    assert asked == [0, 1, 2]
    assert [(event.model, event.backup) for event in fallen] == [("scripted:scripted", "other:spare")]
    models = [event.model for event in events if isinstance(event, Replied)]
    assert models == ["scripted"] * 2 + ["spare"] * 4
    rules = [event.manifest.moved_by for event in events if isinstance(event, Asked) and event.manifest]
    assert rules.count("fallback") == 1
    again = await CrewExecutor(agent).execute("And again?", history=result)
    assert again.state.views["reader"].active_model == "backup", (
        "the next run tried the primary first, which failed again"
    )
    assert len(asked) == 4


async def test_backup_takes_over_if_the_quota_is_exceeded() -> None:
    """A wrong key is an error at once, because it is a configuration mistake."""
    backup = ScriptedProvider("From the other account.", name="other")
    empty = Agent("solo", model=ScriptedProvider(QuotaExceeded("no credit left")), backup=backup)
    assert (await CrewExecutor(empty).execute("Go")).output == "From the other account."
    wrong = Agent("solo", model=ScriptedProvider(AuthenticationFailed("wrong key")), backup=backup)

    with pytest.raises(RunError, match="wrong key"):
        await CrewExecutor(wrong).execute("Go")


async def test_backup_gets_a_view_for_its_window() -> None:
    """Falling back to a smaller model cuts the view further."""
    small = NarrowProvider(reader(30), window=1200)
    primary = ScriptedProvider(*[call("read", part=n) for n in range(15)], Unavailable("down"))
    agent = Agent("reader", model=primary, backup=small, tools=[read])
    small.named = 1200
    _, result = await run_and_collect(CrewExecutor(agent, max_messages_per_request=100), GOAL)
    assert result.output == "All read."
    assert len(small.refused) == 1
    assert len(small.requests[1].messages) < len(small.requests[0].messages)
    budgets = result.state.token_budgets["reader"]
    assert [budget.window_source for budget in budgets] == ["default", "learned"]


async def test_run_fails_without_a_working_backup() -> None:
    """A backup is tried once; its error is the error of the run."""
    down = ScriptedProvider(Unavailable("the first is down"))

    with pytest.raises(RunError, match="the first is down"):
        await CrewExecutor(Agent("a", model=down)).execute("Hello?")

    other = ScriptedProvider(Unavailable("the second too"), model="two")

    with pytest.raises(RunError, match="the second too"):
        await CrewExecutor(Agent("a", model=down, backup=other)).execute("Hello?")


async def test_fallback_survives_a_crash() -> None:
    """Invariant 10: a run that failed after its fallback resumes with the backup."""
    store = MemoryStore()
    down = [True]

    def spare(request: ModelRequest) -> object:
        return Unavailable("down as well") if down[0] else "Answered."

    primary = ScriptedProvider(Unavailable("down"), "must not be asked")
    agent = Agent("a", model=primary, backup=ScriptedProvider(spare, model="two"))

    with pytest.raises(RunError) as caught:
        await CrewExecutor(agent, store=store).execute(UserMessage("Hello?"), run_id="r")

    assert caught.value.result.state.views["a"].active_model == "backup"
    down[0] = False
    result = await CrewExecutor(agent, store=store).resume("r")
    assert result.output == "Answered."


async def test_learned_window_applies_to_all_agents_of_the_model() -> None:
    """Also after a branch joined, and in the next run of the conversation."""
    model = NarrowProvider(reader(20), window=1_500, named=1_500)
    worker = Agent("worker", model=model, tools=[read])
    group = Parallel("group", branches=[worker], then="reader")
    crew = Crew("c", agents=[worker, Agent("reader", model=model)], groups=[group], entry=group)
    executor = CrewExecutor(crew, max_messages_per_request=100)
    result = await executor.execute("Read it.")
    assert len(model.refused) == 1
    assert {g.window_source for ranks in result.state.token_budgets.values() for g in ranks} == {"learned"}
    again = await executor.execute("Once more.", history=result)
    assert {g.window_source for ranks in again.state.token_budgets.values() for g in ranks} == {"learned"}


async def test_state_without_token_budgets_can_be_resumed() -> None:
    """Missing values come from the plan: the number of the agent, or the default."""
    store = MemoryStore()
    agent = Agent(
        "a", model=ScriptedProvider(Unavailable("down"), name="openai", model="gpt-4o"), max_input_tokens=9_000
    )

    with pytest.raises(RunError) as caught:
        await CrewExecutor(agent, store=store).execute("Hello?", run_id="r")

    stored = await store.load("r")
    bare = replace(caught.value.result.state, token_budgets={})
    await store.commit("r", stored.version, (), bare)
    answered = Agent("a", model=ScriptedProvider("Hi."), max_input_tokens=9_000)
    result = await CrewExecutor(answered, store=store).resume("r")
    manifest = result.transcript[-1].manifest  # type: ignore[union-attr]
    assert (manifest.window, manifest.window_source) == (9_000, "explicit")
