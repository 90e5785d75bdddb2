"""How modules add routes to the service: a function of the `ServerContext` that returns routes made with `route`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypedDict, Unpack

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Scope as ASGIScope

from crew.run_ids import RUN_ID_RULE, is_run_id
from crew.server.access import Principal, Scope
from crew.server.error_answers import answer_error
from crew.server.http_errors import HTTPError
from crew.server.server_context import ServerContext

Endpoint: TypeAlias = Callable[[Request, Principal], Awaitable[Response]]
"""Answers a request of a principal that has the scope of the route. May raise any `CrewError` or `HTTPError`."""

RouteFactory: TypeAlias = Callable[[ServerContext], Sequence[BaseRoute]]


class Description(TypedDict, total=False):
    """The arguments of `route` for the OpenAPI document: see `Operation`."""

    body: type
    query: type
    answer: type
    status: int
    media_types: Sequence[str]
    headers: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """What the OpenAPI document states about a route.

    `body`, `query` and `answer` are classes. `media_types` are those of answers that are not JSON.
    """

    name: str
    summary: str
    methods: Sequence[str]
    body: type | None = None
    query: type | None = None
    answer: type | None = None
    status: int = 200
    media_types: Sequence[str] = ()
    headers: Sequence[Mapping[str, Any]] = ()


class OperationRoute(Route):
    """A route that the OpenAPI document describes."""

    operation: Operation


def route(
    context: ServerContext,
    path: str,
    endpoint: Endpoint,
    *,
    method: str = "GET",
    scope: Scope = "read",
    **described: Unpack[Description],
) -> Route:
    """A route for principals with this scope; errors of the endpoint become JSON answers.

    The OpenAPI document has its name and the first sentence of its docstring.
    """
    made = OperationRoute(path, checked(context, endpoint, scope), methods=[method])
    summary = (endpoint.__doc__ or "").split("\n")[0]
    made.operation = Operation(name=endpoint.__name__, summary=summary, methods=[method], **described)
    return made


def page_route(context: ServerContext, path: str, endpoint: Endpoint) -> Route:
    """A route for browsers that ask for HTML; other requests for the same path go to the next route."""
    return _PageRoute(path, checked(context, endpoint, "read"), methods=["GET"])


def checked(context: ServerContext, endpoint: Endpoint, scope: Scope) -> Callable[[Request], Awaitable[Response]]:
    """The endpoint behind the check of the scope."""
    return public(context, lambda request: endpoint(request, authorize(request, scope)))


def public(
    context: ServerContext, endpoint: Callable[[Request], Awaitable[Response]]
) -> Callable[[Request], Awaitable[Response]]:
    """An endpoint that needs no principal; its errors become JSON answers."""

    async def answer(request: Request) -> Response:
        try:
            return await endpoint(request)
        except Exception as error:  # the boundary to HTTP: every error becomes an answer without a stack trace
            return answer_error(context, error)

    return answer


def authorize(request: Request, scope: Scope) -> Principal:
    """The principal of a request, if its token has this scope."""
    principal: Principal | None = request.scope.get("crew.principal")

    if principal is None:
        raise HTTPError(401, "unauthenticated", "A bearer token is required.", headers={"WWW-Authenticate": "Bearer"})

    if not principal.may(scope):
        raise HTTPError(403, "forbidden", f"The token lacks the scope {scope!r}.", scope=scope)

    return principal


class _PageRoute(Route):
    def matches(self, scope: ASGIScope) -> tuple[Match, ASGIScope]:
        if scope["type"] != "http":
            return Match.NONE, {}

        accepted = next((value for name, value in scope["headers"] if name == b"accept"), b"")
        return super().matches(scope) if b"text/html" in accepted else (Match.NONE, {})


def path_id(request: Request, name: str = "run_id") -> str:
    """The id in the path, which follows the rule for run ids."""
    value: str = request.path_params[name]

    if not is_run_id(value):
        raise HTTPError(404, "not_found", f"Ids have {RUN_ID_RULE}.")

    return value
