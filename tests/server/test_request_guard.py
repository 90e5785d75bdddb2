"""Foreign hosts, other web sites, missing tokens and scopes are refused on every route."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from crew import Agent, Crew, CrewExecutor, ScriptedProvider
from crew.errors import DefinitionError
from crew.server import Principal, ServerSettings, Token, app
from crew.server.authentication import COOKIE
from tests.support.http_service import SECRET, bearer, client_of, secret_of, token

ROUTES = [
    ("GET", "/runs"),
    ("POST", "/runs"),
    ("GET", "/runs/x"),
    ("DELETE", "/runs/x"),
    ("GET", "/runs/x/events"),
    ("GET", "/runs/x/transcript"),
    ("POST", "/runs/x/answers"),
    ("GET", "/conversations"),
    ("GET", "/conversations/x"),
    ("GET", "/crew"),
    ("GET", "/metrics"),
    ("GET", "/openapi.json"),
    ("GET", "/no-such-path"),
]


def greeter() -> CrewExecutor:
    return CrewExecutor(Agent("greeter", model=ScriptedProvider(lambda request: "Hello.")))


@pytest.mark.parametrize(("method", "path"), ROUTES)
async def test_each_route_needs_a_token_a_known_host_and_no_foreign_origin(method: str, path: str) -> None:
    """The checks come before the route: also unknown paths answer them alike."""
    async with client_of(greeter(), headers={}) as client:
        assert (await client.request(method, path)).status_code == 401
        assert (await client.request(method, path, headers=bearer("wrong-secret-012345"))).status_code == 401
        rebound = await client.request(method, path, headers=bearer() | {"Host": "attacker.example"})
        assert (rebound.status_code, rebound.json()["error"]["type"]) == (421, "foreign_host")
        foreign = await client.request(method, path, headers=bearer() | {"Origin": "https://attacker.example"})
        assert (foreign.status_code, foreign.json()["error"]["type"]) == (403, "foreign_origin")
        null = await client.request(method, path, headers=bearer() | {"Origin": "null"})
        assert null.status_code == 403
        site = await client.request(method, path, headers=bearer() | {"Sec-Fetch-Site": "cross-site"})
        assert site.status_code == 403


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:8000", 200),
        ("127.0.0.1:1", 200),
        ("[::1]:8000", 200),
        ("localhost.attacker.example", 421),
        ("127.0.0.1.nip.example", 421),
        ("", 421),
        ("[::1", 421),
        ("localhost:8000:8000", 421),
    ],
)
async def test_the_host_is_compared_as_a_whole(host: str, status: int) -> None:
    """A name that begins with an allowed one is another host."""
    async with client_of(greeter()) as client:
        assert (await client.get("/runs", headers={"Host": host})).status_code == status


async def test_hosts_and_origins_can_be_allowed() -> None:
    """A listed origin gets CORS headers, also on its preflight request; others get none."""
    origin = "https://chat.example"

    async with client_of(greeter(), allow_hosts=("crew.example",), allow_origins=(origin,)) as client:
        headers = {"Host": "crew.example", "Origin": origin, "Sec-Fetch-Site": "cross-site"}
        answer = await client.get("/runs", headers=headers)
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, origin)
        assert "Origin" in answer.headers["vary"]
        preflight = await client.options("/runs", headers=headers | {"Access-Control-Request-Method": "POST"})
        assert (preflight.status_code, preflight.headers["access-control-allow-origin"]) == (204, origin)
        assert "last-event-id" in preflight.headers["access-control-allow-headers"]
        own = await client.get("/runs", headers={"Origin": "http://localhost"})
        assert (own.status_code, "access-control-allow-origin" in own.headers) == (200, False)


async def test_a_listed_origin_sends_its_headers_and_reads_those_of_the_service() -> None:
    """Client libraries add headers of their own; a page needs the id of a run, its address, and whether and when to
    try again.
    """
    origin, asked = {"Origin": "https://chat.example"}, "authorization,content-type,x-stainless-os"
    ask = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": asked}

    async with client_of(greeter(), allow_origins=(origin["Origin"],)) as client:
        preflight = await client.options("/v1/chat/completions", headers=origin | ask)
        assert (preflight.status_code, preflight.headers["access-control-allow-headers"]) == (204, asked)
        body = {"model": "greeter", "messages": [{"role": "user", "content": "Hi"}]}
        answer = await client.post("/v1/chat/completions", json=body, headers=origin)
        shown = answer.headers["access-control-expose-headers"].split(", ")
        assert shown == ["X-Crew-Run", "Location", "Retry-After", "X-Should-Retry"]
        foreign = await client.options("/runs", headers=ask | {"Origin": "https://attacker.example"})
        assert (foreign.status_code, "access-control-allow-headers" in foreign.headers) == (403, False)


async def test_answers_have_security_headers() -> None:
    """Nothing may be sniffed, framed, cached, or loaded by another site."""
    async with client_of(greeter()) as client:
        for path in ("/runs", "/healthz", "/no-such-path"):
            headers = (await client.get(path)).headers
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["content-security-policy"].startswith("default-src 'none'; frame-ancestors 'none'")
            assert (headers["cache-control"], headers["referrer-policy"]) == ("no-store", "no-referrer")
            assert headers["cross-origin-resource-policy"] == "same-origin"


async def test_a_link_is_exchanged_once_for_a_cookie() -> None:
    """The cookie is HttpOnly and strict; the link is not valid a second time; the token is not in the new address."""
    made = app(greeter(), ServerSettings(tokens=(Token.of(SECRET),)))
    made.state.crew.tokens.add_link("once", Token.of(SECRET))

    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(made), base_url="http://localhost") as client:
        page = await client.get("/?token=once&view=runs")
        cookie = page.headers["set-cookie"]
        assert all(part in cookie for part in (f"{COOKIE}=", "HttpOnly", "SameSite=strict", "Path=/"))
        assert "url=?view=runs" in page.text
        assert "once" not in page.text
        assert (await client.get("/runs")).status_code == 200
        assert (await client.post("/runs", json={"input": "Hi"})).status_code == 403, "no Origin: it may be forged"
        assert (await client.post("/runs", json={"input": "Hi"}, headers={"Origin": "http://localhost"})).is_success
        client.cookies.clear()
        assert (await client.get("/?token=once")).status_code == 401
        assert (await client.get("/runs")).status_code == 401


async def test_a_link_that_is_opened_again_in_the_same_browser_loads_the_page() -> None:
    """A terminal shows the link as long as the service runs, and people click it again."""
    made = app(greeter(), ServerSettings(tokens=(Token.of(SECRET),)))
    made.state.crew.tokens.add_link("once", Token.of(SECRET))

    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(made), base_url="http://localhost") as client:
        await client.get("/?token=once")
        again = await client.get("/?token=once&view=runs")
        assert (again.status_code, "set-cookie" in again.headers) == (200, False)
        assert "url=?view=runs" in again.text


PAGE = {"Accept": "text/html,*/*"}
OWN = {"Origin": "http://localhost", "Content-Type": "application/x-www-form-urlencoded"}


async def test_a_browser_without_a_cookie_can_sign_in_with_a_token() -> None:
    """The page asks for a token and then opens the address that was asked for; programs get JSON."""
    async with client_of(greeter(), headers={}) as client:
        refused = await client.get("/runs/r%22%3E1", headers=PAGE)
        assert (refused.status_code, refused.headers["content-type"]) == (401, "text/html; charset=utf-8")
        assert 'action="/sign-in"' in refused.text
        assert 'name="path" value="/runs/r%22%3E1"' in refused.text
        assert (await client.get("/runs")).json()["error"]["type"] == "unauthenticated"
        wrong = await client.post("/sign-in", content="token=wrong&path=/runs/r1", headers=OWN | PAGE)
        assert (wrong.status_code, "set-cookie" in wrong.headers) == (401, False)
        assert "The token is not valid for this service." in wrong.text
        done = await client.post("/sign-in", content=f"token={SECRET}&path=/runs/r1", headers=OWN | PAGE)
        assert done.status_code == 200
        assert "url=/runs/r1" in done.text
        assert all(part in done.headers["set-cookie"] for part in ("HttpOnly", "SameSite=strict"))
        assert (await client.get("/runs")).status_code == 200


@pytest.mark.parametrize("path", ["//evil.example", "/\\evil.example", "https://evil.example", "/%09/evil.example", ""])
async def test_signing_in_opens_only_paths_of_this_service(path: str) -> None:
    """The form of another site can't choose where the browser goes; such a form is refused anyway."""
    async with client_of(greeter(), headers={}) as client:
        body = f"token={SECRET}&path={path}"
        done = await client.post("/sign-in", content=body, headers=OWN)
        assert 'url=/"' in done.text
        foreign = await client.post("/sign-in", content=body, headers=OWN | {"Origin": "https://evil.example"})
        assert (foreign.status_code, "set-cookie" in foreign.headers) == (403, False)


