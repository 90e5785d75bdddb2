"""Injected faults reach the client as the SDK's exception or as the faulty answer."""

import json
from email.utils import parsedate_to_datetime
from typing import Any

import anthropic
import httpx2
import openai
import pytest

from tests.wire.conftest import PROTOCOLS
from tests.wire.faults import BAD_JSON, Fault, Kind, chance, date_in, every_kind, first_of
from tests.wire.faults import at as at_index
from tests.wire.model import Json, Model, Protocol
from tests.wire.responders import always, tool_loop
from tests.wire.sdk_calls import body, client, send, stream
from tests.wire.server import WireServer

HOW = {"plain": send, "streamed": stream}
STATUS: dict[Kind, tuple[int, str, str]] = {
    "rate_limited": (429, "RateLimitError", "RateLimitError"),
    "quota": (429, "RateLimitError", "BadRequestError"),
    "server_error": (500, "InternalServerError", "InternalServerError"),
    "unavailable": (503, "InternalServerError", "ServiceUnavailableError"),
    "overloaded": (529, "InternalServerError", "OverloadedError"),
    "unauthorized": (401, "AuthenticationError", "AuthenticationError"),
    "forbidden": (403, "PermissionDeniedError", "PermissionDeniedError"),
    "blocked": (400, "BadRequestError", "BadRequestError"),
    "context_too_long": (400, "BadRequestError", "BadRequestError"),
    "html_page": (502, "InternalServerError", "InternalServerError"),
}
# anthropic hands failures in the middle of a stream on as its HTTP library raises them
BROKEN: dict[Kind, tuple[type[Exception], ...]] = {
    "reset": (openai.APIConnectionError, anthropic.APIConnectionError),
    "not_http": (openai.APIConnectionError, anthropic.APIConnectionError),
    "hang": (openai.APITimeoutError, anthropic.APITimeoutError),
    "cut": (openai.APIConnectionError, anthropic.APIConnectionError, httpx2.RemoteProtocolError),
    "reset_mid_stream": (openai.APIConnectionError, anthropic.APIConnectionError, httpx2.ReadError),
    "hang_mid_stream": (openai.APITimeoutError, anthropic.APITimeoutError, httpx2.ReadTimeout),
    "garbage": (ValueError,),
}


def faulty(fault: Fault, protocol: Protocol, how: str) -> tuple[Any, WireServer]:
    """The answer to a first request with a fault in it, or its exception."""
    timeout = 0.5 if "hang" in fault.kind else 5.0
    with WireServer(tool_loop(3), faults={0: fault}) as server, client(server, protocol, timeout) as made:
        try:
            return HOW[how](made, protocol, body(protocol, "Go.")), server
        except Exception as failure:
            return failure, server


@pytest.mark.parametrize("kind", STATUS)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_status_fault_raises_the_sdks_exception(kind: Kind, protocol: Protocol) -> None:
    """Plain and streamed; it is not recorded as a broken rule."""
    status, theirs, anthropics = STATUS[kind]
    for how in HOW:
        failure, server = faulty(Fault(kind, retry_after="7"), protocol, how)
        assert type(failure).__name__ == (anthropics if protocol == "messages" else theirs)
        expected = 400 if (kind, protocol) == ("quota", "messages") else status
        assert failure.status_code == server.requests[0].status == expected
        assert [request.fault.kind for request in server.faulted if request.fault] == [kind]
        assert server.refused == []
        assert server.account.total == 0
        if kind not in ("html_page", "context_too_long"):
            assert failure.response.headers["retry-after"] == "7"


@pytest.mark.parametrize("kind", BROKEN)
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("how", HOW)
def test_a_broken_connection_raises_an_exception(kind: Kind, protocol: Protocol, how: str) -> None:
    """Resets, hangs, garbage and truncated answers, before and inside of a stream."""
    failure, server = faulty(Fault(kind), protocol, how)
    assert isinstance(failure, BROKEN[kind])
    assert server.connections == set()
    assert server.requests[0].delivered is (kind == "garbage")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_cleanly_truncated_stream_raises_nothing(protocol: Protocol) -> None:
    """The SDKs do not notice a stream that is closed properly before its last event; the client must."""
    events, server = faulty(Fault("cut_clean"), protocol, "streamed")
    assert 0 < len(events) < 6
    assert "stop" not in json.dumps(events[-1])
    assert server.account.undelivered == server.account.total > 0


def test_an_error_event_inside_a_stream() -> None:
    """With Chat and Messages the SDK raises it; with Responses it returns it as an event, in two forms."""
    failure, _ = faulty(Fault("error_event"), "chat", "streamed")
    assert type(failure) is openai.APIError
    failure, _ = faulty(Fault("error_event"), "messages", "streamed")
    assert isinstance(failure, anthropic.APIStatusError)
    assert "overloaded_error" in str(failure)
    events, _ = faulty(Fault("error_event"), "responses", "streamed")
    assert (events[-1]["type"], events[-1]["code"]) == ("error", "server_error")
    events, _ = faulty(Fault("failed_event"), "responses", "streamed")
    assert (events[-1]["type"], events[-1]["response"]["error"]["code"]) == ("response.failed", "server_error")


