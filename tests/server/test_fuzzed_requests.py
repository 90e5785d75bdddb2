"""Random requests to every route of the service: no answer is a server error, and each has its form."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any
from urllib.parse import quote, urlencode

import httpx2
import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.routing import Route

from crew import Agent, CrewExecutor, ScriptedProvider, call, tool
from crew.runs.interfaces import RunStore
from crew.server import ServerSettings, Token, app
from crew.store import MemoryStore, SQLiteStore
from tests.support.http_service import SECRET, bearer


@tool(approval=True)
def refund(amount: int) -> str:
    """Pay money back."""
    return f"Paid {amount}."


def executor(store: RunStore) -> CrewExecutor:
    script = ScriptedProvider(call("refund", amount=80), lambda request: "Paid.")
    return CrewExecutor(Agent("clerk", model=script, tools=[refund]), store=store)


def application(store: RunStore) -> Starlette:
    limits = {"max_body_bytes": 50_000, "max_runs_per_token": 10_000}
    return app(executor(store), ServerSettings(tokens=(Token.of(SECRET),), **limits))


def client(made: Starlette) -> httpx2.AsyncClient:
    transport = httpx2.ASGITransport(made, raise_app_exceptions=True)
    return httpx2.AsyncClient(transport=transport, base_url="http://localhost", headers=bearer(), timeout=30)


ROUTES = [route for route in application(MemoryStore()).routes if isinstance(route, Route)]
REQUESTS = sorted(
    {(method, route.path) for route in ROUTES for method in route.methods or () if method != "HEAD"},
    reverse=True,  # DELETE comes last: it ends the paused runs
)
PAUSED = [f"p{number}" for number in range(5)]


class Service:
    """The service on two stores, each with a finished run and paused ones, in one event loop."""

    def __init__(self, stores: Sequence[RunStore]) -> None:
        self.runner, self.apps = asyncio.Runner(), [application(store) for store in stores]

        for made in self.apps:
            self.runner.run(self._fill(made))

    async def _fill(self, made: Starlette) -> None:
        async with client(made) as http:
            for id in ("done", *PAUSED):
                body = {"input": "Refund me.", "conversation": f"talk-{id}"}
                await http.post("/runs?stream=1", json=body, headers={"Idempotency-Key": id})

            answer = await http.post("/runs/done/answers?stream=1", json={"answers": {"done:1.0": True}})
            assert answer.status_code == 202, answer.text

    def send(self, number: int, method: str, path: str, *, query: Any, head: Any, body: bytes) -> httpx2.Response:
        async def request() -> httpx2.Response:
            async with asyncio.timeout(60), client(self.apps[number]) as http:
                target = f"{path}?{urlencode(query, errors='replace')}"
                return await http.request(method, target, headers=head, content=body)

        return self.runner.run(request())

    def close(self) -> None:
        for made in self.apps:
            for one in made.state.crew.executors.values():
                self.runner.run(one.aclose())

        self.runner.close()


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    sqlite = SQLiteStore(":memory:")
    made = Service([MemoryStore(), sqlite])
    yield made
    made.close()
    sqlite.close()


@pytest.fixture(scope="module")
def document(service: Service) -> dict[str, Any]:
    return dict(service.send(0, "GET", "/openapi.json", query={}, head={}, body=b"").json())


texts = st.text(max_size=40) | st.sampled_from(
    ["r", "clerk", "..", "../x", "a/b", "\x00", "x" * 200, "é", "1.0", "%2e", "\ud800"]
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=10,
)
runs = st.sampled_from(["done", *PAUSED])
new_ids = st.integers(0, 10**9).map("new-{}".format)
conversations = runs.map("talk-{}".format) | new_ids
pauses = runs.map("{}:1.0".format)
flags, numbers = st.booleans(), st.integers(-1, 3) | st.sampled_from([1.5, 10**30])
answers = st.sampled_from([True, False, "no", {"approve": {"arguments": {"amount": 1}}}, {"refuse": {"reason": "x"}}])
image = {"type": "image", "source": {"type": "data", "mimeType": "image/png", "value": "AAAA"}}
link = {"type": "image_url", "image_url": {"url": "https://pictures.example/1.png"}}
part = st.sampled_from([{"type": "text", "text": "Hi"}, image, link]) | json_values
message = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "system", "tool", "x"]), "content": texts | st.lists(part)},
    optional=dict.fromkeys(("tool_calls", "toolCalls", "tool_call_id", "toolCallId"), json_values),
)
hello = {"id": "1", "role": "user", "content": "Hi"}
messages = st.just([hello]) | st.lists(message, max_size=3).map(lambda found: [*found, hello])
resume = st.fixed_dictionaries(
    {"interruptId": pauses, "status": st.sampled_from(["resolved", "cancelled"])}, optional={"payload": answers}
)


def mostly(common: Any, rare: Any) -> Any:
    """Three of four values are common ones."""
    return st.sampled_from([common, common, common, rare]).flatmap(lambda chosen: chosen)


def body_of(required: dict[str, Any], optional: dict[str, Any]) -> Any:
    """Bodies with these fields; in some of them, one field has a random value."""
    valid = st.fixed_dictionaries(required, optional=optional)
    wrong = st.dictionaries(st.sampled_from([*required, *optional]), json_values, max_size=1)
    one_wrong = st.tuples(valid, wrong).map(lambda both: both[0] | both[1])
    return mostly(valid, one_wrong).map(lambda value: json.dumps(value).encode())


THREAD = {"threadId": conversations, "runId": runs | new_ids}
SAMPLING = ["temperature", "top_p", "seed", "max_tokens", "max_completion_tokens"]
BODIES = {
    "/runs": body_of(
        {"input": st.just("Hi")},
        {
            "conversation": conversations,
            "on_paused": st.just("cancel"),
            "parameters": json_values,
            "metadata": json_values,
        },
    ),
    "/runs/{run_id}/answers": body_of({"answers": st.dictionaries(pauses, answers, max_size=1)}, {}),
    "/v1/chat/completions": body_of(
        {"model": st.just("clerk"), "messages": messages},
        {"stream": flags, "stream_options": json_values, "n": st.just(1), "stop": texts, "tools": json_values}
        | dict.fromkeys(SAMPLING, numbers),
    ),
    "/ag-ui": body_of(THREAD | {"messages": messages}, {"tools": json_values, "context": json_values})
    | body_of(THREAD | {"resume": st.lists(resume, min_size=1, max_size=2)}, {"messages": messages}),
    "/sign-in": st.fixed_dictionaries({"token": texts | st.just(SECRET)}, optional={"path": texts, "x": texts}).map(
        lambda form: urlencode(form, errors="replace").encode()
    ),
}
noise = st.binary(max_size=200) | json_values.map(lambda value: json.dumps(value).encode("utf-8", "surrogatepass"))

cursors = st.sampled_from(["1.0", "2.1", "999999999999999.999999999999999", "x", "-1.0"])
limits = st.sampled_from(["1", "2", "3", "500"]) | st.sampled_from(["0", "-1", "9" * 30, "x"])
times = st.sampled_from(["0", "1e9", "nan", "inf", "-1e308", "x"])
words = st.sampled_from(["done", "talk-done", "clerk", "completed", "paused", "refund", "keep_last", "rolling"]) | texts
LISTED = {
    "crew": words,
    "status": words,
    "conversation": conversations,
    "since": times,
    "limit": limits,
    "cursor": words,
}
QUERIES = {
    "/": {"token": words},
    "/runs": LISTED | {"stream": limits},
    "/conversations": {"crew": words, "limit": limits, "cursor": words},
    "/runs/{run_id}/events": {"after": cursors},
    "/runs/{run_id}/answers": {"stream": limits},
    "/inspect/runs": {"conversation": conversations, "limit": limits, "cursor": words},
    "/inspect/runs/{run_id}": {"after": cursors},
    "/inspect/runs/{run_id}/message": {"path": runs | texts, "position": limits},
    "/inspect/runs/{run_id}/instructions": {"agent": words, "head": words},
    "/inspect/runs/{run_id}/search": {"q": words},
    "/inspect/runs/{run_id}/what-if": {"policy": words, "limit": limits},
}
other_queries = st.dictionaries(st.sampled_from(["follow", "x", "token"]), st.just("0") | texts, min_size=1, max_size=1)

printable = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=30)
HEADERS = {
    "Accept": st.sampled_from(["text/event-stream", "text/html", "application/json"]) | printable,
    "Idempotency-Key": runs | new_ids | printable,
    "Last-Event-ID": cursors | printable,
    "X-Crew-Conversation": conversations | printable,
    "Content-Type": printable,
    "Cookie": printable,
    "Origin": st.sampled_from(["http://localhost", "null", "http://["]),
    "Host": st.sampled_from(["localhost:1", "[::1]", "x", "["]),
}
headers = st.lists(st.one_of(*(st.tuples(st.just(name), value) for name, value in HEADERS.items())), max_size=2).map(
    dict
)


crews = st.just("clerk")
files = st.sampled_from(["main.js", "style.css", "../application.py"])
IDS = {"run_id": runs, "conversation_id": conversations, "crew": crews, "model": crews, "name": files}


@cache
def requests_to(method: str, path: str) -> Any:
    """Requests to a route: the store, the id in the path, the query, the headers and the body."""
    [name] = re.findall(r"{(\w+)}", path) or ["run_id"]
    ids = mostly(IDS[name], words)
    fields = QUERIES.get(path, {})
    query = st.fixed_dictionaries(fields) | st.fixed_dictionaries({}, optional=fields)
    known = BODIES.get("/ag-ui" if path.startswith("/ag-ui") else path, noise)
    body = st.just(b"") if method == "GET" else mostly(known, noise)
    return st.tuples(st.integers(0, 1), ids, mostly(query, other_queries), headers, body)


@pytest.mark.parametrize(("method", "path"), REQUESTS)
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_no_request_is_answered_with_a_server_error(
    service: Service, document: dict[str, Any], method: str, path: str, data: st.DataObject
) -> None:
    """Errors are 4xx with the form of `ErrorAnswer`; JSON answers match the schema of their operation."""
    number, id, query, head, body = data.draw(requests_to(method, path))
    filled = re.sub(r"{\w+}", lambda _: quote(id, safe="", errors="replace"), path)
    answer = service.send(number, method, filled, query=query, head=head, body=body)
    assert answer.status_code < 500, answer.text
    kind = answer.headers.get("content-type", "")

    if kind != "application/json":
        assert not answer.is_error or (answer.status_code == 401 and kind.startswith("text/html"))
    elif answer.is_error:
        check(document, answer.json(), "ErrorAnswer")
    elif path in document["paths"]:
        described = document["paths"][path][method.lower()]["responses"]
        content = described[str(answer.status_code) if answer.status_code != 200 else next(iter(described))]
        schema = content["content"].get("application/json", {}).get("schema")

        if schema is not None:
            check(document, answer.json(), schema["$ref"].rpartition("/")[2])


def check(document: dict[str, Any], value: object, name: str) -> None:
    jsonschema.validate(value, {"$ref": f"#/components/schemas/{name}", "components": document["components"]})


def test_the_document_describes_every_operation(document: dict[str, Any]) -> None:
    """Each has a name, a summary and an answer; all schemas are valid, and all references lead to one."""
    assert document["openapi"] == "3.1.0"
    operations = [item for paths in document["paths"].values() for item in paths.values()]
    assert len(operations) >= 12
    assert len({item["operationId"] for item in operations}) == len(operations)
    assert all(item["summary"].endswith(".") and item["responses"] for item in operations)

    for schema in document["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)

    def references(value: Any) -> list[str]:
        if isinstance(value, dict):
            own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
            return own + [found for item in value.values() for found in references(item)]

        return [found for item in value for found in references(item)] if isinstance(value, list) else []

    known = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert set(references(document)) <= known


async def test_an_unexpected_error_shows_no_stack_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer has no text of the error, which may hold a secret; the log has it."""

    async def fail(*args: object, **options: object) -> None:
        raise ValueError("the password is hunter22")

    monkeypatch.setattr(MemoryStore, "runs", fail)

    async with client(application(MemoryStore())) as http:
        answer = await http.get("/runs")

    assert (answer.status_code, answer.json()["error"]["type"]) == (500, "internal_error")
    assert "hunter22" not in answer.text
    assert "Traceback" not in answer.text