async def chunks(text: bytes, count: int) -> AsyncIterator[bytes]:
    """A body of unknown length."""
    for _ in range(count):
        yield text


@pytest.mark.parametrize(
    ("content", "status", "type"),
    [
        (b"a=1&" * 10_000, 413, "body_too_large"),
        (chunks(b"a=1&" * 100, 15_000), 413, "body_too_large"),
        (b"a=1&" * 100, 400, "invalid_input"),
        (b"\xff\xfe%zz", 401, "unauthenticated"),
    ],
)
async def test_anyone_may_send_the_form_so_it_is_small(content: Any, status: int, type: str) -> None:
    """Larger forms are refused before they are parsed, which would stop the whole service for seconds."""
    async with client_of(greeter(), headers={}) as client:
        answer = await client.post("/sign-in", content=content, headers=OWN)
        assert (answer.status_code, answer.json()["error"]["type"]) == (status, type)


async def test_a_form_that_is_too_slow_is_refused() -> None:
    """As other bodies are."""

    async def never() -> AsyncIterator[bytes]:
        yield b"token="
        await asyncio.Event().wait()

    async with client_of(greeter(), headers={}, body_seconds=0.05) as client:
        answer = await client.post("/sign-in", content=never(), headers=OWN)
        assert (answer.status_code, answer.json()["error"]["type"]) == (408, "body_timeout")