def calls(protocol: Protocol, answer: Any) -> list[tuple[str, str, Any]]:
    """Id, name and arguments of each call of a plain answer."""
    if protocol == "chat":
        made = answer["choices"][0]["message"].get("tool_calls", [])
        return [(one["id"], one["function"]["name"], one["function"]["arguments"]) for one in made]
    if protocol == "responses":
        items = [item for item in answer["output"] if item["type"] == "function_call"]
        return [(one["call_id"], one["name"], one["arguments"]) for one in items]
    return [(one["id"], one["name"], one["input"]) for one in answer["content"] if one["type"] == "tool_use"]


@pytest.mark.parametrize("shape", range(5))
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_invalid_json_arguments(shape: int, protocol: Protocol) -> None:
    """OpenAI returns invalid JSON unchanged; Anthropic parses it, and shows the text only in a stream."""
    answer, _ = faulty(Fault("bad_json", shape=shape), protocol, "plain")
    [(_, name, arguments)] = calls(protocol, answer)
    assert name == "step"
    assert arguments == (([1, 2] if shape == 3 else {}) if protocol == "messages" else BAD_JSON[shape])
    events, _ = faulty(Fault("bad_json", shape=shape), protocol, "streamed")
    assert json.dumps(BAD_JSON[shape])[1:-1] in json.dumps(events)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_faulty_replies(protocol: Protocol) -> None:
    """Unknown tools, duplicate ids, wrong types, empty replies, and replies that were stopped."""
    assert calls(protocol, faulty(Fault("unknown_tool"), protocol, "plain")[0])[0][1] == "no_such_tool"
    first, second = calls(protocol, faulty(Fault("duplicate_call_ids"), protocol, "plain")[0])
    assert first == second
    assert "not" in str(calls(protocol, faulty(Fault("wrong_types"), protocol, "plain")[0])[0][2])
    empty = faulty(Fault("empty"), protocol, "plain")[0]
    assert [empty.get(key) or [] for key in ("choices", "output", "content")] == [[], [], []]
    ends: dict[Kind, dict[Protocol, str]] = {
        "length": {"chat": "length", "responses": "max_output_tokens", "messages": "max_tokens"},
        "refusal": {"chat": "refusal", "responses": "refusal", "messages": "refusal"},
        "content_filter": {"chat": "content_filter", "responses": "content_filter", "messages": "refusal"},
    }
    for kind, words in ends.items():
        assert f'"{words[protocol]}"' in json.dumps(faulty(Fault(kind), protocol, "plain")[0])


def test_every_fault_works_in_every_protocol() -> None:
    """Each kind, plain and streamed, gives an answer or the SDK's exception; the server itself never fails."""
    for protocol in PROTOCOLS:
        for how in HOW:
            for fault in every_kind():
                if fault.kind not in BROKEN and fault.kind not in STATUS and fault.kind != "slow":
                    outcome, server = faulty(fault, protocol, how)
                    assert isinstance(outcome, dict | list | openai.APIError | anthropic.APIError | ValueError)
                    assert server.requests[0].fault == fault


def test_an_invalid_request_is_refused_even_if_a_fault_was_due() -> None:
    """A fault never hides a request that breaks a rule."""
    broken: list[Json] = [{"role": "tool", "tool_call_id": "x", "content": "x"}]
    with WireServer(faults={0: Fault("server_error")}) as server, client(server, "chat") as made:
        with pytest.raises(openai.BadRequestError):
            send(made, "chat", body("chat", broken))
        assert server.refused[0].rule == "tool_without_call"


def test_random_faults_are_the_same_for_the_same_seed() -> None:
    """About the requested share, for the same request numbers."""
    plan = chance({"rate_limited": 0.1, Fault("overloaded"): 0.05}, seed=7)
    kinds = [fault.kind if (fault := plan(index, "chat", {})) else None for index in range(2000)]
    assert 150 < kinds.count("rate_limited") < 250
    assert 60 < kinds.count("overloaded") < 140
    again = chance({"rate_limited": 0.1, Fault("overloaded"): 0.05}, seed=7)
    repeated = [fault.kind if (fault := again(index, "chat", {})) else None for index in range(2000)]
    assert kinds == repeated


def test_fault_plans_are_functions() -> None:
    """A plan can depend on the request, and plans can be combined."""

    def when_asked(_: int, __: Protocol, request: Json) -> Fault | None:
        return Fault("overloaded") if "boom" in json.dumps(request) else None

    plan = first_of(at_index({0: Fault("unavailable")}), when_asked)
    with WireServer(always("ok"), faults=plan, model=Model()) as server, client(server, "chat") as made:
        statuses = []
        for words in ("a", "b", "boom"):
            try:
                send(made, "chat", body("chat", words))
            except openai.APIStatusError as failure:
                statuses.append(failure.status_code)
        assert statuses == [503, 529]
        assert [request.status for request in server.requests] == [503, 200, 529]


def test_retry_after_may_be_a_date() -> None:
    """`date_in` gives the header's date format."""
    failure, _ = faulty(Fault("rate_limited", retry_after=date_in(60)), "messages", "plain")
    assert parsedate_to_datetime(failure.response.headers["retry-after"]).tzinfo is not None
