"""Signs browsers in: by a link that is valid once, or by a form for a token; both become a cookie."""

from __future__ import annotations

import hashlib
import re
import secrets
from base64 import b64encode
from dataclasses import replace
from html import escape
from urllib.parse import parse_qs, parse_qsl, quote, urlencode

from starlette.middleware import Middleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import Scope

from crew.server.body_limits import BodyLimits
from crew.server.http_errors import HTTPError, error_response
from crew.server.routing import public
from crew.server.server_context import ServerContext

COOKIE = "crew_session"
SIGN_IN_PATH = "/sign-in"
MAX_FORM_BYTES, MAX_FORM_FIELDS = 16_384, 10
"""Anyone may send the form: reading it must cost little."""

TOKEN_REQUIRED = "A bearer token is required: Authorization: Bearer TOKEN."

_PATH = re.compile(r"/(?![/\\])[\x21-\x7e]*")
"""A path of this service: not `//host`, which is another one."""

STYLE = (
    ":root{color-scheme:light dark;--ink:light-dark(#171b21,#e8ebef);--dim:light-dark(#434b56,#b9c1cc);"
    "--line:light-dark(#c9cfd8,#3b4450);--bg:light-dark(#fff,#0f1216);--focus:light-dark(#0b57d0,#8ab4ff)}"
    "body{margin:0;background:var(--bg);color:var(--ink);font:14px/1.5 system-ui,sans-serif}"
    "main{max-width:26rem;margin:20vh auto 0;padding:0 1.25rem}"
    "h1{font-size:17px;font-weight:650;margin:0 0 .4rem}"
    "p,label{color:var(--dim);margin:0 0 1rem}label{display:block}"
    "input,button{font:inherit;color:inherit;height:36px;padding:0 .75rem;box-sizing:border-box;border-radius:5px;"
    "border:1px solid var(--line);background:var(--bg)}"
    "input{width:100%;margin:.4rem 0 .75rem}"
    "button{background:var(--ink);border-color:var(--ink);color:var(--bg);font-weight:600;cursor:pointer}"
    ":focus-visible{outline:2px solid var(--focus);outline-offset:1px}"
)
"""The colours and sizes of the inspector."""

_STYLE_HASH = b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
PAGE_POLICY = (
    f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)


def sign_in_route(context: ServerContext) -> BaseRoute:
    """The route that the form posts to."""

    async def sign_in(request: Request) -> Response:
        try:
            fields = parse_qs((await request.body()).decode("utf-8", "replace"), max_num_fields=MAX_FORM_FIELDS)
        except ValueError:
            raise HTTPError(400, "invalid_input", "The form has too many fields: send token and path.") from None

        secret, path = fields.get("token", [""])[0].strip(), fields.get("path", [""])[0]
        session = secrets.token_urlsafe(32)

        if not context.tokens.sign_in(secret, session):
            return refusal(context, request, "The token is not valid for this service.", path)

        is_here = _PATH.fullmatch(path) is not None
        return _signed_in(request.scope, session, path if is_here else f"{request.scope.get('root_path', '')}/")

    limits = replace(context.settings, max_body_bytes=min(MAX_FORM_BYTES, context.settings.max_body_bytes))
    middleware = [Middleware(BodyLimits, settings=limits)]
    return Route(SIGN_IN_PATH, public(context, sign_in), methods=["POST"], middleware=middleware)


def exchange_link(context: ServerContext, connection: HTTPConnection, link: str) -> Response:
    """Turn the one-time token of a URL into a cookie, and load the page again without it."""
    scope, session = connection.scope, secrets.token_urlsafe(32)
    query = [(name, value) for name, value in parse_qsl(scope["query_string"].decode("latin-1")) if name != "token"]

    if context.tokens.exchange(link, session):
        return _signed_in(scope, session, f"?{urlencode(query)}")

    if context.tokens.find_session(connection.cookies.get(COOKIE, "")) is not None:
        return _load(f"?{urlencode(query)}")  # the same browser opens the link again

    return refusal(context, connection, "This link was used before, or is not valid.")


def refusal(context: ServerContext, connection: HTTPConnection, text: str, path: str = "") -> Response:
    """The answer to a request without a valid token: for browsers a page that asks for one, for programs JSON."""
    challenge = {"WWW-Authenticate": "Bearer"}

    if "text/html" not in connection.headers.get("accept", ""):
        advice = " Restart `crew serve` for a new one." if "link" in text else ""
        return error_response(401, "unauthenticated", text + advice, challenge)

    # With the policy of other answers, no-referrer, a browser would post the form without its origin.
    headers = challenge | {"Content-Security-Policy": PAGE_POLICY, "Referrer-Policy": "same-origin"}
    words = "This address needs a token." if text == TOKEN_REQUIRED else text
    return HTMLResponse(_page(context, connection.scope, words, path), 401, headers)


def _page(context: ServerContext, scope: Scope, text: str, path: str) -> str:
    if context.settings.authenticate is not None:
        rest = ""
    elif not context.executors:
        rest = "<p>Start <code>crew inspect</code> again for a new link.</p>"
    else:
        rest = (
            f'<form method="post" action="{escape(scope.get("root_path", ""))}{SIGN_IN_PATH}">'
            f'<input type="hidden" name="path" value="{escape(path or quote(scope["path"]))}">'
            '<label for="token">A token of the service, which <code>crew serve</code> printed or was given:</label>'
            '<input id="token" name="token" type="password" autocomplete="current-password" autofocus required>'
            "<button>Sign in</button></form>"
        )

    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Crew: sign in</title>'
        f'<meta name="viewport" content="width=device-width,initial-scale=1"><style>{STYLE}</style>'
        f"<main><h1>Sign in to Crew</h1><p>{escape(text)}</p>{rest}</main></html>"
    )


def _signed_in(scope: Scope, session: str, path: str) -> Response:
    response = _load(path)
    response.set_cookie(
        COOKIE,
        session,
        path=scope.get("root_path", "") or "/",
        httponly=True,
        samesite="strict",
        secure=scope["scheme"] == "https",
    )
    return response


def _load(path: str) -> Response:
    """A page that loads a path of this service.

    Not a redirect: a browser would not send a strict cookie with the redirect of a link on another site.
    """
    return HTMLResponse(f'<!doctype html><meta http-equiv="refresh" content="0;url={escape(path)}"><title>Crew</title>')
