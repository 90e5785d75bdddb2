"""The public interface: conversations, run ids, sync use, structured output, empty replies, failures."""

from __future__ import annotations

import asyncio
import re
import threading
from typing import Any

import pytest
from pydantic import BaseModel

from crew import Agent, CrewExecutor, InputValidator, RunError, call, tool
from crew.errors import (
    ContextOverflow,
    DefinitionError,
    InvalidInput,
    OutputInvalid,
    ProviderError,
    RunExists,
    ScriptExhausted,
)
from crew.interfaces import ModelReply
from crew.message_rules import validate
from crew.messages import ToolCall, UserMessage
from crew.runs.events import ReplyEmpty
from crew.store import MemoryStore
from tests.support.messages import total_size
from tests.support.providers import RecordingProvider
from tests.support.runs import collect, executor_for, solo
from tests.support.stores import JsonStore
from tests.support.tools import look


def echo(request: Any) -> str:
    return f"heard {request.messages[-1].text}"


# ------------------------------------------------------------------------------------------ conversations


async def test_conversation_continues_from_a_result() -> None:
    """History, transcript and conversation id are kept; the run is new."""
    provider = RecordingProvider(echo)
    executor = executor_for(provider)
    first = await executor.execute("one")
    second = await executor.execute("two", history=first)
    assert second.conversation_id == first.conversation_id == first.run_id
    assert second.run_id != first.run_id
    assert [m.text for m in provider.shown[1]] == ["one", "heard one", "two"]  # type: ignore[union-attr]
    assert second.history[:2] == first.history
    assert [r.turn for r in provider.requests] == [0, 1]
    assert len({m.id for m in second.transcript}) == 4


async def test_conversation_continues_from_a_list() -> None:
    """The history of a result passes the validator unchanged and starts the next request."""
    provider = RecordingProvider([call("look", n=1), call("look", n=2)], "found", echo)
    executor = executor_for(provider, look)
    first = await executor.execute("one")
    strict = executor_for(RecordingProvider(echo), look, validator=InputValidator(tool_pairs="refuse"))
    second = await strict.execute("two", history=list(first.history))
    assert second.history[: len(first.history)] == first.history
    assert second.conversation_id != first.conversation_id


async def test_long_conversation_stays_bounded() -> None:
    """A hundred turns at a limit of 8: bounded, valid, with a complete transcript."""
    provider = RecordingProvider(echo)
    executor = executor_for(provider, max_messages_per_request=8)
    result = await executor.execute("turn 0")

    for n in range(1, 100):
        result = await executor.execute(f"turn {n}", history=result)
        assert result.output == f"heard turn {n}"

    assert max(map(total_size, provider.shown)) <= 8
    assert all(validate(shown) == [] for shown in provider.shown)
    assert len(result.transcript) == 200
    assert [m.text for m in result.transcript[:2]] == ["turn 0", "heard turn 0"]  # type: ignore[union-attr]


async def test_same_message_can_be_the_goal_twice() -> None:
    """A goal whose id is in use gets a new id."""
    provider = RecordingProvider(echo)
    executor = executor_for(provider)
    goal = UserMessage("again", id="mine")
    first = await executor.execute(goal)
    second = await executor.execute(goal, history=first)
    third = await executor.execute(goal, history=[goal, goal])
    assert len({m.id for m in second.transcript}) == 4
    assert len({m.id for m in third.transcript}) == 4


# ------------------------------------------------------------------------------------------ run ids


