"""Fixtures that send a body to a server of either era and check that it is accepted or rejected."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import anthropic
import openai
import pytest

from tests.wire.model import Era, Json, Model, Protocol
from tests.wire.sdk_calls import client, send
from tests.wire.server import WireServer

Refuses = Callable[..., None]
Accepts = Callable[..., Json]
PROTOCOLS: tuple[Protocol, ...] = ("chat", "responses", "messages")


@pytest.fixture(scope="session")
def accepts() -> Iterator[Accepts]:
    """Send a body and return the answer; any error is the SDK's exception."""
    with ExitStack() as stack:
        eras: tuple[Era, ...] = ("classic", "modern")
        servers = {era: stack.enter_context(WireServer(model=Model(era=era))) for era in eras}
        clients = {
            (era, protocol): stack.enter_context(client(servers[era], protocol))
            for era in servers
            for protocol in PROTOCOLS
        }

        def accept(protocol: Protocol, body: Json, era: Era = "classic") -> Json:
            return send(clients[era, protocol], protocol, body)

        yield accept


@pytest.fixture(scope="session")
def refuses(accepts: Accepts) -> Refuses:
    """Send a body that must be rejected with this message and, if given, this param and code."""

    def refuse(protocol: Protocol, body: Json, words: str, *, era: Era = "classic", **expected: str | None) -> None:
        with pytest.raises((openai.BadRequestError, anthropic.BadRequestError, openai.NotFoundError)) as caught:
            accepts(protocol, body, era)
        failure = caught.value
        assert isinstance(failure, openai.APIStatusError | anthropic.APIStatusError)
        error = failure.body
        assert isinstance(error, dict)
        error = error.get("error", error)
        assert words in error["message"]
        assert error["type"] == "invalid_request_error"
        assert failure.request_id
        assert {key: error[key] for key in expected} == expected

    return refuse
