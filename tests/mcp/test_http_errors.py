"""HTTP errors: which calls may have taken effect, and what the error says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from crew import Agent, CrewExecutor, call
from crew.mcp import MCPServer
from crew.runs.events import Warned
from tests.support.mcp_clients import caller, run_steps
from tests.support.mcp_gateway import Failure, failing_gateway
from tests.support.runs import events_of_type, run_and_collect

JSON = "application/json"


@pytest.mark.parametrize(("effect", "outcome", "calls"), [("write", "unknown", 1), ("read", "error", 2)])
@pytest.mark.parametrize(
    "failure",
    [
        Failure(),
        Failure(status=503, kind=JSON, body='{"message": "upstream timed out"}'),
        Failure(status=500, kind=JSON, body='{"jsonrpc": "2.0", "id": null, "error": {"code": 1, "message": "no"}}'),
        Failure(status=500, kind=JSON, body='{"jsonrpc": "2.0", "id": 999, "error": {"code": 1, "message": "no"}}'),
        Failure(status=502, kind="text/event-stream", body="data: x"),
    ],
)
async def test_a_call_that_a_gateway_failed_may_have_taken_effect(
    tmp_path: Path, failure: Failure, effect: Any, outcome: str, calls: int
) -> None:
    """A write is not repeated, and its effect is unknown; a read is repeated. Gateways answer in JSON too."""
    async with failing_gateway(failure) as (url, received):
        server = MCPServer(name="raw", url=url, pins=tmp_path / "pins.json", effect=effect)
        [(found, text)] = await run_steps(server, call("raw_ask"))

    assert (found, received.count("tools/call")) == (outcome, calls)
    assert f"it answered with status {failure.status}: {failure.body}" in text


@pytest.mark.parametrize(
    ("failure", "text"),
    [
        (
            Failure(
                status=500, kind=JSON, body='{"jsonrpc": "2.0", "id": ID, "error": {"code": 1, "message": "full"}}'
            ),
            "raw_ask failed: ServerError: full",
        ),
        (
            Failure(
                status=400, kind=JSON, body='{"jsonrpc": "2.0", "id": null, "error": {"code": 1, "message": "no"}}'
            ),
            "raw_ask failed: ServerError: no",
        ),
        (
            Failure(status=429, kind=JSON, body='{"error":\n "slow down"}'),
            'raw_ask failed: ServerError: it answered with status 429: {"error": "slow down"}',
        ),
        (Failure(status=403, body=""), "raw_ask failed: ServerError: it answered with status 403"),
        (
            Failure(status=413, body="x" * 400),
            f"raw_ask failed: ServerError: it answered with status 413: {'x' * 299}…",
        ),
    ],
)
async def test_a_call_that_was_refused_is_an_error_with_the_reason(tmp_path: Path, failure: Failure, text: str) -> None:
    """The server answered the call itself, or did not accept it: no doubt about a write. The connection stays."""
    async with failing_gateway(failure) as (url, received):
        server = MCPServer(name="raw", url=url, pins=tmp_path / "pins.json")
        found = await run_steps(server, call("raw_ask"), call("raw_ask"))

    assert found == [("error", text)] * 2
    assert received.count("initialize") == 1


@pytest.mark.parametrize("status", [401, 403, 503])
async def test_a_server_that_refuses_the_connection_is_a_warning_with_the_reason(tmp_path: Path, status: int) -> None:
    """A missing token and an outage can be told apart."""
    failure = Failure(method="initialize", status=status, kind=JSON, body='{"error": "invalid_token"}')

    async with failing_gateway(failure) as (url, _):
        server = MCPServer(name="raw", url=url, pins=tmp_path / "pins.json")

        async with CrewExecutor(Agent("worker", model=caller(), tools=[server])) as executor:
            events, _ = await run_and_collect(executor)

    [warning] = events_of_type(events, Warned)
    assert f'it answered with status {status}: {{"error": "invalid_token"}}' in warning.text


async def test_a_server_that_answers_an_unknown_method_with_500_is_connected(tmp_path: Path) -> None:
    """The first request belongs to the newest protocol: a server that does not know it is asked in the older one."""
    async with failing_gateway(Failure(method="server/discover", status=500)) as (url, _):
        server = MCPServer(name="raw", url=url, pins=tmp_path / "pins.json")
        [(_, text)] = await run_steps(server, call("raw_ask"))

    assert text == "raw_ask failed: ServerError: unknown method"
