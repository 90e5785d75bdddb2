"""The routes of the inspector: the page for browsers, JSON for others, and data that only its principal may see."""

from __future__ import annotations

import asyncio
import re
import threading
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Any

import httpx2
import pytest

from crew import Agent, Context, CrewExecutor, ScriptedProvider, call, tool
from crew.server.access import Token, TokenTable
from crew.server.application import build_app
from crew.server.hub import RunHub
from crew.server.inspector_data import RunView
from crew.server.inspector_routes import inspector_routes
from crew.server.runs_api import run_routes
from crew.server.server_context import ServerContext
from crew.server.server_settings import ServerSettings
from crew.simulator import read_recording
from crew.store import SQLiteStore
from crew.store.memory import MemoryStore
from tests.support.http_service import SECRET, bearer, client_of, secret_of, token

HTML = {"Accept": "text/html,application/xhtml+xml"}
STATIC = files("crew.server") / "static"


@tool(effect="read")
def look(word: str) -> str:
    """Look a word up."""
    return f"{word}: " + "found " * 200


def reader(count: int = 12, **options: Any) -> CrewExecutor:
    """Calls a tool for each word, then answers."""
    model = ScriptedProvider(*[call("look", word=f"word{n}") for n in range(count)], "Done.")
    return CrewExecutor(Agent("reader", model=model, tools=[look]), max_messages_per_request=8, **options)


async def run(client: httpx2.AsyncClient, headers: dict[str, str] | None = None, **body: Any) -> str:
    started = await client.post("/runs?stream=1", json={"input": "Find the words."} | body, headers=headers)
    assert started.status_code == 201, started.text
    return str(started.headers["location"]).rpartition("/")[2]


async def test_a_run_is_a_page_for_browsers_and_json_for_others() -> None:
    """The same address serves both, so that a link to a run works everywhere."""
    async with client_of(reader()) as client:
        run_id = await run(client)

        for path in ("/", "/runs", f"/runs/{run_id}", "/conversations/any"):
            page = await client.get(path, headers=HTML)
            assert page.status_code == 200
            assert page.headers["content-type"] == "text/html; charset=utf-8"

        answer = await client.get(f"/runs/{run_id}")
        assert answer.json()["run_id"] == run_id


async def test_the_page_loads_nothing_from_elsewhere_and_has_no_inline_code() -> None:
    """The policy forbids all but this server's own files; the page needs no exception from it."""
    async with client_of(reader()) as client:
        page = await client.get("/", headers=HTML)
        policy = page.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; ")
        assert "unsafe" not in policy
        assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\son\w+=|\sstyle=|https?://", page.text)
        named = set(re.findall(r'(?:src|href)="(/static/[^"]+)"', page.text))
        names = {entry.name for entry in STATIC.iterdir() if entry.name != "index.html"}
        assert {f"/static/{name}" for name in ("main.js", "style.css", "icon.svg")} == named

        for name in sorted(names):
            file = await client.get(f"/static/{name}")
            assert file.status_code == 200
            assert file.headers["x-content-type-options"] == "nosniff"
            text = re.sub(r"http://www\.w3\.org/2000/svg", "", file.text)
            assert not re.search(r"https?://", text.replace("curl ${location.origin}", "")), name
            assert not re.search(
                r"\b(innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval)\b(?! on this)", text
            ), name

        for path in ("/static/nothing.js", "/static/..%2Faccess.py", "/static/%2e%2e/access.py"):
            assert (await client.get(path)).status_code == 404


async def test_all_data_of_the_inspector_needs_a_token() -> None:
    """Without one, neither the page nor its data is served."""
    async with client_of(reader()) as client:
        run_id = await run(client)

    async with client_of(reader(), headers={}) as client:
        for path in ("/", "/static/main.js", "/inspect/runs", f"/inspect/runs/{run_id}"):
            assert (await client.get(path)).status_code == 401


