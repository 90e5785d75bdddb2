"""Answers and cancellations on Temporal need a worker; without one their callers learn why nothing happens."""

import asyncio
from typing import Any

import pytest
from temporalio.client import Client

from crew import Agent, ScriptedProvider, call, tool
from crew.errors import DefinitionError, RunActive
from crew.runs.events import Warned
from crew.temporal import CrewWorker, TemporalExecutor
from crew.temporal.encoding import plan_fingerprint

pytestmark = [pytest.mark.servers, pytest.mark.usefixtures("early_warnings")]


@tool(approval=True)
def refund(amount: int) -> str:
    """Pay money back."""
    return f"paid {amount}"


def clerk() -> Agent:
    return Agent("clerk", model=ScriptedProvider(call("refund", amount=80), "It is paid."), tools=[refund])


async def test_a_cancellation_that_no_worker_performs_is_reported(client: Client, store_file: str) -> None:
    """The caller is not kept waiting. The cancellation is requested: the next worker performs it."""
    async with TemporalExecutor(client, clerk(), store=store_file, task_queue="cancel") as executor:
        async with CrewWorker(client, clerk(), store=store_file, task_queue="cancel"):
            await executor.execute("Refund me.", run_id="cancel")

        async with asyncio.timeout(30):
            with pytest.raises(RunActive, match=r"its cancellation is requested.*crew worker"):
                await executor.cancel("cancel")

        async with CrewWorker(client, clerk(), store=store_file, task_queue="cancel"), asyncio.timeout(30):
            while (await executor.store.run("cancel")).info.status != "cancelled":  # type: ignore[attr-defined]
                await asyncio.sleep(0.1)


async def test_a_run_whose_workflow_was_terminated_is_cancelled_without_a_worker(
    client: Client, store_file: str
) -> None:
    """The way to end a run whose workers are gone: terminate its workflow, then cancel it in the store."""
    async with TemporalExecutor(client, clerk(), store=store_file, task_queue="terminate") as executor:
        async with CrewWorker(client, clerk(), store=store_file, task_queue="terminate"):
            await executor.execute("Refund me.", run_id="terminate")

        await client.get_workflow_handle("crew:terminate").terminate()
        await asyncio.wait_for(executor.cancel("terminate"), 30)
        assert (await executor.store.run("terminate")).info.status == "cancelled"  # type: ignore[attr-defined]


async def test_an_answer_that_no_worker_takes_is_reported(client: Client, store_file: str) -> None:
    """The answer waits, and is accepted by the next worker."""
    warnings: asyncio.Queue[str] = asyncio.Queue()

    def observe(event: object) -> None:
        if isinstance(event, Warned):
            warnings.put_nowait(event.text)

    executor = TemporalExecutor(client, clerk(), store=store_file, task_queue="answer", observers=[observe])

    async with CrewWorker(client, clerk(), store=store_file, task_queue="answer"):
        paused = await executor.execute("Refund me.", run_id="answer")

    resumed = asyncio.create_task(executor.resume("answer", {paused.pauses[0].id: True}))
    assert "No worker" in await asyncio.wait_for(warnings.get(), 30)

    async with CrewWorker(client, clerk(), store=store_file, task_queue="answer"):
        assert (await asyncio.wait_for(resumed, 60)).output == "It is paid."

    await executor.aclose()


async def test_a_worker_with_other_settings_of_the_history_refuses_a_run(client: Client, store_file: str) -> None:
    """A run is never pruned by other rules than those with which it was started; defaults that are spelled out count as
    defaults."""
    options: list[dict[str, Any]] = [
        {},
        {"max_messages_per_request": 8},
        {"prune_to": 10},
        {"history": "head_tail"},
        {"max_input_tokens": 9000},
        {"sanitize_output": True},
    ]
    made = [TemporalExecutor(client, clerk(), store=store_file, **chosen) for chosen in options]
    assert len({plan_fingerprint(executor.plan) for executor in made}) == len(options)
    same = TemporalExecutor(client, clerk(), store=store_file, max_messages_per_request=50, history="rolling")
    assert plan_fingerprint(same.plan) == plan_fingerprint(made[0].plan)
    warnings: asyncio.Queue[str] = asyncio.Queue()
    executor = TemporalExecutor(
        client,
        clerk(),
        store=store_file,
        task_queue="settings",
        task_seconds=1,
        max_messages_per_request=8,
        observers=[lambda event: warnings.put_nowait(event.text) if isinstance(event, Warned) else None],
    )

    async with CrewWorker(client, clerk(), store=store_file, task_queue="settings"):
        started = asyncio.create_task(executor.execute("Refund me.", run_id="settings"))

        async with asyncio.timeout(60):  # a worker that starts slowly is reported first
            while "other settings of its history" not in await warnings.get():
                pass

    async with CrewWorker(client, clerk(), store=store_file, task_queue="settings", max_messages_per_request=8):
        assert (await asyncio.wait_for(started, 60)).stop_reason == "paused"

    for one in (*made, same, executor):
        await one.aclose()


async def test_an_sqlite_store_in_memory_is_refused(client: Client) -> None:
    """A worker would wait for ever for records that only the client has."""
    for kind in (CrewWorker, TemporalExecutor):
        with pytest.raises(DefinitionError, match="':memory:' can't be shared"):
            kind(client, clerk(), store=":memory:")
