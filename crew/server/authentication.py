"""Finds the principal of every request by its bearer token or its cookie; without one, only public paths answer."""

from __future__ import annotations

from inspect import isawaitable

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from crew.server.access import Principal
from crew.server.error_answers import answer_error
from crew.server.server_context import ServerContext
from crew.server.sign_in import COOKIE, SIGN_IN_PATH, TOKEN_REQUIRED, exchange_link, refusal

PUBLIC_PATHS = frozenset({"/healthz", SIGN_IN_PATH})


class Authentication:
    """ASGI middleware that sets `crew.principal` in the scope of a request, or answers it with 401."""

    def __init__(self, app: ASGIApp, context: ServerContext) -> None:
        self._app, self._context = app, context
        # Without tokens there are no links: `token` in a query has no meaning.
        self._needs_token = not context.settings.insecure_no_token and context.settings.authenticate is None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await (self._app(scope, receive, send) if scope["type"] == "lifespan" else _refuse_websocket(send))
            return

        connection = HTTPConnection(scope)
        path = scope["path"].removeprefix(scope.get("root_path", "")) or "/"

        if path in PUBLIC_PATHS:
            await self._app(scope, receive, send)
            return

        is_page = scope["method"] == "GET" and "authorization" not in connection.headers

        if is_page and self._needs_token and (link := connection.query_params.get("token")):
            await exchange_link(self._context, connection, link)(scope, receive, send)
            return

        try:
            principal = await self._principal(connection)
        except Exception as error:  # the boundary to the function `authenticate`: an answer without a stack trace
            await answer_error(self._context, error)(scope, receive, send)
            return

        if principal is None:
            await refusal(self._context, connection, self._problem(connection))(scope, receive, send)
            return

        scope["crew.principal"] = principal
        await self._app(scope, receive, send)

    async def _principal(self, connection: HTTPConnection) -> Principal | None:
        settings = self._context.settings

        if settings.authenticate is not None:
            found = settings.authenticate(connection)
            return await found if isawaitable(found) else found

        scheme, _, secret = connection.headers.get("authorization", "").partition(" ")

        if scheme.lower() == "bearer":
            return self._context.tokens.find(secret.strip())

        if (cookie := connection.cookies.get(COOKIE)) and (found := self._context.tokens.find_session(cookie)):
            return found

        return Principal(name="operator") if settings.insecure_no_token else None

    def _problem(self, connection: HTTPConnection) -> str:
        if self._context.settings.authenticate is not None:
            return "The request is not authenticated."

        if connection.headers.get("authorization", "").lower().startswith("bearer "):
            return "The bearer token is not valid for this service."

        return TOKEN_REQUIRED


async def _refuse_websocket(send: Send) -> None:
    await send({"type": "websocket.close", "code": 1008})
