"""Runs and conversations belong to the principal that began them; no read shows those of another one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.requests import HTTPConnection

from crew import Agent, CrewExecutor, ScriptedProvider, call, tool
from crew.agents import NeedsApproval, guardrail
from crew.errors import InvalidInput
from crew.runs.interfaces import PRINCIPAL_KEY
from crew.server import Principal, Token
from crew.store import MemoryStore
from crew.tools import ConsentRequired, Context, Tool
from tests.support.http_service import SECRET, bearer, client_of, parse_events, secret_of, token

ANNA, BEN, ROOT = bearer(secret_of("anna")), bearer(secret_of("ben")), bearer()
TOKENS = (token("anna"), token("ben"), Token.of(SECRET))


@tool(approval=True)
def refund(amount: int) -> str:
    """Pay money back."""
    return f"Paid {amount}."


def clerk() -> CrewExecutor:
    script = ScriptedProvider(call("refund", amount=80), lambda request: "Paid.")
    return CrewExecutor(Agent("clerk", model=script, tools=[refund]))


async def start(client: httpx2.AsyncClient, headers: dict[str, str], **body: Any) -> str:
    answer = await client.post("/runs?stream=1", json={"input": "Refund me.", **body}, headers=headers)
    assert answer.is_success, answer.text
    return str(parse_events(answer.text)[0]["data"]["run_id"])


async def test_no_route_shows_or_changes_the_run_of_another_principal() -> None:
    """Every route of the run answers 404, as for an unknown run; lists leave it out; its id can't be reused."""
    async with client_of(clerk(), headers={}, tokens=TOKENS) as client:
        run_id = await start(client, ANNA, conversation="annas")
        unknown = "unknown"

        for method, path in [
            ("GET", "/runs/{}"),
            ("DELETE", "/runs/{}"),
            ("GET", "/runs/{}/events"),
            ("GET", "/runs/{}/transcript"),
            ("POST", "/runs/{}/answers"),
        ]:
            body = {"json": {}} if method == "POST" else {}
            answer = await client.request(method, path.format(run_id), headers=BEN, **body)
            other = await client.request(method, path.format(unknown), headers=BEN, **body)
            assert (answer.status_code, answer.text) == (404, other.text.replace(unknown, run_id))

        assert (await client.get("/conversations/annas", headers=BEN)).status_code == 404
        assert (await client.get("/runs", headers=BEN)).json()["runs"] == []
        assert (await client.get("/conversations", headers=BEN)).json()["conversations"] == []
        taken = await client.post("/runs", json={"input": "Refund me."}, headers=BEN | {"Idempotency-Key": run_id})
        assert (taken.status_code, taken.json()["error"]["type"]) == (409, "run_exists")
        joined = await client.post("/runs", json={"input": "And?", "conversation": "annas"}, headers=BEN)
        assert (joined.status_code, joined.json()["error"]["type"]) == (409, "conversation_exists")
        message = {"id": "1", "role": "user", "content": "yes"}

        for path, body, headers in [
            ("/v1/chat/completions", {"model": "clerk", "messages": [message]}, {"X-Crew-Conversation": "annas"}),
            ("/ag-ui", {"threadId": "annas", "runId": "bens", "messages": [message]}, {}),
        ]:
            chatted = await client.post(path, json=body, headers=BEN | headers)
            assert (chatted.status_code, chatted.json()["error"]["type"]) == (409, "conversation_exists")
            assert run_id not in chatted.text

        pause = (await client.get(f"/runs/{run_id}", headers=ANNA)).json()["pauses"][0]["id"]
        resume = {"threadId": "annas", "runId": "bens", "resume": [{"interruptId": pause, "status": "resolved"}]}
        answered = await client.post("/ag-ui", json=resume, headers=BEN)
        resume["resume"][0]["interruptId"] = pause.replace(run_id, unknown)  # type: ignore[index]
        other = await client.post("/ag-ui", json=resume, headers=BEN)
        assert (answered.status_code, answered.text) == (404, other.text.replace(unknown, run_id))
        assert (await client.get(f"/runs/{run_id}", headers=ANNA)).json()["status"] == "paused"
        assert [run["run_id"] for run in (await client.get("/runs", headers=ROOT)).json()["runs"]] == [run_id]


async def test_a_page_of_runs_is_full_of_the_principals_own() -> None:
    """Runs of others do not make a page shorter."""
    executor = CrewExecutor(Agent("greeter", model=ScriptedProvider(lambda request: "Hello.")))

    async with client_of(executor, headers={}, tokens=TOKENS) as client:
        for number in range(6):
            await start(client, BEN if number % 2 else ANNA)

        first = (await client.get("/runs?limit=2", headers=ANNA)).json()
        assert len(first["runs"]) == 2
        second = (await client.get(f"/runs?limit=2&cursor={first['cursor']}", headers=ANNA)).json()
        assert (len(second["runs"]), second["cursor"]) == (1, None)


