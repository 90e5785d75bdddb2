"""The direct HTTP client skips only work that no request needs."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from typing import get_args

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from crew.errors import ProviderError
from crew.interfaces import ModelRequest
from crew.messages import UserMessage
from crew.providers import OpenAIChat
from crew.providers.sdk_clients import openai_client
from tests.support.remote_providers import KEY, PROTOCOLS, provider
from tests.wire import Fault, Protocol, WireServer
from tests.wire.faults import Kind, StatusKind

REPLY = {
    "id": "r",
    "model": "gpt-5",
    "choices": [{"finish_reason": "stop", "message": {"role": "assistant", "content": "Here."}}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 1},
}


async def test_a_redirect_is_followed() -> None:
    """With the same body, as the SDK's own client does."""
    bodies: list[bytes] = []

    async def moved(request: web.Request) -> web.Response:
        raise web.HTTPTemporaryRedirect("/new/chat/completions")

    async def here(request: web.Request) -> web.Response:
        bodies.append(await request.read())
        return web.json_response(REPLY)

    app = web.Application()
    app.router.add_post("/old/chat/completions", moved)
    app.router.add_post("/new/chat/completions", here)

    async with TestServer(app) as server:
        model = OpenAIChat("gpt-5", base_url=str(server.make_url("/old")), api_key="k")
        reply = await model.complete(ModelRequest(messages=(UserMessage("Where?"),)))
        await model.aclose()

    assert reply.text == "Here."
    assert len(bodies) == 1
    assert b"Where?" in bodies[0]


async def test_a_compressed_answer_is_decoded() -> None:
    """Content-Encoding is handled as in the SDK's own client."""

    async def squeezed(request: web.Request) -> web.Response:
        answer = web.json_response(REPLY)
        answer.enable_compression(web.ContentCoding.gzip)
        return answer

    app = web.Application()
    app.router.add_post("/v1/chat/completions", squeezed)

    async with TestServer(app) as server:
        model = OpenAIChat("gpt-5", base_url=str(server.make_url("/v1")), api_key="k")
        reply = await model.complete(ModelRequest(messages=(UserMessage("Where?"),)))
        await model.aclose()

    assert reply.text == "Here."


def headers_without_length(server: WireServer) -> list[dict[str, str]]:
    return [{k: v for k, v in request.headers.items() if k != "content-length"} for request in server.requests]


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_every_request_has_the_headers_of_the_sdk(protocol: Protocol, monkeypatch: pytest.MonkeyPatch) -> None:
    """Key, organization, project and the SDK's own headers, in its first request and in all others."""
    monkeypatch.setenv("OPENAI_ORG_ID", "org-7")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "proj-8")

    async with WireServer() as server:
        asked = provider(server, protocol)

        for text in ("Hello", "Hello again", "Hello for the third time", "Good bye"):
            await asked.complete(ModelRequest(messages=(UserMessage(text),)))

        await asked.aclose()  # type: ignore[attr-defined]

    first, *others = headers_without_length(server)
    assert others == [first] * 3
    assert KEY in (first.get("x-api-key"), first.get("authorization", "").removeprefix("Bearer "))
    assert protocol == "messages" or (first["openai-organization"], first["openai-project"]) == ("org-7", "proj-8")


async def test_the_sdk_builds_two_requests_and_the_next_ones_reuse_their_head() -> None:
    """Building a request takes the SDK as long as the rest of a call."""
    async with WireServer() as server:
        sdk = openai_client(api_key=KEY, base_url=server.openai_url, timeout=5.0)
        built: list[object] = []
        build = sdk.http_client.build_request
        sdk.http_client.build_request = lambda **options: built.append(options) or build(**options)

        for number in range(5):
            text = f"question {number}"
            body = {"model": "gpt-5", "messages": [{"role": "user", "content": text}]}
            response = await sdk.post("/chat/completions", json.dumps(body).encode())
            assert response.json()["object"] == "chat.completion"
            assert server.requests[-1].body["messages"][-1]["content"] == text

        await sdk.client.close()

    assert len(built) == 2


async def test_a_header_that_changes_is_made_by_the_sdk_for_every_request() -> None:
    """Such as a signature or an idempotency key: no request reuses that of another."""
    async with WireServer() as server:
        sdk = openai_client(api_key=KEY, base_url=server.openai_url, timeout=5.0)
        build, numbers = sdk.http_client.build_request, itertools.count()

        def signed(*, headers: list[tuple[str, str]], **options: object) -> object:
            return build(headers=[*headers, ("x-signature", str(next(numbers)))], **options)

        sdk.http_client.build_request = signed
        body = b'{"model":"gpt-5","messages":[{"role":"user","content":"Hello"}]}'

        for _ in range(4):
            await sdk.post("/chat/completions", body)

        await sdk.client.close()

    assert [request.headers["x-signature"] for request in server.requests] == ["0", "1", "2", "3"]


def facts(error: ProviderError) -> tuple[object, ...]:
    """Everything about an error but the id of its request."""
    causes, cause = [], error.__cause__

    while cause is not None:
        causes.append((type(cause), re.sub(r"req_\w+|:\d+", "", str(cause))))
        cause = cause.__cause__

    return type(error), str(error), error.status, error.retry_after, bool(error.request_id), causes


@pytest.mark.parametrize("kind", [*get_args(StatusKind), "html_page", "reset", "hang", "not_http", "cut", "garbage"])
async def test_an_error_is_the_same_for_the_first_request_and_for_later_ones(kind: Kind) -> None:
    """Type, text, status, retry-after and causes; the protocols run at the same time, because a hanging one waits."""
    errors = await asyncio.gather(*(first_and_later_error(kind, protocol) for protocol in PROTOCOLS))

    for protocol, (first, later) in zip(PROTOCOLS, errors, strict=True):
        assert first == later, protocol


async def first_and_later_error(kind: Kind, protocol: Protocol) -> list[tuple[object, ...]]:
    """The errors of a provider's first and fourth request, which have the same fault."""
    fault = Fault(kind, retry_after="7" if kind == "rate_limited" else None)
    found = []

    async with WireServer(faults={0: fault, 3: fault}) as server:
        asked = provider(server, protocol, timeout=2.0 if kind == "hang" else 5.0)

        for _ in range(5):
            try:
                await asked.complete(ModelRequest(messages=(UserMessage("Hello"),)))
            except ProviderError as error:
                found.append(facts(error))

        await asked.aclose()  # type: ignore[attr-defined]

    return found