async def test_only_a_principal_that_sees_all_reads_instructions_in_the_graph() -> None:
    """An agent without a description has the first line of its instructions as its purpose."""
    secret = Agent("secret", instructions="The discount limit is 37 percent.", model=ScriptedProvider(), routes=[])
    plain = Agent("plain", instructions="Hidden.", description="Greets people.", model=ScriptedProvider(), then=secret)
    executor = CrewExecutor(Crew("shop", agents=[plain, secret]))

    async with client_of(executor, headers={}, tokens=(token("reader", "read"), Token.of(SECRET))) as client:
        shown = await client.get("/crew", headers=bearer(secret_of("reader")))
        assert "37 percent" not in shown.text
        assert [node["purpose"] for node in shown.json()["crews"][0]["nodes"]] == ["Greets people.", ""]
        assert "37 percent" in (await client.get("/crew", headers=bearer())).text


async def test_a_token_needs_the_scope_of_the_route() -> None:
    """run, read and approve are separate rights."""
    tokens = tuple(token(name, name) for name in ("run", "read", "approve"))

    async with client_of(greeter(), headers={}, tokens=tokens) as client:
        for scope in ("run", "read", "approve"):
            headers = bearer(secret_of(scope))
            started = await client.post("/runs", json={"input": "Hi"}, headers=headers)
            listed = await client.get("/runs", headers=headers)
            answered = await client.post("/runs/x/answers", json={}, headers=headers)
            statuses = (started.status_code, listed.status_code, answered.status_code)
            assert statuses == {"run": (201, 403, 403), "read": (403, 200, 403), "approve": (403, 403, 404)}[scope]


async def test_a_function_can_find_the_principal() -> None:
    """`authenticate` replaces tokens; sync or async."""

    async def authenticate(connection: object) -> Principal | None:
        name = connection.headers.get("x-user")  # type: ignore[attr-defined]
        return Principal(name=name, scopes=frozenset({"read"})) if name else None

    async with client_of(greeter(), headers={}, tokens=(), authenticate=authenticate) as client:
        assert (await client.get("/runs")).status_code == 401
        assert (await client.get("/runs", headers={"X-User": "anna"})).status_code == 200
        assert (await client.post("/runs", headers={"X-User": "anna"}, json={"input": "Hi"})).status_code == 403


async def test_a_function_that_raises_is_an_answer_without_its_text() -> None:
    """The error of `authenticate` may hold a secret; the answer has the security headers."""

    def authenticate(connection: object) -> Principal | None:
        raise ValueError("the password is hunter22")

    async with client_of(greeter(), headers={}, tokens=(), authenticate=authenticate) as client:
        answer = await client.get("/runs")
        assert (answer.status_code, answer.json()["error"]["type"]) == (500, "internal_error")
        assert "hunter22" not in answer.text
        assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    "settings", [{"insecure_no_token": True}, {"authenticate": lambda connection: Principal(name="anna")}]
)
async def test_a_link_of_another_start_opens_a_page_that_needs_no_token(settings: dict[str, Any]) -> None:
    """Bookmarks keep the token of a link; a service without tokens ignores it."""
    async with client_of(greeter(), headers={}, tokens=(), **settings) as client:
        assert (await client.get("/?token=stale", headers=PAGE)).status_code == 200


async def test_the_application_can_be_mounted_under_a_prefix() -> None:
    """Paths, the location of a run and the path of the cookie have the prefix."""
    made = app(greeter(), ServerSettings(tokens=(Token.of(SECRET),)))
    made.state.crew.tokens.add_link("once", Token.of(SECRET))
    outer = Starlette(routes=[Mount("/crews", made)])

    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(outer), base_url="http://localhost") as client:
        assert (await client.get("/crews/healthz")).text == "ok\n"
        started = await client.post("/crews/runs", json={"input": "Hi"}, headers=bearer())
        assert started.headers["location"].startswith("/crews/runs/")
        assert (await client.get(started.headers["location"], headers=bearer())).status_code == 200
        assert "Path=/crews" in (await client.get("/crews/?token=once")).headers["set-cookie"]
        document = (await client.get("/crews/openapi.json", headers=bearer())).json()
        assert document["servers"] == [{"url": "/crews"}]


def test_a_service_without_authentication_is_refused() -> None:
    """It has to be asked for."""
    with pytest.raises(DefinitionError, match="nothing authenticates requests"):
        ServerSettings()

    with pytest.raises(DefinitionError, match="at least 16 characters"):
        Token.of("short")

    # By a DNS entry that changes, every web site could call a service that accepts all hosts and needs no token.
    with pytest.raises(DefinitionError, match="needs tokens"):
        ServerSettings(insecure_no_token=True, allow_hosts=("*",))


def test_executors_must_share_a_store() -> None:
    """Runs are found by their id in one store."""
    with pytest.raises(DefinitionError, match="different stores"):
        app([greeter(), CrewExecutor(Agent("other", model=ScriptedProvider()))], ServerSettings(insecure_no_token=True))
