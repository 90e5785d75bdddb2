"""Prompt caches, windows, usage and billing, in each service's fields."""

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import anthropic
import openai
import pytest

from tests.wire.billing import Prices
from tests.wire.cache import Cache, Segment
from tests.wire.conftest import PROTOCOLS
from tests.wire.model import Json, Model, Protocol
from tests.wire.responders import always
from tests.wire.sdk_calls import Client, body, client, send
from tests.wire.server import WireServer

LONG = "The quick brown fox jumps over the lazy dog. " * 200
MARK: Json = {"cache_control": {"type": "ephemeral"}}
HOUR: Json = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}


def figures(protocol: Protocol, answer: Json) -> tuple[int, int, int, int]:
    """Input, read, written, output, where input is all of it."""
    usage = answer["usage"]
    if protocol == "messages":
        read, written = usage["cache_read_input_tokens"], usage["cache_creation_input_tokens"]
        return usage["input_tokens"] + read + written, read, written, usage["output_tokens"]
    if protocol == "chat":
        details = usage["prompt_tokens_details"]
        return (
            usage["prompt_tokens"],
            details["cached_tokens"],
            details["cache_write_tokens"],
            usage["completion_tokens"],
        )
    details = usage["input_tokens_details"]
    return usage["input_tokens"], details["cached_tokens"], details["cache_write_tokens"], usage["output_tokens"]


def user(text: str, **more: Any) -> Json:
    return {"role": "user", "content": [{"type": "text", "text": text, **more}]}


@pytest.fixture
def server() -> Iterator[WireServer]:
    with WireServer(always("ok")) as made:
        yield made


@pytest.fixture
def service(server: WireServer) -> Iterator[Client]:
    with client(server, "messages") as made:
        yield made


@pytest.mark.parametrize("protocol", ["chat", "responses"])
def test_openai_reads_the_longest_prefix_in_steps(protocol: Protocol, server: WireServer) -> None:
    """Automatically, from 1,024 tokens in steps of 128; another cache key reads nothing."""
    with client(server, protocol) as made:

        def ask(text: str, key: str = "k") -> tuple[int, int, int, int]:
            talk = [{"role": "user", "content": LONG}, {"role": "user", "content": text}]
            return figures(protocol, send(made, protocol, body(protocol, talk, prompt_cache_key=key)))

        total, read, written, _ = ask("a")
        assert (read, written) == (0, 0)
        assert ask("b, which is longer")[1] == (total - 8) // 128 * 128 >= 1024
        assert ask("a", key="other")[1] == 0
        short = send(made, protocol, body(protocol, "Hi."))
        assert figures(protocol, short)[1] == figures(protocol, send(made, protocol, body(protocol, "Hi.")))[1] == 0


def test_openai_reads_only_an_identical_prefix(server: WireServer) -> None:
    """With another tool or first word nothing is read; with a change in the middle, the part before it."""
    with client(server, "chat") as made:

        def read(text: str, **more: Any) -> int:
            return figures("chat", send(made, "chat", body("chat", text, **more)))[1]

        assert read(LONG * 2) == 0
        assert read("x" + LONG * 2) == 0
        assert read(LONG * 2, tools=None) == 0
        assert 1024 <= read(LONG + "But now for something else. " * 100) < 2100


def test_anthropic_writes_and_reads_at_breakpoints(service: Client) -> None:
    """A breakpoint writes, the next request reads; `input_tokens` counts what follows the last breakpoint."""
    first = [user(LONG, **MARK)]
    total, read, written, _ = figures("messages", send(service, "messages", body("messages", first)))
    assert (read, written) == (0, total)
    again = [user(LONG), {"role": "assistant", "content": "ok"}, user("And?", **MARK), user("tail")]
    answer = send(service, "messages", body("messages", again))
    assert figures("messages", answer)[1] == total
    assert 0 < answer["usage"]["cache_creation_input_tokens"] < 30
    assert 0 < answer["usage"]["input_tokens"] < 10
    unmarked = send(service, "messages", body("messages", [user(LONG)]))
    assert figures("messages", unmarked)[1:3] == (0, 0)


def test_anthropic_ignores_a_breakpoint_below_the_minimum(service: Client) -> None:
    """A breakpoint after too few tokens is no error, but caches nothing."""
    for _ in range(2):
        answer = send(service, "messages", body("messages", [user("Hi.", **MARK)]))
        assert figures("messages", answer)[1:3] == (0, 0)


