"""The type of an agent's structured output: its JSON schema, and how replies become values of it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from inspect import isroutine
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, PydanticUserError, TypeAdapter, ValidationError, create_model
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticSchemaGenerationError, PydanticUndefinedAnnotation

from crew.errors import DefinitionError, abbreviate
from crew.interfaces import OutputSpec

WRAPPER_KEY = "value"
"""The key under which a model writes a value that is not a JSON object: services accept only objects as a reply."""

_MAX_NAME = 64


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OutputType:
    """An output type with its schema. `wrapper` is a model with one field, `value`, for types that are no objects."""

    spec: OutputSpec
    adapter: TypeAdapter[Any]
    wrapper: type[BaseModel] | None

    @property
    def name(self) -> str:
        return self.spec.name

    def parse(self, text: str) -> Any:
        """The value of a reply, wrapped or not. Raises `ValidationError`, or what a validator of the type raises."""
        if self.wrapper is None:
            return self.adapter.validate_json(text)

        try:
            return getattr(self.wrapper.model_validate_json(text), WRAPPER_KEY)
        except ValidationError:
            try:
                return self.adapter.validate_json(text)  # the model wrote the value alone
            except ValidationError:
                pass

            raise  # the model was asked for the wrapped form

    def partial_value(self, value: object) -> object:
        """The value within an incomplete reply; None as long as it has not begun."""
        if self.wrapper is None or not isinstance(value, Mapping):
            return value

        return value.get(WRAPPER_KEY)


def read_output_type(output: Any) -> OutputType | None:
    """The output type that `output=` names; None for text. Raises `DefinitionError` if it can't have a schema."""
    if output is None or output is str:
        return None

    if output is Any or output is object:
        raise _refused(output, "accepts every value; leave output= out for text, or name a type")

    # A pydantic model class is a type, an instance of one is not; a text would be a name that can't be looked up here.
    values = (str, bytes, int, float, BaseModel, Mapping, list, tuple, set, partial)

    if isinstance(output, values) or isroutine(output):  # pydantic would take a function for its arguments
        raise _refused(output, "is a value, not a type; pass a class, list[...], a union or a Literal")

    try:
        adapter: TypeAdapter[Any] = TypeAdapter(output)
        schema = _inlined(adapter.json_schema())
        wrapper = None if _is_object(schema) else _wrapper(output)
    except PydanticUndefinedAnnotation as error:
        raise _refused(output, f"refers to {error.name!r}, which is not defined") from error
    except (PydanticUserError, PydanticSchemaGenerationError, PydanticInvalidForJsonSchema) as error:
        raise _refused(output, f"has no JSON schema: {str(error).splitlines()[0].rstrip('.')}") from error
    except TypeError as error:  # an object that pydantic does not take for a type
        raise _refused(output, f"is not a type: {error}") from error

    if wrapper is not None:
        schema = wrapper.model_json_schema()

    return OutputType(spec=OutputSpec(name=_schema_name(output), schema=schema), adapter=adapter, wrapper=wrapper)


def _refused(output: object, problem: str) -> DefinitionError:
    accepted = "pydantic models, dataclasses, TypedDicts, list[...], unions, Literals and simple types such as int"
    return DefinitionError("output", f"output={abbreviate(output)} {problem}. Accepted: {accepted}")


def _wrapper(output: Any) -> type[BaseModel]:
    fields: dict[str, Any] = {WRAPPER_KEY: (output, ...)}
    return create_model(_schema_name(output), __config__=ConfigDict(extra="forbid"), **fields)


def _inlined(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with the root that it refers to, where the type is recursive: services accept no reference there."""
    path, definitions = schema.get("$ref"), schema.get("$defs")

    if not isinstance(path, str) or not isinstance(definitions, dict):
        return schema

    root = definitions.get(path.removeprefix("#/$defs/"))
    return {**root, "$defs": definitions} if isinstance(root, dict) else schema


def _is_object(schema: Mapping[str, Any]) -> bool:
    return schema.get("type") == "object" and not {"anyOf", "oneOf", "allOf"} & schema.keys()


def _schema_name(output: Any) -> str:
    """The names of the classes in the type, such as `list_Refund`, in the characters that services accept."""
    return re.sub(r"[^a-zA-Z0-9_-]+", "_", "_".join(_type_names(output))).strip("_")[:_MAX_NAME] or "output"


def _type_names(kind: Any) -> Iterator[str]:
    """Without what `Annotated` adds: the text of a validator has its address, which differs in every process."""
    origin, arguments = get_origin(kind), get_args(kind)

    if origin is Annotated:
        yield from _type_names(arguments[0])
        return

    if origin not in (None, Union, UnionType):
        yield origin.__name__

    if origin is Literal:
        yield from map(str, arguments)
    elif origin is not None:
        yield from (name for argument in arguments if argument is not ... for name in _type_names(argument))
    else:
        name = getattr(kind, "__name__", type(kind).__name__)  # foreign: a type of the user
        yield "None" if kind is NoneType else name