async def test_a_principal_sees_only_its_own_runs() -> None:
    """Another one gets 404 for each kind of data, and an empty list."""
    tokens = (token("anna"), token("ben"))
    async with client_of(reader(), headers={}, tokens=tokens) as client:
        anna, ben = bearer(secret_of("anna")), bearer(secret_of("ben"))
        run_id = await run(client, anna, conversation="chat")
        paths = ("", "/message?path=x&position=0", "/search?q=word", "/what-if", "/export")

        for path in paths:
            assert (await client.get(f"/inspect/runs/{run_id}{path}", headers=ben)).status_code == 404

        assert (await client.get("/inspect/conversations/chat", headers=ben)).status_code == 404
        assert (await client.get("/inspect/runs", headers=ben)).json()["runs"] == []
        [listed] = (await client.get("/inspect/runs", headers=anna)).json()["runs"]
        assert (listed["run_id"], listed["pauses"], listed["tokens"] > 0) == (run_id, [], True)


async def test_a_list_of_runs_tells_them_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has the start of its input and its active time; a long run, whose state takes long to read, has no time."""
    async with client_of(reader()) as client:
        run_id = await run(client, input="Find the words. " * 20)
        [listed] = (await client.get("/inspect/runs")).json()["runs"]
        shown = (await client.get(f"/inspect/runs/{run_id}")).json()["run"]
        assert listed["goal"] == ("Find the words. " * 5)
        assert listed["seconds"] == pytest.approx(shown["seconds"], abs=0.01)
        monkeypatch.setattr("crew.server.inspector_routes.MAX_LISTED_MESSAGES", 2)
        again = await run(client, input="Find the words again.")
        [newest, _] = (await client.get("/inspect/runs")).json()["runs"]
        assert (newest["run_id"], newest["goal"]) == (again, "Find the words again.")
        assert (newest["seconds"], newest["pauses"], newest["tokens"] > 0) == (None, [], True)


async def test_the_active_time_of_a_failed_run_has_its_last_attempt() -> None:
    """The state of a run ends with its last commit; list and page count the time until it failed."""

    class Broken(ScriptedProvider):
        async def complete(self, request: Any, on_delta: Any = None) -> Any:
            await asyncio.sleep(0.05)
            raise ValueError("broken")

    async with client_of(CrewExecutor(Agent("reader", model=Broken("")))) as client:
        run_id = await run(client)
        [listed] = (await client.get("/inspect/runs")).json()["runs"]
        shown = (await client.get(f"/inspect/runs/{run_id}")).json()["run"]

    assert (listed["status"], shown["status"]) == ("failed", "failed")
    assert listed["seconds"] == pytest.approx(shown["seconds"], abs=0.01)
    assert listed["seconds"] >= 0.05


async def test_a_call_that_waits_names_the_types_of_its_arguments() -> None:
    """By the schema of the tool, so that a form knows that "17" is a text; a type that is not known is left out."""

    @tool(approval=True)
    def order(item: str, count: int, note: str | None, sizes: list[int], extra: Any) -> str:
        """Order something."""
        return item

    arguments = {"item": "17", "count": 2, "note": None, "sizes": [1], "extra": 1}
    model = ScriptedProvider(call("order", **arguments))
    async with client_of(CrewExecutor(Agent("clerk", model=model, tools=[order]))) as client:
        run_id = await run(client)
        [listed] = (await client.get("/inspect/runs")).json()["runs"]
        [pause] = (await client.get(f"/inspect/runs/{run_id}")).json()["run"]["pauses"]

    assert listed["pauses"] == ["approval"]
    assert pause["types"] == {
        "item": ["string"],
        "count": ["integer"],
        "note": ["null", "string"],
        "sizes": ["array"],
        "extra": [],
    }


async def test_a_page_reads_only_what_changed_since_its_cursor() -> None:
    """With the newest cursor nothing is sent again; a cursor of another store gets everything."""
    async with client_of(reader()) as client:
        run_id = await run(client)
        whole = (await client.get(f"/inspect/runs/{run_id}")).json()
        nothing = (await client.get(f"/inspect/runs/{run_id}?after={whole['cursor']}")).json()
        assert (nothing["cursor"], nothing["spans"], nothing["threads"][0]["messages"]) == (whole["cursor"], [], [])
        again = (await client.get(f"/inspect/runs/{run_id}?after=999999.0")).json()
        assert again.pop("clock") >= whole.pop("clock")
        assert again == whole
        assert (await client.get(f"/inspect/runs/{run_id}?after=word")).status_code == 422


async def test_messages_are_complete_and_found_by_their_words() -> None:
    """The list has their beginnings; a message is read whole on demand."""
    async with client_of(reader()) as client:
        run_id = await run(client)
        data = (await client.get(f"/inspect/runs/{run_id}")).json()
        shown = data["threads"][0]["messages"][2]["results"][0]
        whole = (await client.get(f"/inspect/runs/{run_id}/message?path={run_id}&position=2")).json()
        assert (len(shown["text"]), len(whole["results"][0]["text"])) == (240, shown["len"])
        found = (await client.get(f"/inspect/runs/{run_id}/search?q=WORD7")).json()
        assert found == {"found": {run_id: [15, 16]}}
        assert (await client.get(f"/inspect/runs/{run_id}/message?path=x&position=0")).status_code == 404
        exported = await client.get(f"/inspect/runs/{run_id}/export")
        assert len(read_recording(exported.content).messages) == len(data["threads"][0]["messages"])
        assert len(exported.json()["events"]) > 50


@pytest.mark.parametrize("policy", ["as run", "unbounded", "rolling", "summarize", "mask + summarize"])
async def test_what_if_answers_with_the_cost_of_a_policy(policy: str) -> None:
    """Each policy that is offered can be replayed."""
    async with client_of(reader()) as client:
        run_id = await run(client)
        offered = (await client.get(f"/inspect/runs/{run_id}/what-if")).json()
        assert offered["limit"] == 8
        found = await client.get(f"/inspect/runs/{run_id}/what-if", params={"policy": policy, "limit": 8})
        assert found.json()["cost"] > 0
        assert len(found.json()["columns"]) == 13


async def test_what_if_refuses_policies_that_it_does_not_know() -> None:
    """Also a limit that is too small for the crew is an error of the caller."""
    async with client_of(reader()) as client:
        run_id = await run(client)

        for query in ({"policy": "own"}, {"policy": "rolling", "limit": 1}, {"policy": "summarize", "limit": 2}):
            answer = await client.get(f"/inspect/runs/{run_id}/what-if", params=query)
            assert answer.status_code == 422, answer.text


async def test_a_live_run_grows_from_reading_to_reading() -> None:
    """The data of two readings in the middle of a run, merged, has each request once."""
    store = MemoryStore()
    async with client_of(reader(40, store=store)) as client:
        started = await client.post("/runs", json={"input": "Go."})
        run_id, cursor, requests = started.json()["run_id"], None, {}

        status = ""

        async with asyncio.timeout(20):
            while status != "completed":
                await asyncio.sleep(0.002)
                after = f"?after={cursor}" if cursor else ""
                part = (await client.get(f"/inspect/runs/{run_id}{after}")).json()
                cursor, status = part["cursor"], part["run"]["status"]
                requests |= {request["i"]: request for thread in part["threads"] for request in thread["requests"]}

        assert sorted(requests) == list(range(41))
        assert all(request["end"] is not None for request in requests.values())


@pytest.mark.parametrize(
    ("function", "path"),
    [
        ("crew.server.inspector_threads.estimate_message_tokens", "/inspect/runs/r"),
        ("crew.server.inspector_routes.to_json_in_parts", "/inspect/runs/r"),
        ("crew.server.inspector_routes.event_json", "/inspect/runs/r/export"),
        ("crew.server.inspector_data.encode_messages", "/inspect/runs/r/export"),
        ("crew.server.inspector_routes.search_messages", "/inspect/runs/r/search?q=found"),
    ],
)
async def test_a_large_run_does_not_block_the_event_loop(
    monkeypatch: pytest.MonkeyPatch, function: str, path: str
) -> None:
    """Each message and event of a run is read in a thread, while the service answers other requests."""
    loop, reached, resume = asyncio.get_running_loop(), asyncio.Event(), threading.Event()
    module, _, name = function.rpartition(".")
    real = getattr(import_module(module), name)

    def wait(*args: Any) -> Any:
        loop.call_soon_threadsafe(reached.set)
        assert resume.wait(5), "the event loop is blocked"
        return real(*args)

    async with client_of(reader()) as client:
        await client.post("/runs?stream=1", json={"input": "Go."}, headers={"Idempotency-Key": "r"})
        monkeypatch.setattr(function, wait)
        loading = asyncio.create_task(client.get(path))
        await asyncio.wait_for(reached.wait(), 30)
        resume.set()
        assert (await loading).status_code == 200


async def test_readers_of_one_run_get_the_same_data() -> None:
    """The first one builds the view, the others wait for it."""
    async with client_of(reader()) as client:
        run_id = await run(client)
        found = await asyncio.gather(*(client.get(f"/inspect/runs/{run_id}") for _ in range(10)))
        [first, *others] = [{**one.json(), "clock": 0} for one in found]
        assert all(other == first for other in others)


async def test_a_view_has_one_reader_at_a_time_also_if_others_evict_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads read views: a second reader waits for the first one, whatever other runs are shown meanwhile."""
    monkeypatch.setattr("crew.server.inspector_routes.MAX_VIEWS", 1)
    entered, may_end = threading.Semaphore(0), threading.Event()
    changes = RunView.changes

    def wait(*args: Any, **options: Any) -> Any:
        found = changes(*args, **options)

        if found["run"]["id"] == "slow":
            entered.release()
            assert may_end.wait(60)

        return found

    monkeypatch.setattr(RunView, "changes", wait)

    async with client_of(reader()) as client, asyncio.TaskGroup() as tasks:
        for key in ("slow", "other"):
            await run(client, {"Idempotency-Key": key})

        try:
            readers = [tasks.create_task(client.get("/inspect/runs/slow"))]
            assert await asyncio.to_thread(entered.acquire, timeout=60)
            assert (await client.get("/inspect/runs/other")).status_code == 200
            readers.append(tasks.create_task(client.get("/inspect/runs/slow")))
            assert not await asyncio.to_thread(entered.acquire, timeout=0.5)
        finally:
            may_end.set()

    assert [task.result().status_code for task in readers] == [200, 200]


