"""Random requests to every operation of the OpenAPI document: no answer is a server error, and each has its form."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any
from urllib.parse import quote

import httpx2
import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crew import Agent, CrewExecutor, ScriptedProvider, call, tool
from crew.server import ServerSettings, Token, app
from tests.support.http_service import SECRET, bearer


@tool(approval=True)
def refund(amount: int) -> str:
    """Pay money back."""
    return f"Paid {amount}."


script = ScriptedProvider(call("refund", amount=80), lambda request: "Paid.")
EXECUTOR = CrewExecutor(Agent("clerk", model=script, tools=[refund]))
APP = app(EXECUTOR, ServerSettings(tokens=(Token.of(SECRET),), max_body_bytes=50_000, max_runs_per_token=10_000))


def document() -> dict[str, Any]:
    async def read() -> Any:
        async with client() as http:
            return (await http.get("/openapi.json")).json()

    return dict(asyncio.run(read()))


def client() -> httpx2.AsyncClient:
    transport = httpx2.ASGITransport(APP, raise_app_exceptions=True)
    return httpx2.AsyncClient(transport=transport, base_url="http://localhost", headers=bearer(), timeout=20)


DOCUMENT = document()
OPERATIONS = [(method.upper(), path) for path, item in DOCUMENT["paths"].items() for method in item]

texts = st.text(max_size=40) | st.sampled_from(
    ["r", "clerk", "..", "../x", "a/b", "\x00", "x" * 200, "é", "1.0", "%2e"]
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=10,
)
FIELDS = ["input", "crew", "agent", "conversation", "on_busy", "on_paused", "parameters", "metadata", "answers"]
bodies = (
    st.binary(max_size=200)
    | json_values.map(lambda value: json.dumps(value).encode("utf-8", "surrogatepass"))
    | st.dictionaries(st.sampled_from(FIELDS), json_values, max_size=5).map(lambda value: json.dumps(value).encode())
)
QUERIES = ["stream", "crew", "status", "conversation", "since", "limit", "cursor", "after", "follow", "token", "x"]
queries = st.dictionaries(st.sampled_from(QUERIES), st.text(max_size=20) | st.integers().map(str), max_size=3)
names = ["Idempotency-Key", "Last-Event-ID", "Accept", "Content-Type", "Cookie", "Host", "Origin", "X-Other"]
values = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=30) | st.sampled_from(
    ["text/event-stream", "1.0", "999999999999999.1", "localhost", "http://localhost", "application/json"]
)
headers = st.dictionaries(st.sampled_from(names), values, max_size=3)


async def send(method: str, path: str, id: str, query: dict[str, str], head: dict[str, str], body: bytes) -> Any:
    path = re.sub(r"{\w+}", lambda _: quote(id, safe="", errors="replace"), path)

    async with asyncio.timeout(20), client() as http:
        if query.get("follow"):
            query = {**query, "follow": "0"}  # it would wait for a paused run

        return await http.request(method, path or "/", params=query, headers=head, content=body)


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(id=texts, query=queries, head=headers, body=bodies)
def test_no_request_is_answered_with_a_server_error(
    method: str, path: str, id: str, query: dict[str, str], head: dict[str, str], body: bytes
) -> None:
    """Errors are 4xx with the form of `ErrorAnswer`; JSON answers match the schema of their operation."""
    answer = asyncio.run(send(method, path, id, query, head, body))
    assert answer.status_code < 500, answer.text

    if answer.is_error:
        check(answer.json(), "ErrorAnswer")
    elif answer.headers.get("content-type") == "application/json":
        content = responses(method, path)[str(answer.status_code) if answer.status_code != 200 else first(method, path)]
        schema = content["content"].get("application/json", {}).get("schema")

        if schema is not None:
            check(answer.json(), schema["$ref"].rpartition("/")[2])


def responses(method: str, path: str) -> dict[str, Any]:
    return dict(DOCUMENT["paths"][path][method.lower()]["responses"])


def first(method: str, path: str) -> str:
    """The status of a successful answer."""
    return next(iter(responses(method, path)))


def check(value: object, name: str) -> None:
    jsonschema.validate(value, {"$ref": f"#/components/schemas/{name}", "components": DOCUMENT["components"]})


def test_the_document_describes_every_operation() -> None:
    """Each has a name, a summary and an answer; all schemas are valid, and all references lead to one."""
    assert DOCUMENT["openapi"] == "3.1.0"
    assert len(OPERATIONS) >= 12
    operations = [item for paths in DOCUMENT["paths"].values() for item in paths.values()]
    assert len({item["operationId"] for item in operations}) == len(operations)
    assert all(item["summary"].endswith(".") and item["responses"] for item in operations)

    for schema in DOCUMENT["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)

    def references(value: Any) -> list[str]:
        if isinstance(value, dict):
            own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
            return own + [found for item in value.values() for found in references(item)]

        return [found for item in value for found in references(item)] if isinstance(value, list) else []

    known = {f"#/components/schemas/{name}" for name in DOCUMENT["components"]["schemas"]}
    assert set(references(DOCUMENT)) <= known


async def test_an_unexpected_error_shows_no_stack_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer has no text of the error, which may hold a secret; the log has it."""

    async def fail(*args: object, **options: object) -> None:
        raise ValueError("the password is hunter22")

    monkeypatch.setattr(type(EXECUTOR.store), "runs", fail)

    async with client() as http:
        answer = await http.get("/runs")

    assert (answer.status_code, answer.json()["error"]["type"]) == (500, "internal_error")
    assert "hunter22" not in answer.text
    assert "Traceback" not in answer.text
