"""`GET /openapi.json`: the OpenAPI document, built from the routes and the classes of their bodies and answers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from typing import Any

from pydantic import TypeAdapter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute

from crew.run_ids import RUN_ID_PATTERN
from crew.server.access import Principal
from crew.server.response_models import ErrorAnswer
from crew.server.routing import Operation, OperationRoute, route
from crew.server.server_context import ServerContext

REFERENCES = "#/components/schemas/{model}"
_PARAMETER = re.compile(r"{(\w+)}")


def openapi_route(context: ServerContext, routes: Iterable[BaseRoute]) -> BaseRoute:
    """The route of the document that describes these routes."""
    document: dict[str, Any] = {}

    async def read_openapi(request: Request, principal: Principal) -> Response:
        """This document."""
        if not document:
            document.update(openapi_document(routes))

        return JSONResponse(document | {"servers": [{"url": request.scope.get("root_path", "") or "/"}]})

    return route(context, "/openapi.json", read_openapi)


def openapi_document(routes: Iterable[BaseRoute]) -> dict[str, Any]:
    """The document; every route that was made with `route` is in it."""
    schemas: dict[str, Any] = {}
    paths: dict[str, dict[str, Any]] = {}
    used: set[str] = set()

    for one in routes:
        if isinstance(one, OperationRoute):
            for method in one.operation.methods:
                paths.setdefault(one.path, {})[method.lower()] = _operation(one.path, one.operation, schemas, used)

    return {
        "openapi": "3.1.0",
        "info": {"title": "Crew", "version": version("crew-executor")},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"bearer": []}],
    }


def _operation(path: str, operation: Operation, schemas: dict[str, Any], used: set[str]) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": _operation_id(path, operation, used),
        "summary": operation.summary,
        "parameters": [*_path_parameters(path), *_query_parameters(operation, schemas), *operation.headers],
        "responses": {
            str(operation.status): {"description": operation.summary, "content": _content(operation, schemas)},
            "4XX": {"description": "The request is refused.", "content": _json(ErrorAnswer, schemas)},
        },
        "security": [{"bearer": []}],
    }

    if operation.body is not None:
        described["requestBody"] = {"required": True, "content": _json(operation.body, schemas, "validation")}

    return described


def _operation_id(path: str, operation: Operation, used: set[str]) -> str:
    """The name of the endpoint; if another path has the same one, with the parameters of this path."""
    name = operation.name

    if name in used:
        name = "_by_".join([name, *_PARAMETER.findall(path)])

    used.add(name)
    return name


def _content(operation: Operation, schemas: dict[str, Any]) -> dict[str, Any]:
    content = _json(operation.answer, schemas) if operation.answer is not None else {}

    for media_type in operation.media_types:
        content[media_type] = {"schema": {"type": "string"}}

    return content or {"application/json": {}}


def _json(kind: Any, schemas: dict[str, Any], mode: Any = "serialization") -> dict[str, Any]:
    return {"application/json": {"schema": _schema(kind, schemas, mode)}}


def _schema(kind: Any, schemas: dict[str, Any], mode: Any) -> dict[str, Any]:
    """A reference to the schema of a class, which is added to the schemas of the document."""
    schema = TypeAdapter(kind).json_schema(mode=mode, ref_template=REFERENCES)
    schemas.update(schema.pop("$defs", {}))
    schemas[kind.__name__] = schema
    return {"$ref": REFERENCES.format(model=kind.__name__)}


def _path_parameters(path: str) -> Iterator[dict[str, Any]]:
    for name in _PARAMETER.findall(path):
        schema = {"type": "string", "pattern": f"^{RUN_ID_PATTERN}$"}
        yield {"name": name, "in": "path", "required": True, "schema": schema}


def _query_parameters(operation: Operation, schemas: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if operation.query is None:
        return

    schema = TypeAdapter(operation.query).json_schema(ref_template=REFERENCES)
    schemas.update(schema.pop("$defs", {}))

    for name, field in schema["properties"].items():
        yield {"name": name, "in": "query", "required": name in schema.get("required", []), "schema": field}