@pytest.mark.parametrize(("between", "hit"), [(18, True), (19, True), (20, False)])
def test_anthropic_looks_back_twenty_blocks(between: int, hit: bool, service: Client) -> None:
    """An entry more than 20 blocks before the breakpoint is not found."""
    send(service, "messages", body("messages", [user(LONG, **MARK)]))
    more = [user(LONG), *(user(f"{n}") for n in range(between - 1)), user("end", **MARK)]
    assert bool(figures("messages", send(service, "messages", body("messages", more)))[1]) is hit


def test_anthropic_options_invalidate_only_the_messages(service: Client) -> None:
    """Another tool choice keeps the entry of the system prompt and invalidates that of the messages."""
    base: Json = {"system": [{"type": "text", "text": LONG, **MARK}]}
    send(service, "messages", body("messages", [user(LONG, **MARK)], **base))
    other = body("messages", [user(LONG, **MARK)], tool_choice={"type": "any"}, **base)
    _, read, written, _ = figures("messages", send(service, "messages", other))
    assert read > 1024
    assert written > 1024


def test_anthropic_reports_lifetimes_separately(service: Client) -> None:
    """Writes for one hour and for five minutes have separate fields."""
    talk = [user(LONG, **HOUR), user(LONG, **MARK)]
    usage = send(service, "messages", body("messages", talk))["usage"]["cache_creation"]
    assert usage["ephemeral_1h_input_tokens"] > usage["ephemeral_5m_input_tokens"] > 1024


def test_entries_expire_after_their_last_use() -> None:
    """An entry expires five minutes after its last use."""
    now = [0.0]
    cache = Cache(lambda: now[0])
    segments = [Segment("x" * 100, 2000, "5m")]
    assert cache.marked("s", segments, 1024).write == 2000
    for now[0], read in ((299.0, 2000), (598.0, 2000), (899.0, 0)):
        assert cache.marked("s", segments, 1024).read == read


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_bill_is_the_sum_of_the_usage(protocol: Protocol) -> None:
    """A client that computes costs from the reported usage gets exactly the server's total."""
    prices = Prices(input="2", output="8", read="0.5", write="2.5", write_1h="4")
    with WireServer(always("An answer."), model=Model(prices=prices)) as server, client(server, protocol) as made:
        total = Decimal(0)
        for _ in range(3):
            talk = [user(LONG, **MARK)] if protocol == "messages" else LONG
            every, read, written, output = figures(protocol, send(made, protocol, body(protocol, talk)))
            fresh = every - read - written
            total += (fresh * 2 + read * Decimal("0.5") + written * Decimal("2.5") + output * 8) / 1_000_000
        assert server.account.total == total == server.account.by_model["m"]
        assert server.account.usage.read > 2000
        assert server.account.undelivered == 0


WINDOW = {
    "chat": "This model's maximum context length is 500 tokens. However, your messages resulted in",
    "responses": "Your input exceeds the context window of this model.",
    "messages": "prompt is too long: ",
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_prompt_beyond_the_window_is_refused(protocol: Protocol) -> None:
    """The message is the service's, with the counted tokens."""
    with WireServer(model=Model(window=500)) as server, client(server, protocol) as made:
        with pytest.raises((openai.BadRequestError, anthropic.BadRequestError)) as caught:
            send(made, protocol, body(protocol, LONG))
        failure = caught.value
        assert isinstance(failure, openai.BadRequestError | anthropic.BadRequestError)
        assert WINDOW[protocol] in failure.message
        assert server.refused[0].rule == "window"
        if protocol == "messages":
            assert "tokens > 500 maximum" in failure.message
        else:
            assert getattr(failure, "code", None) == "context_length_exceeded"


def test_the_output_must_fit_beside_the_prompt() -> None:
    """Chat and classic Anthropic count the requested output as well."""
    with WireServer(model=Model(window=2500)) as server:
        with client(server, "chat") as made, pytest.raises(openai.BadRequestError, match="in the completion"):
            send(made, "chat", body("chat", LONG, max_tokens=1000))
        with client(server, "messages") as made, pytest.raises(anthropic.BadRequestError, match="exceed context limit"):
            send(made, "messages", body("messages", LONG))


def test_an_answer_ends_at_the_output_limit() -> None:
    """A longer text is cut, with the finish reason for it."""
    with WireServer(always(LONG)) as server:
        with client(server, "chat") as made:
            choice = send(made, "chat", body("chat", "Go.", max_tokens=50))["choices"][0]
            assert (choice["finish_reason"], len(choice["message"]["content"]) < 400) == ("length", True)
        with client(server, "messages") as made:
            warm = send(made, "messages", body("messages", "Go.", max_tokens=0))
            assert (warm["stop_reason"], warm["content"]) == ("max_tokens", [])
