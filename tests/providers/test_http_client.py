"""The direct HTTP client skips only work that no request needs."""

from __future__ import annotations

from aiohttp import web
from aiohttp.test_utils import TestServer

from crew.interfaces import ModelRequest
from crew.messages import UserMessage
from crew.providers import OpenAIChat

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
