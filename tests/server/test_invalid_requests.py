"""Requests that are refused: the message alone says which value is wrong, and what is accepted."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from crew import Agent, CrewExecutor, ScriptedProvider, call, tool
from crew.client import CrewClient
from crew.errors import DefinitionError, InvalidInput, UnknownRun
from crew.runs.interfaces import Cursor
from crew.server import ServerSettings, Token, app
from crew.store import MemoryStore, SQLiteStore
from tests.support.http_service import SECRET, client_of, parse_events, served


@tool(approval=True)
def refund(amount: int) -> str:
    """Pay money back."""
    return f"Paid {amount}."


def clerk(store: MemoryStore | None = None) -> CrewExecutor:
    script = ScriptedProvider(call("refund", amount=80), "Paid.")
    return CrewExecutor(Agent("clerk", model=script, tools=[refund]), store=store or MemoryStore())


@tool
async def wait() -> str:
    """Wait."""
    await asyncio.Event().wait()
    return "Never."


def _waiting_clerk(store: MemoryStore | SQLiteStore) -> CrewExecutor:
    """Its tool never returns."""
    return CrewExecutor(Agent("clerk", model=ScriptedProvider(call("wait")), tools=[wait]), store=store)


@pytest.mark.parametrize(
    ("body", "field", "text"),
    [
        ({"input": "Hi", "conversatoin": "c"}, "conversatoin", "not a known key. Did you mean 'conversation'?"),
        ({"input": "Hi", "parameters": {"max_token": 9}}, "parameters.max_token", "Did you mean 'max_tokens'"),
        ({}, "input", "input is required"),
        ({"input": 3}, "input", "input must be a string, not 3"),
        ({"input": "Hi", "on_busy": "queue"}, "on_busy", "on_busy must be 'error' or 'wait', not 'queue'"),
        ({"input": "Hi", "metadata": [1]}, "metadata", "metadata must be an object, not [1]"),
        ({"input": "Hi", "conversation": "a b"}, "conversation", "conversation must have 1–128 characters A–Z a–z"),
        ([1], "", "the body must be an object, not [1]"),
        (b'{"input": "x', "", "the body is not valid JSON: EOF while parsing a string at line 1 column 12"),
        (b"", "", "the body is empty; a JSON object is required"),
    ],
)  # fmt: skip
async def test_an_invalid_body_is_described_with_its_field_and_value(body: Any, field: str, text: str) -> None:
    """The message has every violation: many clients, such as the openai SDK, show nothing else."""
    async with client_of(clerk()) as client:
        sent = {"content": body} if isinstance(body, bytes) else {"json": body}
        answer = await client.post("/runs", **sent)
        error = answer.json()["error"]
        [violation] = error["violations"]
        assert (answer.status_code, error["type"], violation["field"]) == (422, "invalid_input", field)
        assert text in violation["text"]
        assert violation["text"] in error["message"]
        assert (await client.get("/runs")).json()["runs"] == []


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/runs?stauts=completed", "Invalid input: stauts is not a known key. Did you mean 'status'?"),
        ("/runs?limit=many", "Invalid input: limit must be an integer, not 'many'"),
        ("/runs?limit=0", "Invalid input: limit must be greater than or equal to 1, not '0'"),
        ("/runs?status=done", "Invalid input: status must be 'running', 'interrupted', 'completed', 'paused', "),
        ("/runs/r1/events?after=x", "Invalid input: after must be the id of an event, such as 12.0, not 'x'"),
        ("/runs/r1/events?follow=maybe", "Invalid input: follow must be true or false, not 'maybe'"),
    ],
)
async def test_an_invalid_query_is_described_with_its_field_and_value(path: str, text: str) -> None:
    """A misspelt filter is refused: without it, the answer would list every run."""
    async with client_of(clerk()) as client:
        answer = await client.get(path)
        assert (answer.status_code, answer.json()["error"]["message"][: len(text)]) == (422, text)


async def test_an_invalid_last_event_id_names_the_header() -> None:
    """The message names the header that the client sent, not the query with the same meaning."""
    async with client_of(clerk()) as client:
        answer = await client.get("/runs/r1/events", headers={"Last-Event-ID": "zzz"})
        text = "The header Last-Event-ID must be the id of an event, such as 12.0, not 'zzz'."
        assert (answer.status_code, answer.json()["error"]["message"]) == (422, text)


async def test_unknown_paths_and_methods_are_named() -> None:
    """404 and 405 say where to look."""
    async with client_of(clerk()) as client:
        unknown = (await client.get("/v1/runs")).json()["error"]
        assert unknown["message"] == "There is no '/v1/runs'. GET /openapi.json lists the routes."
        assert "/runs does not accept PUT; it accepts " in (await client.put("/runs")).json()["error"]["message"]


async def test_a_wrong_token_is_not_reported_as_a_missing_one() -> None:
    """A client that sends a token learns that this one is not accepted."""
    async with client_of(clerk(), headers={}) as client:
        wrong = await client.get("/runs", headers={"Authorization": "Bearer wrong"})
        assert wrong.json()["error"]["message"] == "The bearer token is not valid for this service."
        assert "A bearer token is required" in (await client.get("/runs")).json()["error"]["message"]
        assert (wrong.status_code, wrong.headers["www-authenticate"]) == (401, "Bearer")


async def test_a_finished_run_that_is_answered_again_is_a_conflict() -> None:
    """The run exists: 409, not 404. The client raises the error of the executor."""
    async with served(clerk()) as url, CrewClient(url, SECRET) as client:
        paused = await client.execute("Refund me.")
        answers = {paused.pauses[0].id: True}
        await client.resume(paused.run_id, answers)

        with pytest.raises(UnknownRun, match="has finished and can't be resumed") as error:
            await client.resume(paused.run_id, answers)

        assert error.value.is_finished

        with pytest.raises(InvalidInput, match="limit must be greater than or equal to 1, not '0'"):
            await client.runs(limit=0)


async def test_advice_for_http_clients_names_requests() -> None:
    """An error whose text advises Python code has the same advice for HTTP."""
    async with client_of(clerk()) as client:
        body = {"input": "Refund me.", "conversation": "c1"}
        run_id = parse_events((await client.post("/runs?stream=1", json=body)).text)[0]["data"]["run_id"]
        paused = (await client.post("/runs", json=body)).json()["error"]
        assert f'Answer with POST /runs/{run_id}/answers, or send "on_paused": "cancel".' in paused["message"]
        assert "executor" not in paused["message"]


async def test_runs_are_filtered_by_the_status_that_they_show() -> None:
    """A run that no process drives is interrupted: it is listed as such, and not as running."""
    store = MemoryStore()

    left = asyncio.create_task(_waiting_clerk(store).execute("Hi", run_id="left"))

    async with asyncio.timeout(10):
        await store.wait_for_events("left", Cursor(2, 0))

    left.cancel()
    await asyncio.wait([left])

    async with client_of(clerk(store)) as client:
        await client.post("/runs?stream=1", json={"input": "Hi"}, headers={"Idempotency-Key": "waiting"})
        found = {
            status: [run["run_id"] for run in (await client.get(f"/runs?status={status}")).json()["runs"]]
            for status in ("interrupted", "running", "paused")
        }
        assert found == {"interrupted": ["left"], "running": [], "paused": ["waiting"]}


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"tokens": "a-secret-of-16-characters"}, "tokens must be a tuple of tokens such as (Token.of(secret),)"),
        ({"tokens": Token.of(SECRET)}, "tokens must be a tuple of tokens such as (Token.of(secret),)"),
        ({"allow_origins": "https://chat.example"}, "allow_origins must be a tuple of strings such as"),
        ({"allow_hosts": ["crew.example:80"]}, "such as crew.example, not 'crew.example:80'"),
    ],
)
def test_wrong_settings_are_named_without_showing_a_secret(settings: Any, text: str) -> None:
    """A single value instead of a tuple is the usual mistake."""
    with pytest.raises(DefinitionError) as error:
        ServerSettings(**({"insecure_no_token": True} | settings))

    assert text in str(error.value)
    assert "a-secret-of" not in str(error.value)


def test_an_agent_is_not_an_executor() -> None:
    """The error says what to pass."""
    agent: Any = Agent("clerk", model=ScriptedProvider("Hello."))

    with pytest.raises(DefinitionError, match=r"expected a CrewExecutor, .* pass CrewExecutor\(crew\)"):
        app(agent, ServerSettings(insecure_no_token=True))


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "localhost", ""])
def test_a_client_needs_a_whole_address(url: str) -> None:
    """Without a scheme no request could be sent; it is not reported as an unreachable service."""
    with pytest.raises(DefinitionError, match=r"url must be like http://127\.0\.0\.1:8000"):
        CrewClient(url, SECRET)


async def test_a_run_of_another_process_is_under_way(tmp_path: Path) -> None:
    """The answer does not tell clients the process and the machine, nor options of the command line."""
    store = SQLiteStore(tmp_path / "runs.db")
    other = asyncio.create_task(_waiting_clerk(store).execute("Hi", run_id="theirs"))

    async with asyncio.timeout(10):
        await store.wait_for_events("theirs", Cursor(2, 0))

    async with client_of(_waiting_clerk(store)) as client:
        answer = await client.post("/runs/theirs/answers", json={})
        text = "Run 'theirs' is under way: wait until it ends, or cancel it with DELETE /runs/theirs."
        assert (answer.status_code, answer.json()["error"]["message"]) == (409, text)

    other.cancel()
    await asyncio.wait([other])
    store.close()


async def test_runs_in_progress_have_the_type_of_a_current_value() -> None:
    """Prometheus would take the count of a summary for the number of runs."""
    async with client_of(clerk()) as client:
        await client.post("/runs?stream=1", json={"input": "Hi"})
        lines = (await client.get("/metrics")).text.splitlines()
        assert "# TYPE crew_runs_active gauge" in lines
        assert 'crew_runs_active{crew="clerk",gen_ai_workflow_name="clerk"} 0' in lines