@pytest.mark.parametrize("store", [MemoryStore, JsonStore])
async def test_run_id_can_be_used_once(store: Any) -> None:
    """Also after the run has finished, and while it is active."""
    executor = executor_for(RecordingProvider(echo), store=store())
    await executor.execute("one", run_id="r")

    with pytest.raises(RunExists) as caught:
        await executor.execute("two", run_id="r")

    assert caught.value.run_id == "r"
    assert caught.value.__cause__ is None
    gate = asyncio.Event()

    async def wait() -> str:
        """Wait."""
        await gate.wait()
        return ""

    executor = executor_for(RecordingProvider(call("wait"), "done"), wait, store=store())
    running = asyncio.ensure_future(executor.execute("one", run_id="r"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    with pytest.raises(RunExists):
        await executor.execute("two", run_id="r")

    gate.set()
    assert (await running).output == "done"


async def test_memory_store_drops_finished_runs() -> None:
    """It keeps only runs that can be resumed."""
    store = MemoryStore()
    executor = executor_for(RecordingProvider(echo), store=store)

    for _ in range(10):
        await executor.execute("go")

    assert len(store) == 0


# ------------------------------------------------------------------------------------------ sync


def test_execute_sync_works_without_a_loop() -> None:
    """A script needs no event loop, and none is left."""
    executor = executor_for(RecordingProvider(echo))
    assert executor.execute_sync("one").output == "heard one"
    assert executor.execute_sync("two").output == "heard two"


async def test_execute_sync_works_inside_a_running_loop() -> None:
    """As in a notebook: the runs share a daemon thread, which ends when it is idle."""
    before = set(threading.enumerate())
    executor = executor_for(RecordingProvider(echo))
    assert executor.execute_sync("one").output == "heard one"

    with pytest.raises(InvalidInput):
        executor.execute_sync("")

    with pytest.raises(RunError, match="broken"):
        executor_for(RecordingProvider(ValueError("broken"))).execute_sync("go")

    started = [thread for thread in threading.enumerate() if thread not in before]
    assert len(started) <= 1
    assert all(thread.daemon for thread in started)


# ------------------------------------------------------------------------------------------ structured output


class Order(BaseModel):
    """The output type."""

    number: int
    city: str


def ordering(*lines: Any) -> tuple[CrewExecutor, RecordingProvider]:
    provider = RecordingProvider(*lines)
    return CrewExecutor(solo(provider, output=Order)), provider


@pytest.mark.parametrize(
    "fence", ["```json\n{}\n```", "```\n{}```", " \n```JSON \n{}\n ```\n"], ids=["json", "plain", "spaced"]
)
async def test_fenced_json_matches_the_output_type_without_a_correction(fence: str) -> None:
    """Models often wrap JSON in a code block: it is read as it is meant, with one request."""
    executor, provider = ordering(fence.replace("{}", '{"number": 17, "city": "Bonn"}'))
    result = await executor.execute("go")
    assert (result.output, len(provider.requests)) == (Order(number=17, city="Bonn"), 1)


async def test_structured_output_is_a_value_of_its_type() -> None:
    """The request holds the schema, and the output is a value of the type."""
    executor, provider = ordering('{"number": 17, "city": "Bern"}')
    assert (await executor.execute("go")).output == Order(number=17, city="Bern")
    spec = provider.requests[0].output
    assert spec is not None
    assert set(spec.schema["properties"]) == {"number", "city"}


async def test_invalid_answer_is_repaired_once() -> None:
    """The model gets the validation errors; the second answer counts."""
    executor, provider = ordering('{"number": "x"}', '{"number": 17, "city": "Bern"}')
    result = await executor.execute("go")
    assert result.output == Order(number=17, city="Bern")
    feedback = provider.shown[1][-1]
    assert isinstance(feedback, UserMessage)
    assert feedback.origin == "output"
    assert "city" in feedback.text
    assert len(result.transcript) == 4


async def test_answer_that_stays_invalid_is_an_error() -> None:
    """After one repair request the run fails, with its result so far."""
    executor, provider = ordering("no", "still no", "never asked")

    with pytest.raises(OutputInvalid) as caught:
        await executor.execute("go")

    assert len(provider.requests) == 2
    assert caught.value.result.stop_reason == "failed"


# ------------------------------------------------------------------------------------------ empty replies


@pytest.mark.parametrize("nothing", ["", "  \n", ModelReply()])
async def test_empty_reply_is_requested_again(nothing: Any) -> None:
    """It never enters the history; the next reply counts."""
    provider = RecordingProvider(nothing, "something")
    executor = executor_for(provider)
    events, result = await collect(executor.execute_stream("go"))
    assert result.output == "something"
    assert provider.shown[0] == provider.shown[1]
    assert len(result.transcript) == 2
    assert [e.outcome for e in events if isinstance(e, ReplyEmpty)] == ["asked_again"]


async def test_two_empty_replies_are_an_empty_answer() -> None:
    """The run completes and emits an event; a later empty reply is requested again too."""
    provider = RecordingProvider("", call("look", n=1), "", "")
    executor = executor_for(provider, look)
    events, result = await collect(executor.execute_stream("go"))
    assert (result.output, result.stop_reason) == ("", "completed")
    outcomes = [e.outcome for e in events if isinstance(e, ReplyEmpty)]
    assert outcomes == ["asked_again", "asked_again", "final"]
    assert validate(result.history) == []


# ------------------------------------------------------------------------------------------ failures


async def test_failed_run_can_be_resumed() -> None:
    """Committed work stays; the request is sent again."""
    broken = [True]

    def flaky(request: Any) -> str:
        if broken.pop() if broken else False:
            raise ValueError("not now")

        return "now"

    provider = RecordingProvider(call("look", n=1), flaky)
    executor = executor_for(provider, look)

    with pytest.raises(RunError, match="not now") as caught:
        await executor.execute("go", run_id="r")

    assert isinstance(caught.value.__cause__, ProviderError)
    assert [m.role for m in caught.value.result.history] == ["user", "assistant", "tool"]
    assert (await executor.resume("r")).output == "now"


async def test_exhausted_script_error_names_the_fix() -> None:
    """The error of ScriptedProvider explains how to continue."""
    with pytest.raises(RunError, match="has 1 line, but this is request 2: add a line") as caught:
        await executor_for(RecordingProvider(call("look", n=1)), look).execute("go")

    assert isinstance(caught.value.__cause__, ScriptExhausted)


async def test_overflow_in_the_middle_of_a_run_is_itemized() -> None:
    """With any policy the error lists the mandatory parts."""
    rules = [{"role": "system", "content": f"rule {n}"} for n in range(3)]
    provider = RecordingProvider(call("look", n=1), "done")
    executor = executor_for(provider, look, max_messages_per_request=6)
    assert (await executor.execute("go", history=rules)).output == "done"

    with pytest.raises(ContextOverflow) as caught:
        await executor.execute("go", history=[*rules, {"role": "system", "content": "rule 3"}])

    assert sum(size for _, size in caught.value.items) == 7


def test_unknown_model_is_a_definition_error() -> None:
    """The error shows how to write a model, or which part of its name is wrong."""
    for model, words in (
        ("gpt", "a model is provider:name"),
        ("opnai:gpt-5", "unknown provider 'opnai'. Did you mean 'openai'?"),
        ("openai:", "the model name after 'openai:' is missing"),
    ):
        with pytest.raises(DefinitionError, match=re.escape(words)):
            executor_for(model)


async def test_unknown_agent_error_suggests_a_similar_name() -> None:
    """`agent=` selects the first agent; a wrong name is refused before the run."""
    executor = executor_for(RecordingProvider(echo))
    assert (await executor.execute("go", agent="solo")).agent == "solo"

    with pytest.raises(InvalidInput, match="solo"):
        await executor.execute("go", agent="sole")


async def test_lone_surrogates_of_a_model_are_replaced() -> None:
    """Every reply can be stored and sent."""
    odd = ToolCall(id="a\ud800", name="lo\udfffk", arguments='{"n": "\ud800"}')
    provider = RecordingProvider(ModelReply(text="a\ud800", calls=(odd,)), "done \udfff")
    result = await executor_for(provider, look, store=JsonStore()).execute("go")
    assert result.output == "done \ufffd"
    assert all("\ud800" not in str(m) for m in result.transcript)


async def test_plain_functions_are_tools() -> None:
    """An agent accepts plain functions."""

    def shout(text: str) -> str:
        """Shout."""
        return text.upper()

    agent = Agent("solo", model=RecordingProvider(call("shout", text="hi"), "done"), tools=[shout])
    result = await CrewExecutor(agent).execute("go")
    assert result.transcript[2].results[0].text == "HI"  # type: ignore[union-attr]
    assert tool(shout)("direct") == "DIRECT"
