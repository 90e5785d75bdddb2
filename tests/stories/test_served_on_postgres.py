"""Two services share their runs in PostgreSQL: a client may use either of them for any run."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from crew import Agent, CrewExecutor, ScriptedProvider, call, tool
from crew.client import CrewClient
from crew.runs.events import TextDelta
from crew.store import PostgresStore
from tests.support.http_service import client_of
from tests.support.postgres import Postgres, PostgresUnavailable, running_postgres
from tests.support.server_process import CREW, SECRET, server_process
from tests.support.servers import server_missing

pytestmark = pytest.mark.servers


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    """A running server on a free port."""
    try:
        with running_postgres() as running:
            yield running
    except PostgresUnavailable as reason:
        server_missing("postgres", str(reason))


async def test_a_run_is_followed_cancelled_and_taken_over_at_another_process(
    postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its events arrive at both, its cancellation reaches the owner, and the other one resumes it after a kill."""
    options, target = ("--store", postgres.url()), f"{CREW}:gated"
    gate = tmp_path / "gate"  # the tool of each run waits for it
    monkeypatch.setenv("CREW_TEST_GATE", str(gate))

    async with (
        server_process(*options, target=target) as one,
        server_process(*options, target=target) as two,
        CrewClient(one.url, SECRET) as first,
        CrewClient(two.url, SECRET) as second,
    ):
        read = asyncio.create_task(kinds(first.execute_stream("Work.", run_id="followed")))
        await started(second, "followed")
        # The same key at the other process: the run exists, and its log is streamed from there.
        arrived: list[str] = []
        followed = asyncio.create_task(kinds(second.execute_stream("Work.", run_id="followed"), arrived))
        await until(lambda: "asked" in arrived)
        assert not read.done()
        gate.touch()
        assert await followed == await read
        gate.unlink()

        other = asyncio.create_task(first.execute("Work.", run_id="cancelled"))
        await started(second, "cancelled")
        assert (await second.cancel("cancelled")).status == "cancelled"
        assert (await other).status == "cancelled"

        left = asyncio.create_task(first.execute("Work.", run_id="taken"))
        await started(second, "taken")
        await one.stop(signal.SIGKILL)
        left.cancel()
        await asyncio.gather(left, return_exceptions=True)
        gate.touch()
        assert (await second.resume("taken")).status == "completed"


async def test_every_protocol_answers_a_pause(postgres: Postgres) -> None:
    """The events of a resumed run are read from after the commit of its pause."""
    store = PostgresStore(postgres.url())
    script = ScriptedProvider(call("refund", amount=80), "It is paid.")
    executor = CrewExecutor(Agent("clerk", model=script, tools=[refund]), store=store)

    async with client_of(executor) as client:
        chat = {"model": "clerk", "messages": [{"role": "user", "content": "Refund 80."}]}
        headers = {"X-Crew-Conversation": "ada"}
        await client.post("/v1/chat/completions", json=chat, headers=headers)
        chat["messages"] = [{"role": "user", "content": "yes"}]
        answered = await client.post("/v1/chat/completions", json=chat, headers=headers)
        assert answered.json()["choices"][0]["message"]["content"] == "It is paid."

        asked = {"threadId": "t", "runId": "r0", "messages": [{"id": "m", "role": "user", "content": "Refund 80."}]}
        paused = (await client.post("/ag-ui", json=asked)).text.strip().splitlines()[-1]
        [interrupt] = json.loads(paused.removeprefix("data: "))["outcome"]["interrupts"]
        entry = {"interruptId": interrupt["id"], "status": "resolved", "payload": True}
        resumed = await client.post("/ag-ui", json={"threadId": "t", "runId": "r1", "resume": [entry]})
        assert "Paid 80." in resumed.text
        assert '"RUN_FINISHED"' in resumed.text

    await executor.aclose()
    store.close()


@tool(approval=True)
def refund(amount: int) -> str:
    """Pay money back."""
    return f"Paid {amount}."


async def kinds(stream: object, arrived: list[str] | None = None) -> list[str]:
    """The kinds of the stored events; `arrived` has those that the stream has sent so far."""
    found = [] if arrived is None else arrived

    async for event in stream:  # type: ignore[attr-defined]
        if not isinstance(event, TextDelta):
            found.append(event.kind)

    return found


async def until(true: Callable[[], bool]) -> None:
    """Wait until a condition is true."""
    async with asyncio.timeout(60):
        while not true():
            await asyncio.sleep(0.02)


async def started(client: CrewClient, run_id: str) -> None:
    """Wait until a tool of the run was started."""
    async with asyncio.timeout(60):
        while run_id not in {run.run_id for run in (await client.runs(status="running"))[0] if run.messages >= 2}:
            await asyncio.sleep(0.05)
