"""Builds a tool's JSON schema from its signature and docstring, and parses the model's arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, PydanticUserError, ValidationError, create_model
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticSchemaGenerationError
from pydantic.fields import FieldInfo

from crew.errors import DefinitionError, abbreviate
from crew.interfaces import ToolSpec
from crew.tools.context import Context


class InvalidArguments(ValueError):
    """The model's arguments do not match the schema; the text is sent to the model. `problems` says what is wrong."""

    def __init__(self, problems: str) -> None:
        self.problems = problems
        super().__init__(_explanation(problems))


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """The parameters of a function: those that the model fills in, and the one that receives the context.

    `field_defaults` are parameters whose default is a pydantic `Field(...)`: the function can't use that itself.
    `is_unbound` is whether the function is a method that still needs its object. With `passes_all`, the function gets
    whatever the model passes: its schema was written elsewhere, and is checked there.
    """

    spec: ToolSpec
    arguments_model: type[BaseModel]
    parameter_names: tuple[str, ...]
    context_parameter: str | None
    field_defaults: frozenset[str] = frozenset()
    is_unbound: bool = False
    passes_all: bool = False

    def parse_arguments(self, arguments: str) -> dict[str, object]:
        """Keyword arguments from the model's JSON text. Raises `InvalidArguments`."""
        try:
            parsed = self.arguments_model.model_validate_json(arguments.strip() or "{}")
        except ValidationError as error:
            raise InvalidArguments(argument_problems(error)) from error

        if self.passes_all:
            return dict(parsed.model_extra or {})

        # Parameters that the model left out are not passed: the function's default applies.
        return {
            name: getattr(parsed, f"a{i}")
            for i, name in enumerate(self.parameter_names)
            if f"a{i}" in parsed.model_fields_set or name in self.field_defaults
        }


def read_signature(function: Callable[..., object], name: str, description: str | None) -> Signature:
    import docstring_parser  # loaded with the first tool

    try:
        parameters = inspect.signature(function, eval_str=True).parameters
    except (NameError, TypeError, ValueError) as error:
        raise DefinitionError(f"Tool {name!r}", f"the signature can't be read: {error}") from error

    doc = docstring_parser.parse(inspect.getdoc(function) or "")
    descriptions = {param.arg_name: param.description for param in doc.params}
    context: str | None = None
    fields: dict[str, Any] = {}
    names: list[str] = []

    is_unbound = _is_method(function) and next(iter(parameters), "") in ("self", "cls")

    for parameter in [*parameters.values()][is_unbound:]:
        if parameter.annotation is Context or get_origin(parameter.annotation) is Context:
            context = parameter.name
            continue

        # Fields have neutral names and the real ones as aliases: `json`, `copy` or `_x` would collide with pydantic's.
        fields[f"a{len(names)}"] = _field(parameter, descriptions.get(parameter.name), name)
        names.append(parameter.name)

    model, schema = _arguments_model(name, fields)

    if description is None:
        description = "\n\n".join(filter(None, (doc.short_description, doc.long_description)))

    spec = ToolSpec(name=name, description=description, parameters=schema)
    return Signature(
        spec=spec,
        arguments_model=model,
        parameter_names=tuple(names),
        context_parameter=context,
        field_defaults=frozenset(n for n in names if isinstance(parameters[n].default, FieldInfo)),
        is_unbound=is_unbound,
    )


class _AnyArguments(BaseModel):
    """A JSON object."""

    model_config = ConfigDict(extra="allow")


def foreign_signature(spec: ToolSpec, context_parameter: str | None = None) -> Signature:
    """The signature of a function with this schema, which gets all arguments as keywords and checks them itself."""
    return Signature(
        spec=spec,
        arguments_model=_AnyArguments,
        parameter_names=(),
        context_parameter=context_parameter,
        passes_all=True,
    )


def _is_method(function: Callable[..., object]) -> bool:
    """Whether a function was defined in the body of a class."""
    owner = function.__qualname__.rpartition(".")[0] if isinstance(function, FunctionType) else ""
    return bool(owner) and not owner.endswith("<locals>")


def _field(parameter: inspect.Parameter, description: str | None, tool: str) -> tuple[object, object]:
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
        raise DefinitionError(
            f"Tool {tool!r}", f"a model can't pass the parameter {str(parameter)!r}; declare each parameter by name"
        )

    annotation = Any if parameter.annotation is parameter.empty else parameter.annotation
    default: Any = ... if parameter.default is parameter.empty else parameter.default
    metadata: tuple[object, ...] = get_args(annotation)[1:] if get_origin(annotation) is Annotated else ()
    written = [item for item in metadata if isinstance(item, str)]

    if isinstance(default, FieldInfo):
        annotation, metadata = Annotated[annotation, default], (*metadata, default)
        default = ... if default.is_required() else default.get_default(call_default_factory=True)

    if not any(isinstance(item, FieldInfo) and item.description for item in metadata):
        description = written[0] if written else description
        return annotation, Field(default, alias=parameter.name, description=description)

    return annotation, Field(default, alias=parameter.name)


def _arguments_model(name: str, fields: dict[str, Any]) -> tuple[type[BaseModel], dict[str, object]]:
    try:
        model: type[BaseModel] = create_model(
            name, __config__=ConfigDict(extra="forbid", arbitrary_types_allowed=False), **fields
        )
        return model, _without_titles(model.model_json_schema())
    except (PydanticUserError, PydanticSchemaGenerationError, PydanticInvalidForJsonSchema) as error:
        first = str(error).splitlines()[0]
        raise DefinitionError(f"Tool {name!r}", f"the type of a parameter has no JSON schema: {first}") from error


def _without_titles(schema: Mapping[str, object]) -> dict[str, object]:
    """The schema without the titles that pydantic generates: they cost tokens and add no information."""
    return {
        key: {name: _strip_titles(part) for name, part in value.items()}
        if key in ("properties", "$defs") and isinstance(value, Mapping)
        else _strip_titles(value)
        for key, value in schema.items()
        if not (key == "title" and isinstance(value, str))
    }


def _strip_titles(value: object) -> object:
    if isinstance(value, Mapping):
        return _without_titles(value)

    return [_strip_titles(item) for item in value] if isinstance(value, list) else value


def _explanation(problems: str) -> str:
    return f"The arguments are not valid: {problems}. Call the tool again with arguments that match its schema."


def argument_problems(error: ValidationError) -> str:
    """What is wrong with arguments, in one line."""
    problems = []

    for found in error.errors(include_url=False, include_context=False):
        where = ".".join(str(part) for part in found["loc"])
        got = "" if found["type"] in ("missing", "json_invalid") else f" (got {abbreviate(found['input'])})"
        problems.append(f"{where}: {found['msg']}{got}" if where else f"{found['msg']}{got}")

    return "; ".join(problems[:20])
