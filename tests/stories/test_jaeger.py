"""The traces that a real Jaeger returns for examples/jaeger.py."""

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.servers import server_missing

pytestmark = pytest.mark.servers

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def jaeger() -> Iterator[Any]:
    """A running Jaeger on free ports."""
    sys.path.insert(0, str(ROOT / "scripts"))

    try:
        # Not `jaeger`: another test may have loaded examples/jaeger.py under that name.
        from jaeger_program import JaegerUnavailable
        from jaeger_server import running_jaeger

        try:
            with running_jaeger() as server:
                yield server
        except JaegerUnavailable as reason:
            server_missing("jaeger", str(reason))
    finally:
        sys.path.remove(str(ROOT / "scripts"))


@pytest.fixture(scope="module")
def traces(jaeger: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The two traces of the example, as Jaeger returns them; the example runs in a separate process."""
    environment = os.environ | {"OTEL_EXPORTER_OTLP_ENDPOINT": jaeger.otlp_http, "CREW_JAEGER_QUERY": jaeger.query}
    done = subprocess.run(
        [sys.executable, "examples/jaeger.py"],
        cwd=ROOT,
        env=environment | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Can't export" not in done.stderr
    first, second = re.findall(r"http://\S+/[0-9a-f]{32}", done.stdout)
    kept = fetch(jaeger, first[-32:]), fetch(jaeger, second[-32:])
    assert "not the Jaeger UI" not in page(first) + page(second)
    return kept


def page(address: str) -> str:
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(address, timeout=10) as answer:
        return answer.read().decode()


def fetch(jaeger: Any, trace_id: str) -> dict[str, Any]:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + 20

    while True:
        try:
            with direct.open(f"{jaeger.query}/api/traces/{trace_id}", timeout=10) as answer:
                return json.loads(answer.read())["data"][0]
        except (OSError, LookupError):
            if time.monotonic() > deadline:
                raise

            time.sleep(0.1)  # another process files what it was sent; there is nothing to wait on but time


def tags(span: dict[str, Any]) -> dict[str, Any]:
    return {tag["key"]: tag["value"] for tag in span["tags"]}


def tree(trace: dict[str, Any]) -> dict[str, list[str]]:
    """The names of the children, by the parent's name; the root is under the empty name."""
    names = {span["spanID"]: span["operationName"] for span in trace["spans"]}
    found: dict[str, list[str]] = {}

    for span in sorted(trace["spans"], key=lambda span: (span["startTime"], -span["duration"])):
        parents = [r["spanID"] for r in span["references"] if r["refType"] == "CHILD_OF" and r["spanID"] in names]
        found.setdefault(names[parents[0]] if parents else "", []).append(span["operationName"])

    return found


def one(trace: dict[str, Any], name: str) -> dict[str, Any]:
    (span,) = [span for span in trace["spans"] if span["operationName"] == name]
    return span


def test_jaeger_shows_the_tree(traces: tuple[dict[str, Any], dict[str, Any]]) -> None:
    """Who handed to whom, what ran in parallel, which tools were called, when history was pruned."""
    shape = tree(traces[0])
    assert shape[""] == ["invoke_workflow support"]
    assert shape["invoke_workflow support"] == [
        "invoke_agent triage",
        "invoke_agent billing",
        "crew.parallel panel",
        "invoke_agent editor",
    ]
    assert sorted(shape["crew.parallel panel"]) == ["invoke_agent finance", "invoke_agent legal"]
    assert Counter(shape["invoke_agent billing"]) == {
        "chat scripted": 10,
        "execute_tool lookup_order": 9,
        "execute_tool transfer_to_panel": 1,
        "crew.history.prune": 3,
    }
    assert tree(traces[1])["invoke_agent editor"] == ["execute_tool refund", "chat scripted"]


def test_jaeger_shows_links(traces: tuple[dict[str, Any], dict[str, Any]]) -> None:
    """From an agent back to the handoff that led to it, from a group likewise, from a resumed run to the paused one."""
    paused, done = traces

    def links(trace: dict[str, Any], name: str) -> list[tuple[str, str]]:
        span = one(trace, name)
        return [(r["traceID"], r["spanID"]) for r in span["references"] if r["refType"] == "FOLLOWS_FROM"]

    def place(trace: dict[str, Any], name: str) -> tuple[str, str]:
        return trace["traceID"], one(trace, name)["spanID"]

    assert links(paused, "invoke_agent billing") == [place(paused, "execute_tool transfer_to_billing")]
    assert links(paused, "crew.parallel panel") == [place(paused, "execute_tool transfer_to_panel")]
    assert links(done, "invoke_workflow support") == [place(paused, "invoke_workflow support")]


def test_jaeger_shows_attributes_and_bills(traces: tuple[dict[str, Any], dict[str, Any]]) -> None:
    """The conventions' names; tokens on chat spans alone; a pause is an event and no error."""
    paused, done = traces
    chats = [span for span in paused["spans"] if span["operationName"] == "chat scripted"]
    chat = min(chats, key=lambda span: span["startTime"])
    assert tags(chat) | {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "scripted",
        "gen_ai.request.model": "scripted",
        "gen_ai.agent.name": "triage",
        "span.kind": "client",
    } == tags(chat)
    billed = [span for trace in traces for span in trace["spans"] if "gen_ai.usage.input_tokens" in tags(span)]
    assert {span["operationName"] for span in billed} == {"chat scripted"}
    total = tags(one(done, "invoke_workflow support"))["crew.usage.input_tokens"]
    assert sum(tags(span)["gen_ai.usage.input_tokens"] for span in billed) == total
    root = one(paused, "invoke_workflow support")
    assert tags(root)["crew.stop_reason"] == "paused"
    assert "error" not in tags(root)
    events = [field["value"] for log in root["logs"] for field in log["fields"] if field["key"] == "event"]
    assert events == ["crew.paused"]
    assert not any("gen_ai.input.messages" in tags(span) for span in paused["spans"])
    assert paused["processes"][root["processID"]]["serviceName"] == "crew-example"


def test_jaeger_shows_every_pruning(traces: tuple[dict[str, Any], dict[str, Any]]) -> None:
    """Before, after, how many left, which policy, why, tokens, and that the front of the requests moved."""
    prunings = [tags(span) for span in traces[0]["spans"] if span["operationName"] == "crew.history.prune"]
    assert prunings

    for attributes in prunings:
        assert attributes["crew.history.before"] == 11
        assert attributes["crew.history.after"] <= 10
        assert attributes["crew.history.evicted"] >= 1
        assert attributes["crew.history.policy"] == "rolling"
        assert "limit of 10" in attributes["crew.history.reason"]
        assert attributes["crew.history.tokens_before"] > attributes["crew.history.tokens_after"]
        assert attributes["crew.history.prefix_moved"] is True
