"""`app`: the service as an ASGI application, from its parts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from crew.errors import DefinitionError, abbreviate
from crew.executor import CrewExecutor
from crew.runs.interfaces import RunHolder, RunReader
from crew.server.access import TokenTable
from crew.server.ag_ui import ag_ui_routes
from crew.server.authentication import Authentication
from crew.server.body_limits import BodyLimits
from crew.server.chat_completions import openai_routes
from crew.server.crew_graph import crew_routes
from crew.server.http_errors import error_response
from crew.server.hub import RunHub
from crew.server.inspector_routes import inspector_routes
from crew.server.openapi import openapi_route
from crew.server.prometheus import metric_routes
from crew.server.request_guard import RequestGuard
from crew.server.routing import RouteFactory
from crew.server.runs_api import run_routes
from crew.server.server_context import ServerContext
from crew.server.server_settings import ServerSettings
from crew.server.sign_in import sign_in_route

ROUTES: tuple[RouteFactory, ...] = (
    inspector_routes,
    run_routes,
    crew_routes,
    metric_routes,
    openai_routes,
    ag_ui_routes,
)
"""The functions that make the routes of the service; the first route that matches a request answers it."""


def app(executors: CrewExecutor | Sequence[CrewExecutor], settings: ServerSettings) -> Starlette:
    """The service of one or several crews, which can be mounted in another ASGI application.

    The executors share one store object. The lifespan of the application ends with them: their runs stop and stay
    resumable. An application that mounts this one closes the executors in its own lifespan.
    """
    return build_app(create_context(executors, settings))


def create_context(executors: CrewExecutor | Sequence[CrewExecutor], settings: ServerSettings) -> ServerContext:
    """The parts of a service for these executors."""
    given = [*executors] if isinstance(executors, Sequence) else [executors]
    wrong: list[object] = [executor for executor in given if not isinstance(executor, CrewExecutor)]

    if wrong:
        text = f"expected a CrewExecutor, or a list of them, not {abbreviate(wrong[0])}; pass CrewExecutor(crew)"
        raise DefinitionError("crew.server.app", text)

    by_name = {executor.plan.crew.name: executor for executor in given}
    problems = []

    if not given:
        problems.append("no executor: pass a CrewExecutor, or a list of them")

    if len(by_name) < len(given):
        problems.append("two executors have crews of the same name; each crew needs its own")

    if len({id(executor.store) for executor in given}) > 1:
        problems.append(
            "the executors have different stores: pass one store object to all, CrewExecutor(…, store=store)"
        )

    if problems:
        raise DefinitionError("crew.server.app", problems)

    store = given[0].store

    if not isinstance(store, RunReader):
        text = f"the store {type(store).__name__} can't be read: it has no methods of RunReader. Use SQLiteStore"
        raise DefinitionError("crew.server.app", text)

    hub = RunHub(settings.max_buffered_deltas, store.hold if isinstance(store, RunHolder) else None)
    tokens = TokenTable(settings.tokens)
    return ServerContext(executors=by_name, reader=store, hub=hub, settings=settings, tokens=tokens)


def build_app(context: ServerContext, routes: Sequence[RouteFactory] = ROUTES) -> Starlette:
    """The application with these routes."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await context.hub.aclose()

            for executor in context.executors.values():
                await executor.aclose()

    made: list[BaseRoute] = [
        Route("/healthz", _healthz),
        sign_in_route(context),
        *(route for make in routes for route in make(context)),
    ]
    made.append(openapi_route(context, made))
    application = Starlette(
        routes=made,
        middleware=[
            Middleware(RequestGuard, settings=context.settings),
            Middleware(Authentication, context=context),
            Middleware(BodyLimits, settings=context.settings),
        ],
        exception_handlers={HTTPException: _answer_http_exception},
        lifespan=lifespan,
    )
    application.state.crew = context
    return application


async def _healthz(request: Request) -> Response:
    return PlainTextResponse("ok\n")


async def _answer_http_exception(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    names = {404: "not_found", 405: "method_not_allowed"}
    allowed, root = (error.headers or {}).get("Allow", ""), request.scope.get("root_path", "")
    words = {
        404: f"There is no {abbreviate(request.url.path)}. GET {root}/openapi.json lists the routes.",
        405: f"{request.url.path} does not accept {request.method}; it accepts {allowed}.",
    }
    text = words.get(error.status_code, error.detail)
    return error_response(error.status_code, names.get(error.status_code, "http_error"), text, error.headers)