async def test_a_conversation_belongs_to_one_principal_in_the_engine() -> None:
    """Two principals that begin the same conversation at the same time can't both have it."""
    executor = CrewExecutor(Agent("greeter", model=ScriptedProvider(lambda request: "Hello.")))
    await executor.execute("Hi", conversation="shared", metadata={PRINCIPAL_KEY: "anna"})

    with pytest.raises(InvalidInput, match="belongs to another principal"):
        await executor.execute("Hi", conversation="shared", metadata={PRINCIPAL_KEY: "ben"})

    with pytest.raises(InvalidInput, match="belongs to another principal"):
        await executor.execute("Hi", conversation="shared")


async def test_a_principal_that_sees_all_continues_a_conversation_for_its_owner() -> None:
    """The new run belongs to the principal of the conversation."""
    executor = CrewExecutor(Agent("greeter", model=ScriptedProvider(lambda request: "Hello.")))

    async with client_of(executor, headers={}, tokens=TOKENS) as client:
        await start(client, ANNA, conversation="annas")
        await start(client, ROOT, conversation="annas")
        assert len((await client.get("/conversations/annas", headers=ANNA)).json()["runs"]) == 2


async def test_callers_can_not_set_the_principal() -> None:
    """Reserved keys of metadata are refused, and never shown; headers set metadata by a hook."""

    def region(headers: Any) -> dict[str, str]:
        return {"region": headers.get("x-region", "")}

    async with client_of(clerk(), headers={}, tokens=TOKENS, metadata=region) as client:
        forged = await client.post("/runs", json={"input": "Hi", "metadata": {PRINCIPAL_KEY: "ben"}}, headers=ANNA)
        assert (forged.status_code, forged.json()["error"]["violations"][0]["rule"]) == (422, "metadata")
        run_id = await start(client, ANNA | {"X-Region": "eu"}, metadata={"customer": 1})
        found = (await client.get(f"/runs/{run_id}", headers=ANNA)).json()
        assert found["metadata"] == {"customer": 1, "region": "eu"}


async def test_an_approval_names_the_principal_that_gave_it() -> None:
    """A client can't name another person."""
    executor = clerk()

    async with client_of(executor, headers={}, tokens=TOKENS) as client:
        run_id = await start(client, ANNA)
        [pause] = (await client.get(f"/runs/{run_id}", headers=ANNA)).json()["pauses"]
        answer = {"approve": {"arguments": {"amount": 50}, "by": "the boss"}}
        stream = await client.post(
            f"/runs/{run_id}/answers?stream=1", json={"answers": {pause["id"]: answer}}, headers=ANNA
        )
        resumed = next(one["data"] for one in parse_events(stream.text) if one["event"] == "resumed")
        assert resumed["answers"] == {pause["id"]: {"approve": {"arguments": {"amount": 50}, "by": "anna"}}}


async def test_a_token_may_have_a_number_of_runs_under_way() -> None:
    """Beyond it, 429 with Retry-After; other tokens are not affected; a run that ends makes place."""
    gate = asyncio.Event()

    @tool
    async def wait() -> str:
        """Wait."""
        await gate.wait()
        return "done"

    script = ScriptedProvider(call("wait"), "Done.")
    executor = CrewExecutor(Agent("waiter", model=script, tools=[wait]))

    async with client_of(executor, headers={}, tokens=TOKENS, max_runs_per_token=2) as client:
        runs = [(await client.post("/runs", json={"input": "Hi"}, headers=ANNA)).json()["run_id"] for _ in range(2)]
        third = await client.post("/runs", json={"input": "Hi"}, headers=ANNA)
        assert (third.status_code, third.headers["retry-after"]) == (429, "1")
        assert (await client.post("/runs", json={"input": "Hi"}, headers=BEN)).status_code == 201
        gate.set()
        await asyncio.gather(*(client.get(f"/runs/{run_id}/events", headers=ANNA) for run_id in runs))
        assert (await client.post("/runs?stream=1", json={"input": "Hi"}, headers=ANNA)).status_code == 201


def waiting_crew(gate: asyncio.Event) -> Agent:
    @tool
    async def wait() -> str:
        """Wait."""
        await gate.wait()
        return "done"

    return Agent("waiter", model=ScriptedProvider(call("wait"), "Done."), tools=[wait])


