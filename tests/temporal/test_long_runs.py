"""Long runs on Temporal: small histories, messages by reference, and executions that continue each other."""

import os
from typing import Any

import pytest
from temporalio.client import Client

from crew import Agent, CrewExecutor, Limits, ScriptedProvider, tool
from crew.interfaces import ModelReply, ModelRequest
from crew.messages import AssistantMessage, Message, ToolCall, UserMessage
from crew.temporal import CrewWorker, TemporalExecutor

pytestmark = pytest.mark.servers


@tool(effect="read", max_output_chars=30_000)
async def read(n: int) -> str:
    """Read a text of 20 kB."""
    return f"{n} " + "word " * 4_000


def reader(rounds: int, reply: int = 2_000) -> Agent:
    """An agent that reads so many times, with replies of so many bytes."""

    def line(request: ModelRequest) -> Any:
        if request.turn >= rounds:
            return "Finished."

        arguments = f'{{"n": {request.turn}}}'
        made = ToolCall(id=f"c{request.turn}", name="read", arguments=arguments)
        return ModelReply(text="x" * reply, calls=(made,), finish_reason="calls")

    return Agent("reader", model=ScriptedProvider(line), tools=[read])


async def histories(client: Client, run_id: str) -> list[tuple[int, int]]:
    """Events and bytes of each execution of a run's workflow, oldest first."""
    found: list[tuple[int, int]] = []

    async for execution in client.list_workflows(f'WorkflowId = "crew:{run_id}"'):
        history = await client.get_workflow_handle(f"crew:{run_id}", run_id=execution.run_id).fetch_history()
        found.append((len(history.events), sum(event.ByteSize() for event in history.events)))

    return found[::-1]


async def run_on_temporal(
    client: Client, store_file: str, crew: Agent, run_id: str, history: list[Message] | None = None, **options: Any
) -> Any:
    limits = Limits(rounds=5_000)

    async with CrewWorker(client, crew, store=store_file, limits=limits):
        executor = TemporalExecutor(client, crew, store=store_file, limits=limits, **options)
        result = await executor.execute("Read everything.", history=history, run_id=run_id)
        await executor.aclose()
        return result


async def test_a_round_needs_less_than_20_kb_of_history(client: Client, store_file: str, record_property: Any) -> None:
    """With replies of 2 kB and results of 20 kB: messages are in the store, and the history refers to them."""
    rounds = 20
    result = await run_on_temporal(client, store_file, reader(rounds), "sizes")
    [(events, size)] = await histories(client, "sizes")
    assert len(result.transcript) == 2 + 2 * rounds
    assert size / rounds < 20_000
    record_property("statistics", f"{events / rounds:.1f} events and {size / rounds:,.0f} bytes a round")


async def test_a_large_conversation_stays_out_of_the_history(
    client: Client, store_file: str, record_property: Any
) -> None:
    """100 tool steps on a conversation of 840 kB take less than 2 MB of workflow history."""
    history: list[Message] = []

    for n in range(20):
        history += [UserMessage(f"Question {n}. " + "a" * 21_000), AssistantMessage(f"Answer {n}. " + "b" * 21_000)]

    result = await run_on_temporal(client, store_file, reader(100), "large", history)
    sizes = await histories(client, "large")
    assert result.output == "Finished."
    assert sum(len(m.text) for m in history if isinstance(m, UserMessage | AssistantMessage)) > 840_000
    assert sum(size for _, size in sizes) < 2_000_000
    record_property("statistics", f"{sum(size for _, size in sizes):,} bytes of history")


async def check_long_run(client: Client, store_file: str, run_id: str, rounds: int, events: int) -> str:
    """Run so many rounds, with at most so many events in one execution; the figures."""
    crew = reader(rounds, reply=10)
    result = await run_on_temporal(client, store_file, crew, run_id, max_history_events=events)
    local = CrewExecutor(crew, limits=Limits(rounds=5_000))
    expected = await local.execute("Read everything.", run_id=run_id)
    await local.aclose()
    assert result.output == "Finished."
    assert [m.id for m in result.transcript] == [m.id for m in expected.transcript]
    assert [m.id for m in result.history] == [m.id for m in expected.history]
    assert result.usage == expected.usage
    sizes = await histories(client, run_id)
    assert len(sizes) >= 3, "the run continued as a new execution at least twice"
    assert all(count <= events + 30 for count, _ in sizes)
    total_events, total_bytes = sum(count for count, _ in sizes), sum(size for _, size in sizes)
    assert total_events / rounds < 20
    full = [size / count for count, size in sizes[:-1]]
    assert max(full) / min(full) < 1.4, "the history grows linearly: an event needs as many bytes late as early"
    return f"{rounds} rounds in {len(sizes)} executions, {total_events} events, {total_bytes:,} bytes of history"


async def test_long_runs_continue_as_new_executions(client: Client, store_file: str, record_property: Any) -> None:
    """The caller does not notice: messages, history and usage are those of one process."""
    record_property("statistics", await check_long_run(client, store_file, "long", 60, 250))


@pytest.mark.soak
async def test_a_thousand_rounds_in_one_run(client: Client, store_file: str, record_property: Any) -> None:
    """The history grows linearly, and the run continues at least twice."""
    rounds = int(os.environ.get("CREW_TEMPORAL_ROUNDS", "1000"))
    record_property("statistics", await check_long_run(client, store_file, "thousand", rounds, 4_000))
