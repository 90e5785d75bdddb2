"""Reads bodies and queries of requests, and describes each mismatch: its field, its value and what is accepted."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from starlette.requests import Request

from crew.errors import InvalidInput, Violation, abbreviate, suggest
from crew.run_ids import RUN_ID_PATTERN
from crew.server.http_errors import HTTPError
from crew.server.request_models import CURSOR_PATTERN
from crew.settings import problem_text

Model = TypeVar("Model", bound=BaseModel)

PATTERNS = {
    f"^{RUN_ID_PATTERN}$": "must have 1–128 characters A–Z a–z 0–9 _ . : -",
    CURSOR_PATTERN: "must be the id of an event, such as 12.0",
}
JSON_TYPES = {
    "bool_parsing": "must be true or false",
    "dict_type": "must be an object",
    "float_parsing": "must be a number",
    "int_parsing": "must be an integer",
    "model_type": "must be an object",
}


async def read_body(request: Request, model: type[Model]) -> Model:
    """The body of a request as this model; `HTTPError` 422 with all violations if it does not match."""
    body = await request.body()

    if not body.strip():
        raise _invalid([{"rule": "json_invalid", "text": "the body is empty; a JSON object is required", "field": ""}])

    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise invalid_request(error, model) from error


def read_query(request: Request, model: type[Model]) -> Model:
    """The query of a request as this model; `HTTPError` 422 with all violations if it does not match."""
    try:
        return model.model_validate(dict(request.query_params))
    except ValidationError as error:
        raise invalid_request(error, model) from error


def invalid_request(error: ValidationError, model: type[BaseModel] | None = None) -> HTTPError:
    """The answer to a request that does not match; `model` gives the keys that may have been meant."""
    return _invalid(
        [
            {"rule": found["type"], "text": _text(found, model), "field": _name(found)}
            for found in error.errors(include_url=False)
        ]
    )


def _invalid(violations: Sequence[dict[str, str]]) -> HTTPError:
    # The message names every problem: many clients show nothing else.
    listed = InvalidInput([Violation(rule=one["rule"], text=one["text"]) for one in violations])
    return HTTPError(422, "invalid_input", str(listed), violations=violations)


def _name(found: ErrorDetails) -> str:
    return ".".join(map(str, found["loc"]))


def _text(found: ErrorDetails, model: type[BaseModel] | None) -> str:
    value, kind = abbreviate(found["input"]), found["type"]

    if kind == "json_invalid":
        return f"the body is not valid JSON: {found['ctx']['error']}"

    if kind in ("extra_forbidden", "unexpected_keyword_argument"):
        return f"{_name(found)} is not a known key. {suggest(str(found['loc'][-1]), _known_keys(found, model))}"

    if kind == "string_pattern_mismatch" and (words := PATTERNS.get(found["ctx"]["pattern"])):
        return f"{_name(found)} {words}, not {value}"

    if kind == "too_short":
        return f"{_name(found)} must have at least {found['ctx']['min_length']} items, not {value}"

    if words := JSON_TYPES.get(kind):
        return f"{_name(found) or 'the body'} {words}, not {value}"

    return problem_text(found)


def _known_keys(found: ErrorDetails, model: type[BaseModel] | None) -> list[str]:
    """The keys of the object that has an unknown one: the whole request, or the value of one of its fields."""
    kind: Any = model

    for part in found["loc"][:-1]:
        annotation = kind.model_fields[part].annotation if _is_model(kind) and part in kind.model_fields else None
        kind = next((one for one in (annotation, *get_args(annotation)) if _has_fields(one)), None)

    if _is_model(kind):
        return [field.alias or name for name, field in kind.model_fields.items()]

    return [field.name for field in dataclasses.fields(kind)] if _has_fields(kind) else []


def _is_model(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _has_fields(kind: object) -> bool:
    return isinstance(kind, type) and (dataclasses.is_dataclass(kind) or issubclass(kind, BaseModel))