async def test_requests_at_the_same_time_do_not_exceed_the_number_of_runs(tmp_path: Path) -> None:
    """The number is checked when a run starts, not before; a request that repeats one gets its run."""
    gate = asyncio.Event()
    executor = CrewExecutor(waiting_crew(gate), store=str(tmp_path / "runs.db"))

    async with client_of(executor, max_runs_per_token=2) as client:

        async def post(key: int) -> int:
            answer = await client.post("/runs", json={"input": "Hi"}, headers={"Idempotency-Key": f"k{key}"})
            return answer.status_code

        answers = await asyncio.gather(*map(post, range(10)))
        assert sorted(answers) == [201] * 2 + [429] * 8
        assert await post(answers.index(201)) == 200
        gate.set()

    await executor.aclose()


async def test_principals_of_a_function_have_their_own_numbers_of_runs() -> None:
    """A `Principal` without the name of a token counts by its own name: one can't use up the runs of another."""
    gate = asyncio.Event()

    def authenticate(connection: HTTPConnection) -> Principal:
        return Principal(name=connection.headers["x-user"])

    executor = CrewExecutor(waiting_crew(gate))

    async with client_of(executor, headers={}, tokens=(), authenticate=authenticate, max_runs_per_token=1) as client:
        statuses = [
            (await client.post("/runs", json={"input": "Hi"}, headers={"X-User": name})).status_code
            for name in ("anna", "anna", "ben")
        ]
        assert statuses == [201, 429, 201]
        gate.set()

    await executor.aclose()


async def test_a_consent_names_the_principal_that_gave_it() -> None:
    """As an approval does."""

    class Guarded:
        name = "guarded"

        async def list_tools(self, context: Context[Any]) -> Sequence[Tool]:
            if "guarded:1" not in context.consents:
                raise ConsentRequired(key="guarded:1", question="May the crew use guarded?")

            return []

    executor = CrewExecutor(Agent("a", model=ScriptedProvider("Done."), tools=[Guarded()]))

    async with client_of(executor, headers={}, tokens=TOKENS) as client:
        run_id = await start(client, ANNA)
        [pause] = (await client.get(f"/runs/{run_id}", headers=ANNA)).json()["pauses"]
        answers = {"answers": {pause["id"]: {"approve": {"by": "the boss"}}}}
        stream = await client.post(f"/runs/{run_id}/answers?stream=1", json=answers, headers=ANNA)
        resumed = next(one["data"] for one in parse_events(stream.text) if one["event"] == "resumed")
        assert resumed["answers"] == {pause["id"]: {"approve": {"by": "anna"}}}


async def test_a_reply_that_waits_for_approval_is_shown_to_those_who_may_give_it() -> None:
    """In the API and in the inspector; the events and other tokens get the question alone."""

    @guardrail("output")
    def ask(context: Context[Any], text: str) -> NeedsApproval:
        return NeedsApproval("Publish it?")

    executor = CrewExecutor(Agent("a", model=ScriptedProvider("The draft."), guardrails=[ask]))
    tokens = (token("anna", "run", "read"), Token.of(SECRET))

    async with client_of(executor, headers={}, tokens=tokens) as client:
        run_id = await start(client, ANNA, conversation="annas")

        for headers, checked in [(ANNA, ""), (ROOT, "The draft.")]:
            inspected = (await client.get(f"/inspect/runs/{run_id}", headers=headers)).json()["run"]
            answers = [await client.get(path, headers=headers) for path in (f"/runs/{run_id}", "/conversations/annas")]

            for pauses in (inspected["pauses"], *(answer.json()["pauses"] for answer in answers)):
                assert [(pause["text"], pause["checked"]) for pause in pauses] == [("Publish it?", checked)]

        events = await client.get(f"/runs/{run_id}/events?follow=false", headers=ROOT)
        assert "Publish it?" in events.text
        assert "The draft." not in events.text


async def test_a_run_that_left_the_memory_is_not_started_again() -> None:
    """A request with the key of a run that is under way, but no longer stored, is answered at once."""
    gate = asyncio.Event()
    executor = CrewExecutor(waiting_crew(gate), store=MemoryStore(max_unfinished=1))

    async with client_of(executor) as client, asyncio.timeout(10):
        first, second = [{"Idempotency-Key": key} for key in ("first", "second")]

        await client.post("/runs", json={"input": "Hi"}, headers=first)

        while (await client.get("/runs/first")).json()["messages"] < 2:  # its tool waits: no commit follows
            await asyncio.sleep(0)

        await asyncio.sleep(0.05)
        await client.post("/runs", json={"input": "Hi"}, headers=second)
        again = await client.post("/runs", json={"input": "Hi"}, headers=first)
        assert (again.status_code, again.json()["error"]["type"]) == (409, "run_active")
        gate.set()

    await executor.aclose()
