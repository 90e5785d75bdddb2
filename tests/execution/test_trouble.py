"""When a model can't take a request: cut further, or fall back; both durable and visible."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from crew import Agent, CrewExecutor, RunError, ScriptedProvider, call, tool
from crew.doors import ModelReply, ModelRequest, OnDelta
from crew.errors import ContextOverflow, ContextTooLong, Overloaded, Unavailable
from crew.exchanges import PROFILES, validate
from crew.history import estimate_message
from crew.messages import UserMessage
from crew.runs import RunResult
from crew.runs.events import Asked, Event, FellBack, HistoryPruned, Replied, TooLong
from crew.store import MemoryStore


@tool
async def read(part: int) -> str:
    """Read a part of the report."""
    return f"part {part}: " + "the quick brown fox jumps over the lazy dog. " * 12


class Narrow:
    """A model with a window: it refuses what is longer, in the way of the services, and keeps what it was sent."""

    def __init__(self, inner: ScriptedProvider, window: int, named: int | None = None) -> None:
        self.inner, self.window, self.named = inner, window, named
        self.name, self.model, self.profile = "narrow", "narrow-1", "strictest"
        self.requests: list[ModelRequest] = []
        self.refused: list[int] = []

    async def complete(self, request: ModelRequest, on_delta: OnDelta | None = None) -> ModelReply:
        self.requests.append(request)
        size = sum(estimate_message(message) for message in request.messages)

        if size > self.window:
            self.refused.append(size)
            raise ContextTooLong(f"prompt is too long: {size} tokens > {self.window} maximum", maximum=self.named)

        return await self.inner.complete(request, on_delta)


def reader(parts: int) -> Callable[[ModelRequest], object]:
    return lambda request: call("read", part=request.turn) if request.turn < parts else "All read."


async def watch(executor: CrewExecutor, text: str = "Read the report.") -> tuple[list[Event], RunResult]:
    async with executor.execute_stream(text) as stream:
        events = [event async for event in stream]

    return events, stream.result


@pytest.mark.parametrize("named", [1500, None])
async def test_a_window_that_nobody_knew_is_learned_and_kept(named: int | None) -> None:
    """Law 6: after a refusal the next request is strictly smaller, and no later one outgrows the window again."""
    model = Narrow(ScriptedProvider(reader(40)), window=1500, named=named)
    executor = CrewExecutor(Agent("reader", model=model, tools=[read]), max_messages_per_request=200)
    events, result = await watch(executor)
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
    assert all(request.messages[0].text == "Read the report." for request in model.requests)


async def test_each_try_is_strictly_smaller_and_the_third_is_the_mandatory_part() -> None:
    """Law 6: three tries at the most, then an error that says what the request is made of."""
    model = Narrow(ScriptedProvider("replaced below"), window=100_000)
    executor = CrewExecutor(Agent("reader", instructions="Read.", model=model, tools=[read]))
    model.inner = ScriptedProvider(*[call("read", part=n) for n in range(20)], lambda r: _refuse(model))

    with pytest.raises(ContextOverflow) as caught:
        await executor.execute("Read the report.")

    tries = [len(request.messages) for request in model.requests[20:]]
    assert len(tries) == 4
    assert tries == sorted(tries, reverse=True)
    assert len(set(tries)) == 4
    assert tries[-1] == 3, "goal, call, result"
    assert {name.split()[0] for name, _ in caught.value.items} == {"instructions", "tool", "user", "exchange"}
    assert caught.value.result.stop_reason == "failed"


def _refuse(model: Narrow) -> str:
    raise ContextTooLong("prompt is too long")


async def test_where_nothing_can_leave_the_first_refusal_is_final() -> None:
    """A request that can't be made smaller is not sent again."""
    model = Narrow(ScriptedProvider("never"), window=1)
    executor = CrewExecutor(Agent("solo", model=model))

    with pytest.raises(ContextOverflow, match="refuses even what 'solo' must see"):
        await executor.execute("A question.")

    assert len(model.requests) == 1


async def test_the_backup_takes_over_for_the_rest_of_the_run() -> None:
    """After the primary's retries its backup answers; the state knows, so that no later request asks the primary."""
    asked: list[int] = []

    def primary(request: ModelRequest) -> object:
        asked.append(request.turn)

        if request.turn >= 2:
            raise Overloaded("529")

        return call("read", part=request.turn)

    backup = ScriptedProvider(reader(5), name="other", model="spare")
    agent = Agent("reader", model=ScriptedProvider(primary), backup=backup, tools=[read])
    events, result = await watch(CrewExecutor(agent))
    fallen = [event for event in events if isinstance(event, FellBack)]
    assert result.output == "All read."
    assert asked == [0, 1, 2]
    assert [(event.model, event.backup) for event in fallen] == [("scripted:scripted", "other:spare")]
    models = [event.model for event in events if isinstance(event, Replied)]
    assert models == ["scripted"] * 2 + ["spare"] * 4
    rules = [event.manifest.rule for event in events if isinstance(event, Asked) and event.manifest]
    assert rules.count("fallback") == 1
    again = await CrewExecutor(agent).execute("And again?", history=result)
    assert again.state.views["reader"].model == "backup", "the next run tried the primary first, which failed again"
    assert len(asked) == 4


async def test_the_backup_gets_a_view_for_its_own_window() -> None:
    """Falling back to a smaller model cuts the view to what that one holds."""
    small = Narrow(ScriptedProvider(reader(30)), window=1200)
    primary = ScriptedProvider(*[call("read", part=n) for n in range(15)], Unavailable("down"))
    agent = Agent("reader", model=primary, backup=small, tools=[read])
    small.named = 1200
    _, result = await watch(CrewExecutor(agent, max_messages_per_request=100))
    assert result.output == "All read."
    assert len(small.refused) == 1
    assert len(small.requests[1].messages) < len(small.requests[0].messages)
    gauges = result.state.gauges["reader"]
    assert [gauge.source for gauge in gauges] == ["default", "learned"]


async def test_without_a_backup_and_when_both_are_down_the_run_fails() -> None:
    """A backup is tried once; its own failure is the run's."""
    down = ScriptedProvider(Unavailable("the first is down"))

    with pytest.raises(RunError, match="the first is down"):
        await CrewExecutor(Agent("a", model=down)).execute("Hello?")

    other = ScriptedProvider(Unavailable("the second too"), model="two")

    with pytest.raises(RunError, match="the second too"):
        await CrewExecutor(Agent("a", model=down, backup=other)).execute("Hello?")


async def test_a_fallback_survives_a_crash() -> None:
    """Law 10: the run that failed after its fallback goes on with the backup."""
    store = MemoryStore()
    down = [True]

    def spare(request: ModelRequest) -> object:
        return Unavailable("down as well") if down[0] else "Answered."

    primary = ScriptedProvider(Unavailable("down"), "must not be asked")
    agent = Agent("a", model=primary, backup=ScriptedProvider(spare, model="two"))

    with pytest.raises(RunError) as caught:
        await CrewExecutor(agent, store=store).execute(UserMessage("Hello?"), run_id="r")

    assert caught.value.result.state.views["a"].model == "backup"
    down[0] = False
    result = await CrewExecutor(agent, store=store).resume("r")
    assert result.output == "Answered."
