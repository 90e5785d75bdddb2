"""From a function's signature and docstring to what the model is told, and from its arguments back to values."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_origin

import docstring_parser
from pydantic import BaseModel, ConfigDict, Field, PydanticUserError, ValidationError, create_model
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticSchemaGenerationError

from crew.errors import DefinitionError
from crew.interfaces import ToolSpec
from crew.tools.context import Context


class InvalidArguments(ValueError):
    """The model's arguments do not fit; the text is for the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """What a function takes: from the model, and from us."""

    spec: ToolSpec
    arguments_model: type[BaseModel]
    parameter_names: tuple[str, ...]
    context_parameter: str | None

    def parse_arguments(self, arguments: str) -> dict[str, Any]:
        """Keyword arguments out of the model's JSON text, or `ArgumentsRefused` in words for the model."""
        try:
            parsed = self.arguments_model.model_validate_json(arguments.strip() or "{}")
        except ValidationError as error:
            raise InvalidArguments(_explain(error)) from error

        # What the model left out is left out of the call too: the function's own default applies.
        return {
            name: getattr(parsed, f"a{i}")
            for i, name in enumerate(self.parameter_names)
            if f"a{i}" in parsed.model_fields_set
        }


def read_signature(function: Callable[..., Any], name: str, description: str | None) -> Signature:
    """Read a function once."""
    try:
        parameters = inspect.signature(function, eval_str=True).parameters
    except (NameError, TypeError, ValueError) as error:
        raise DefinitionError(f"Tool {name!r}", f"its signature can't be read: {error}") from error

    doc = docstring_parser.parse(inspect.getdoc(function) or "")
    told = {param.arg_name: param.description for param in doc.params}
    context: str | None = None
    fields: dict[str, Any] = {}
    names: list[str] = []

    for parameter in parameters.values():
        if parameter.annotation is Context or get_origin(parameter.annotation) is Context:
            context = parameter.name
            continue

        # Fields have neutral names and the real ones as aliases: `json`, `copy` or `_x` would collide with pydantic's.
        fields[f"a{len(names)}"] = _field(parameter, told.get(parameter.name), name)
        names.append(parameter.name)

    model, schema = _arguments_model(name, fields)
    words = (
        description
        if description is not None
        else "\n\n".join(filter(None, (doc.short_description, doc.long_description)))
    )
    spec = ToolSpec(name=name, description=words, parameters=schema)
    return Signature(spec=spec, arguments_model=model, parameter_names=tuple(names), context_parameter=context)


def _field(parameter: inspect.Parameter, description: str | None, tool: str) -> tuple[Any, Any]:
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
        raise DefinitionError(
            f"Tool {tool!r}", f"the parameter {str(parameter)!r} can't be named by a model; give each parameter a name"
        )

    annotation = Any if parameter.annotation is parameter.empty else parameter.annotation
    default = ... if parameter.default is parameter.empty else parameter.default
    return annotation, Field(default, alias=parameter.name, description=description)


def _arguments_model(name: str, fields: dict[str, Any]) -> tuple[type[BaseModel], dict[str, Any]]:
    try:
        model: type[BaseModel] = create_model(
            name, __config__=ConfigDict(extra="forbid", arbitrary_types_allowed=False), **fields
        )
        return model, _without_titles(model.model_json_schema())
    except (PydanticUserError, PydanticSchemaGenerationError, PydanticInvalidForJsonSchema) as error:
        first = str(error).splitlines()[0]
        raise DefinitionError(f"Tool {name!r}", f"a parameter has a type without a JSON schema: {first}") from error


def _without_titles(schema: Any) -> Any:
    """The schema without the titles that pydantic makes up: they cost tokens and say nothing."""
    if isinstance(schema, dict):
        return {
            key: {name: _without_titles(sub) for name, sub in value.items()}
            if key in ("properties", "$defs")
            else _without_titles(value)
            for key, value in schema.items()
            if not (key == "title" and isinstance(value, str))
        }

    return [_without_titles(item) for item in schema] if isinstance(schema, list) else schema


def _explain(error: ValidationError) -> str:
    problems = []

    for found in error.errors(include_url=False, include_context=False):
        where = ".".join(str(part) for part in found["loc"])
        got = "" if found["type"] in ("missing", "json_invalid") else f" (got {_abbreviate(found['input'])})"
        problems.append(f"{where}: {found['msg']}{got}" if where else f"{found['msg']}{got}")

    return (
        "The arguments are not valid: "
        + "; ".join(problems[:20])
        + ". Call it again with arguments that fit its schema."
    )


def _abbreviate(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "…"