def reading_client(store: SQLiteStore) -> httpx2.AsyncClient:
    """A client of a service without crews, as `crew inspect` starts it."""
    anna = token("anna", "read", "all")
    settings, tokens = ServerSettings(tokens=(anna,)), TokenTable((anna,))
    context = ServerContext(executors={}, reader=store, hub=RunHub(), settings=settings, tokens=tokens)
    transport = httpx2.ASGITransport(build_app(context, (inspector_routes, run_routes)))
    return httpx2.AsyncClient(transport=transport, base_url="http://localhost", headers=bearer(secret_of("anna")))


async def test_keys_of_the_environment_are_removed_without_a_crew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that stored a key may not have known that it is one; who reads the file may."""
    key, store = "sk-quite-secret-0123456789", SQLiteStore(tmp_path / "runs.db")
    await CrewExecutor(Agent("a", model=ScriptedProvider(f"It is {key}.")), store=store).execute("Go.", run_id="r")
    monkeypatch.setenv("OPENAI_API_KEY", key)

    async with reading_client(store) as client:
        for path in ("/inspect/runs", "/inspect/runs/r", "/inspect/runs/r/export", "/runs/r", "/runs/r/transcript"):
            answer = await client.get(path)
            assert answer.status_code == 200, path
            assert key not in answer.text, path

        events = await client.get("/runs/r/events")
        assert "replied" in events.text
        assert key not in events.text

    store.close()


async def test_a_run_of_another_process_is_shown_as_running(tmp_path: Path) -> None:
    """A service without crews, as `crew inspect` starts it, sees by the lease that a run is under way."""
    reached, path = asyncio.Event(), tmp_path / "runs.db"

    async def wait(request: Any) -> str:
        reached.set()
        return await asyncio.Future()

    class Waiting(ScriptedProvider):
        async def complete(self, request: Any, on_delta: Any = None) -> Any:
            return await wait(request)

    writing, reading = SQLiteStore(path), SQLiteStore(path)
    task = asyncio.create_task(CrewExecutor(Agent("a", model=Waiting("")), store=writing).execute("Go.", run_id="live"))
    await asyncio.wait_for(reached.wait(), 10)

    async with reading_client(reading) as client:
        listed = (await client.get("/inspect/runs")).json()
        assert [run["status"] for run in listed["runs"]] == ["running"]
        assert listed["rights"] == {"run": False, "approve": False, "read_only": True}
        task.cancel()
        await asyncio.wait([task])
        assert (await client.get("/inspect/runs/live")).json()["run"]["status"] in ("interrupted", "cancelled")

    writing.close()
    reading.close()


async def test_the_instructions_of_a_request_are_shown_with_their_tokens() -> None:
    """A text that a function wrote is the recorded one; a constant is that of the crew, unless it was changed since."""
    store = MemoryStore()

    def crew(text: str) -> CrewExecutor:
        model = ScriptedProvider(call("look", word="a"), "Done.")
        return CrewExecutor(Agent("reader", model=model, tools=[look], instructions=text), store=store)

    def wrote(context: Context[Any]) -> str:
        return f"Work for {context.metadata['customer']}."

    async def head_of(client: httpx2.AsyncClient, run_id: str) -> Any:
        asked = (await client.get(f"/inspect/runs/{run_id}")).json()["threads"][0]["requests"][0]
        query = {"agent": asked["agent"], "head": asked["head"]}
        return (await client.get(f"/inspect/runs/{run_id}/instructions", params=query)).json()

    async with client_of(crew("Read well.")) as client:
        run_id = await run(client)
        found = await head_of(client, run_id)
        assert (found["text"], found["origin"]) == ("Read well.", "crew")
        [(first, tokens), (second, size)] = found["parts"]
        assert (first, second) == ("instructions", "tool look")
        assert 0 < tokens < 10 < size

    async with client_of(crew("Read slowly.")) as client:
        assert (await head_of(client, run_id))["origin"] == "changed"

    agent = Agent("other", model=ScriptedProvider("Done."), instructions=wrote, description="Works.")

    async with client_of(CrewExecutor(agent, store=store)) as client:
        unknown = await head_of(client, run_id)
        assert unknown == {"text": None, "origin": "unknown", "parts": []}
        dynamic = [await head_of(client, await run(client, metadata={"customer": name})) for name in ("Anna", "Ben")]
        assert [one["text"] for one in dynamic] == ["Work for Anna.", "Work for Ben."]
        assert {one["origin"] for one in dynamic} == {"recorded"}


async def test_instructions_need_the_scope_all() -> None:
    """They belong to the operator: those who may read their own runs do not see them."""
    async with client_of(reader(), headers={}, tokens=(token("anna"),)) as client:
        anna = bearer(secret_of("anna"))
        run_id = await run(client, anna)
        refused = await client.get(f"/inspect/runs/{run_id}/instructions?agent=reader", headers=anna)
        assert (refused.status_code, refused.json()["error"]["scope"]) == (403, "all")


async def test_events_have_instructions_only_for_the_scope_all() -> None:
    """Those that a function wrote are in the log of the run; the readers of one log at the same time get their own."""

    def wrote(context: Context[Any]) -> str:
        return "Never mention the discount."

    agent = Agent("clerk", model=ScriptedProvider("Done."), instructions=wrote, description="Works.")
    anna, root = bearer(secret_of("anna")), bearer()

    async with client_of(CrewExecutor(agent), headers={}, tokens=(token("anna"), Token.of(SECRET))) as client:
        started = await client.post("/runs?stream=1", json={"input": "Hi"}, headers={**anna, "Idempotency-Key": "r"})
        assert "agent_prepared" in started.text
        assert "discount" not in started.text
        own = await client.post("/runs?stream=1", json={"input": "Hi"}, headers=root)
        assert "discount" in own.text

        for path in ("/runs/r/events", "/inspect/runs/r/export"):
            shown, hidden, again = await asyncio.gather(
                *(client.get(path, headers=headers) for headers in (root, anna, root))
            )
            assert "agent_prepared" in hidden.text
            assert ["discount" in one.text for one in (shown, hidden, again)] == [True, False, True]

        for path in ("/runs/r", "/runs/r/transcript", "/inspect/runs/r", "/conversations/r"):
            assert "discount" not in (await client.get(path, headers=anna)).text
