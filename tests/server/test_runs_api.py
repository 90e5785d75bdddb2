"""The native API: start, read, follow, answer and cancel runs over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from crew import Agent, Context, CrewExecutor, ScriptedProvider, call, tool
from crew.errors import ProviderError
from crew.runs.interfaces import Cursor, RunRecord
from crew.store import MemoryStore
from tests.support.http_service import client_of, parse_events


@tool(approval=True)
def refund(amount: int) -> str:
    """Pay money back."""
    return f"Paid {amount}."


def clerk() -> CrewExecutor:
    """Asks for an approval, then answers."""
    script = ScriptedProvider(call("refund", amount=80), "It is\npaid.")
    return CrewExecutor(Agent("clerk", model=script, tools=[refund]))


async def finished(client: httpx2.AsyncClient, run_id: str, status: str = "completed") -> dict[str, Any]:
    """The run, as soon as it has this status."""
    async with asyncio.timeout(10):
        while (found := (await client.get(f"/runs/{run_id}")).json())["status"] != status:
            await asyncio.sleep(0.01)

    return dict(found)


async def test_a_run_starts_pauses_and_is_answered() -> None:
    """POST /runs returns the id at once; the answer to the pause resumes the run."""
    async with client_of(clerk()) as client:
        started = await client.post("/runs", json={"input": "Refund me.", "metadata": {"customer": 42}})
        assert started.status_code == 201
        run_id = started.json()["run_id"]
        assert started.headers["location"] == f"/runs/{run_id}"
        paused = await finished(client, run_id, "paused")
        assert paused["metadata"] == {"customer": 42}
        [pause] = paused["pauses"]
        assert (pause["reason"], pause["arguments"]) == ("approval", {"amount": 80})
        answered = await client.post(f"/runs/{run_id}/answers", json={"answers": {pause["id"]: True}})
        assert answered.status_code == 202
        done = await finished(client, run_id)
        assert (done["output"], done["usage"]["requests"], done["pauses"]) == ("It is\npaid.", 2, [])


async def test_events_have_their_cursor_and_deltas_have_none() -> None:
    """A stream ends with `end`; a second one with Last-Event-ID has exactly the events after that one."""
    async with client_of(clerk()) as client:
        started = await client.post("/runs?stream=1", json={"input": "Refund me."})
        assert started.headers["content-type"] == "text/event-stream; charset=utf-8"
        first = parse_events(started.text)
        assert [event["event"] for event in first][-2:] == ["paused", "end"]
        run_id = first[0]["data"]["run_id"]
        pause = first[-2]["data"]["pauses"][0]["id"]
        resumed = await client.post(f"/runs/{run_id}/answers?stream=1", json={"answers": {pause: True}})
        deltas = [event for event in parse_events(resumed.text) if event["event"] == "text_delta"]
        assert [delta["data"]["text"] for delta in deltas] == ["It is\n", "paid."]
        assert {delta["id"] for delta in deltas} == {None}
        whole = parse_events((await client.get(f"/runs/{run_id}/events")).text)
        stored = [event["id"] for event in whole if event["id"]]
        assert stored == sorted(set(stored), key=Cursor.parse)

        for position, cursor in enumerate(stored):
            rest = await client.get(f"/runs/{run_id}/events", headers={"Last-Event-ID": cursor})
            assert [event["id"] for event in parse_events(rest.text) if event["id"]] == stored[position + 1 :]


async def test_errors_are_known_before_the_response_starts() -> None:
    """Invalid input is 422 with all violations, an unknown run 404: also where the client asks for a stream."""
    async with client_of(clerk()) as client:
        both = await client.post("/runs?stream=1", json={"input": " ", "agent": "no such agent!"})
        assert both.status_code == 422
        assert [one["rule"] for one in both.json()["error"]["violations"]] == ["blank", "agent"]
        missing = await client.get("/runs/unknown/events")
        assert (missing.status_code, missing.json()["error"]["type"]) == (404, "not_found")
        body = await client.post("/runs", content=b"{")
        assert (body.status_code, body.json()["error"]["type"]) == (422, "invalid_input")


async def test_a_paused_run_is_not_resumed_without_answers() -> None:
    """It would pause again with one more commit: the answer lists the pauses, and the run is unchanged."""
    async with client_of(clerk()) as client:
        started = parse_events((await client.post("/runs?stream=1", json={"input": "Refund me."})).text)
        run_id, [pause] = started[0]["data"]["run_id"], started[-2]["data"]["pauses"]
        before = (await client.get(f"/runs/{run_id}")).json()

        for body in ({}, {"answers": {}}):
            refused = await client.post(f"/runs/{run_id}/answers", json=body)
            assert refused.status_code == 422
            [violation] = refused.json()["error"]["violations"]
            assert (violation["rule"], pause["id"] in violation["text"]) == ("answers", True)

        assert (await client.get(f"/runs/{run_id}")).json() == before
        assert before["status"] == "paused"


async def test_the_choices_of_a_question_are_part_of_the_pause() -> None:
    """In the run, its conversation and the refusal of another turn; the OpenAPI document has them too."""

    @tool(asks=True)
    async def choose(context: Context[None]) -> str:
        """Ask for a size."""
        return await context.ask_user("Which size?", choices=["small", "large"])

    executor = CrewExecutor(Agent("clerk", model=ScriptedProvider(call("choose"), "Done."), tools=[choose]))

    async with client_of(executor) as client:
        await client.post("/runs?stream=1", json={"input": "Hi", "conversation": "c"}, headers={"Idempotency-Key": "r"})
        answers = [await client.get(path) for path in ("/runs/r", "/conversations/c")]
        refused = await client.post("/runs", json={"input": "And?", "conversation": "c"})
        document = (await client.get("/openapi.json")).json()

    for pauses in (*(answer.json()["pauses"] for answer in answers), refused.json()["error"]["pauses"]):
        assert [pause["choices"] for pause in pauses] == [["small", "large"]]

    assert document["components"]["schemas"]["PauseAnswer"]["properties"]["choices"]["type"] == "array"


async def test_a_refused_turn_of_a_paused_conversation_shows_no_secrets() -> None:
    """The process that stored the call may not have known that its argument is one; the service does."""
    secret = "planted-secret-42"

    @tool(approval=True)
    def sign_in(password: str) -> str:
        """Sign in."""
        return "Done."

    model = ScriptedProvider(call("sign_in", password=secret), "Done.")
    agent, store = Agent("clerk", model=model, tools=[sign_in]), MemoryStore()
    await CrewExecutor(agent, store=store).execute("Hi", conversation="c")

    async with client_of(CrewExecutor(agent, store=store, secrets=[secret])) as client:
        refused = await client.post("/runs", json={"input": "And?", "conversation": "c"})

    assert refused.status_code == 409
    [pause] = refused.json()["error"]["pauses"]
    assert pause["arguments"] == {"password": "[secret]"}
    assert secret not in refused.text


async def test_a_failed_run_is_resumed_without_answers() -> None:
    """The error may be gone by then."""
    answers: Iterator[str | Exception] = iter([ProviderError("not available", may_retry=False), "Hello."])
    model = ScriptedProvider(lambda request: next(answers))

    async with client_of(CrewExecutor(Agent("clerk", model=model))) as client:
        run_id = (await client.post("/runs", json={"input": "Hello"})).json()["run_id"]
        await finished(client, run_id, "failed")
        assert (await client.post(f"/runs/{run_id}/answers", json={})).status_code == 202
        assert (await finished(client, run_id))["output"] == "Hello."


async def test_runs_are_listed_since_their_last_update() -> None:
    """A run that was created earlier and resumed later is listed."""
    async with client_of(clerk()) as client:
        started = parse_events((await client.post("/runs?stream=1", json={"input": "Refund me."})).text)
        run_id, [pause] = started[0]["data"]["run_id"], started[-2]["data"]["pauses"]
        await client.post(f"/runs/{run_id}/answers?stream=1", json={"answers": {pause["id"]: True}})
        run = (await client.get(f"/runs/{run_id}")).json()
        assert run["created"] < run["updated"]

        for since, found in ((run["updated"], [run_id]), (run["updated"] + 1, [])):
            listed = (await client.get("/runs", params={"since": since})).json()["runs"]
            assert [one["run_id"] for one in listed] == found


async def test_a_failed_run_is_an_answer_and_not_an_error() -> None:
    """GET of a failed run is 200 with the status `failed` and the error."""
    async with client_of(CrewExecutor(Agent("clerk", model=ScriptedProvider()))) as client:
        run_id = (await client.post("/runs", json={"input": "Hello"})).json()["run_id"]
        failed = await finished(client, run_id, "failed")
        assert failed["error"]["type"] == "ScriptExhausted"
        streamed = parse_events((await client.get(f"/runs/{run_id}/events")).text)
        assert [event["event"] for event in streamed][-2:] == ["run_failed", "end"]
        assert streamed[-1]["data"]["status"] == "failed"


async def test_a_cancelled_run_ends() -> None:
    """DELETE cancels a paused run; a finished one stays as it is."""
    async with client_of(clerk()) as client:
        run_id = parse_events((await client.post("/runs?stream=1", json={"input": "Refund me."})).text)[0]["data"][
            "run_id"
        ]
        assert (await client.delete(f"/runs/{run_id}")).json()["status"] == "cancelled"
        assert (await client.delete(f"/runs/{run_id}")).json()["status"] == "cancelled"


async def test_a_run_that_ends_while_it_is_cancelled_is_an_answer() -> None:
    """DELETE answers with the run as it ended."""
    gate = asyncio.Event()

    @tool
    async def wait() -> str:
        """Wait."""
        await gate.wait()
        return "done"

    executor = CrewExecutor(Agent("a", model=ScriptedProvider(call("wait"), "Done."), tools=[wait]))
    cancel = executor.cancel

    async with client_of(executor) as client:
        run_id = (await client.post("/runs", json={"input": "Hi"})).json()["run_id"]

        async def cancel_too_late(run_id: str) -> None:
            gate.set()
            await finished(client, run_id)
            await cancel(run_id)

        executor.cancel = cancel_too_late  # type: ignore[method-assign]
        deleted = await client.delete(f"/runs/{run_id}")
        assert (deleted.status_code, deleted.json()["status"]) == (200, "completed")


async def test_an_idempotency_key_is_the_run_id() -> None:
    """The same key starts one run; with another input it is refused."""
    executor = CrewExecutor(Agent("clerk", model=ScriptedProvider("Hello.")))

    async with client_of(executor) as client:
        headers = {"Idempotency-Key": "order-17"}
        answers = await asyncio.gather(*(client.post("/runs", json={"input": "Hi"}, headers=headers) for _ in range(5)))
        assert sorted(one.status_code for one in answers) == [200, 200, 200, 200, 201]
        assert {one.json()["run_id"] for one in answers} == {"order-17"}
        assert len((await client.get("/runs")).json()["runs"]) == 1
        other = await client.post("/runs", json={"input": "Another"}, headers=headers)
        assert (other.status_code, other.json()["error"]["violations"][0]["rule"]) == (422, "on_existing")


async def test_a_conversation_of_a_crew_that_is_not_served_is_read() -> None:
    """The store has it; only starting and resuming needs the crew."""
    store = MemoryStore()
    await CrewExecutor(Agent("guide", model=ScriptedProvider("Hello.")), store=store).execute("Hi", conversation="c1")

    async with client_of(CrewExecutor(Agent("clerk", model=ScriptedProvider("Hello.")), store=store)) as client:
        found = (await client.get("/conversations/c1")).json()
        assert (found["crew"], found["agent"], [message["text"] for message in found["messages"]]) == (
            "guide",
            "guide",
            ["Hi", "Hello."],
        )


async def test_a_conversation_is_continued_and_read() -> None:
    """Two runs with one conversation id share their messages."""
    executor = CrewExecutor(Agent("clerk", model=ScriptedProvider("One.", "Two.")))

    async with client_of(executor) as client:
        for text in ("First", "Second"):
            await client.post("/runs?stream=1", json={"input": text, "conversation": "customer-42"})

        found = (await client.get("/conversations/customer-42")).json()
        assert [message["text"] for message in found["messages"]] == ["First", "One.", "Second", "Two."]
        assert [run["status"] for run in found["runs"]] == ["completed", "completed"]
        [listed] = (await client.get("/conversations")).json()["conversations"]
        assert listed["conversation_id"] == "customer-42"
        assert (await client.get("/conversations/other")).status_code == 404


@pytest.mark.parametrize("path", ["/runs/..%2f..%2fetc", "/runs/a%00b", "/runs/%2e%2e", "/runs/" + "x" * 129])
async def test_ids_in_paths_follow_the_rule_of_run_ids(path: str) -> None:
    """Path tricks find nothing."""
    async with client_of(clerk()) as client:
        assert (await client.get(path)).status_code == 404


class CountingStore(MemoryStore):
    """Counts how often a whole run is read."""

    reads = 0

    async def run(self, run_id: str) -> RunRecord:
        self.reads += 1
        return await super().run(run_id)


async def test_following_a_run_does_not_read_its_transcript() -> None:
    """The check of the principal and the status of the run need its facts only, whatever the run's size."""
    store = CountingStore()
    executor = CrewExecutor(Agent("clerk", model=ScriptedProvider("Done.")), store=store)

    async with client_of(executor) as client:
        await client.post("/runs?stream=1", json={"input": "Go."}, headers={"Idempotency-Key": "once"})
        store.reads = 0
        followed = await client.get("/runs/once/events")
        assert parse_events(followed.text)[-1]["event"] == "end"
        assert (await client.get("/runs/once/transcript")).is_success
        assert (await client.get("/runs/unknown/events")).status_code == 404
        assert store.reads == 0
        assert (await client.get("/runs/once")).json()["output"] == "Done."
        assert store.reads == 1
