"""A limit ends a run with its result so far."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from crew import Agent, Crew, CrewExecutor, Limits, ScriptedProvider, call
from crew.errors import DefinitionError
from crew.interfaces import ModelReply
from crew.message_rules import validate
from crew.messages import ToolCall, Usage
from crew.runs import ReachedLimit
from crew.runs.events import Event, LimitReached, Warned
from tests.support.clocks import TickingClock, run_in_virtual_time
from tests.support.providers import RecordingProvider
from tests.support.runs import collect, executor_for
from tests.support.tools import look


def spending(**usage: Any) -> Any:
    calls = (ToolCall(id="", name="look", arguments='{"n": 1}'),)
    return lambda request: ModelReply(text="working on it", calls=calls, usage=Usage(requests=1, **usage))


@pytest.mark.parametrize(
    ("limits", "line", "requests", "name"),
    [
        (Limits(rounds=3), spending(), 3, "rounds"),
        (Limits(rounds=0), spending(), 0, "rounds"),
        (Limits(tokens=100), spending(input_tokens=30, output_tokens=10), 3, "tokens"),
        (Limits(cost_usd=0.05), spending(cost=0.02), 3, "cost_usd"),
        (Limits(seconds=10), spending(), 2, "seconds"),
    ],
)
async def test_limit_ends_the_run_with_its_result_so_far(limits: Limits, line: Any, requests: int, name: str) -> None:
    """`stop_reason="limit"`, the last text, a valid history, and an event that names the limit."""
    provider = RecordingProvider(line)
    executor = executor_for(provider, look, limits=limits, clock=TickingClock())
    events, result = await collect(executor.execute_stream("go"))
    assert result.stop_reason == "limit"
    assert abs(len(provider.requests) - requests) <= (1 if name == "seconds" else 0)
    assert result.output == ("working on it" if requests else "")
    assert validate(result.history) == []
    assert [e.limit for e in events if isinstance(e, LimitReached)] == [name]
    assert result.limit == ReachedLimit(name=name, value=getattr(limits, name))


async def test_result_without_a_limit_has_none() -> None:
    """`result.limit` is set only where a limit ended the run."""
    result = await executor_for(RecordingProvider("done"), limits=Limits(rounds=3)).execute("go")
    assert (result.stop_reason, result.limit) == ("completed", None)


async def test_unknown_price_does_not_count_as_zero() -> None:
    """A cost limit can't be checked without a price: the run continues, its cost is unknown, and one warning is
    emitted."""
    calls = [ModelReply(text="", calls=(call("look", n=n),), usage=Usage(requests=1, cost=None)) for n in (1, 2, 3)]
    events: list[Event] = []
    executor = executor_for(
        RecordingProvider(*calls, "done"), look, limits=Limits(cost_usd=0.01), observers=[events.append]
    )
    result = await executor.execute("go")
    assert result.output == "done"
    assert result.usage.cost is None
    assert ["price" in event.text for event in events if isinstance(event, Warned)] == [True]


async def test_cost_limit_applies_to_models_with_a_price() -> None:
    """One reply without a price does not disable the limit for the others."""
    free = Agent("free", model=ScriptedProvider(ModelReply(text="go on", usage=Usage(requests=1, cost=None))), then="b")
    paid = ModelReply(calls=(call("look", n=1),), usage=Usage(requests=1, input_tokens=5, cost=0.02))
    expensive = Agent("b", model=ScriptedProvider(lambda _: paid), tools=[look])
    result = await CrewExecutor(Crew("c", agents=[free, expensive]), limits=Limits(cost_usd=0.05)).execute("go")
    assert result.stop_reason == "limit"
    assert result.metrics.by_agent["b"].requests == 3


def test_limit_of_seconds_ends_a_hanging_run() -> None:
    """The time of tools and models counts; open calls get results."""

    async def hang() -> str:
        """Hang."""
        await asyncio.Event().wait()
        return ""

    executor = executor_for(RecordingProvider(call("hang"), "never"), hang, limits=Limits(seconds=5))
    result = run_in_virtual_time(executor.execute("go"))
    assert result.stop_reason == "limit"
    assert "limit of seconds" in result.history[-1].results[0].text  # type: ignore[union-attr]
    assert validate(result.history) == []


@pytest.mark.parametrize(
    ("given", "problems"),
    [
        ({"rounds": -1}, 1),
        ({"rounds": "many", "handoffs": 1.5, "tokens": True}, 3),
        ({"tool_calls_per_turn": 0}, 1),
        ({"tool_calls_per_turn": None}, 1),
        ({"cost_usd": -0.1, "seconds": "long"}, 2),
        ({"seconds": float("nan"), "cost_usd": True}, 2),
    ],
)
def test_invalid_limits_are_refused_when_built(given: dict[str, Any], problems: int) -> None:
    """The error lists every problem."""
    with pytest.raises(DefinitionError) as caught:
        Limits(**given)

    assert len(caught.value.problems) == problems
