"""Validates settings: a dataclass declares each setting once, and pydantic checks it in Python and in YAML alike.

A settings class is a dataclass that calls `check_settings(self)` in its `__post_init__`:

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Limits:
        rounds: NonNegativeInt | None = 200

        def __post_init__(self) -> None:
            check_settings(self)

`Limits(rounds=-5)` raises `DefinitionError`: "Limits: rounds must be 0 or a positive integer, not -5". A configuration
file reads the same class with `read_settings`, and reports the same words with the line and column.

The settings classes: `ModelSettings`, `RetryPolicy` and `PolicyOptions` in interfaces.py, `Limits` and
`RequestParameters` in runs/parameters.py, `InputValidator`, `TelemetrySettings`, `Agent`, `Parallel`, `Tool` and the
history policies.
"""

from __future__ import annotations

import dataclasses
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from functools import cache
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    TypeAdapter,
    ValidationError,
    create_model,
)
from pydantic_core import CoreSchema, ErrorDetails, InitErrorDetails, PydanticCustomError
from pydantic_core.core_schema import custom_error_schema

from crew.errors import DefinitionError, abbreviate, suggest

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_Settings = TypeVar("_Settings", bound="DataclassInstance")


@dataclasses.dataclass(frozen=True, slots=True)
class Accepts:
    """The values that an annotated type accepts, in words that complete "must be …"."""

    text: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return custom_error_schema(
            handler(source), custom_error_type="not_accepted", custom_error_message=f"must be {self.text}"
        )


def is_http_url(value: object) -> bool:
    """Whether the value is an HTTP or HTTPS URL with a host."""
    if not isinstance(value, str):
        return False

    try:
        parts = urlsplit(value)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:  # the port is not a number, or a bracket is not closed
        return False


def _http_url(value: str) -> str:
    if not is_http_url(value):
        raise ValueError("not an HTTP URL")

    return value


PositiveInt = Annotated[int, Field(ge=1), Accepts("a positive integer")]
MessageLimit = Annotated[int, Field(ge=1), Accepts("a positive integer such as 50")]
LimitOrDefault = Annotated[
    Annotated[int, Field(ge=1)] | Literal["default"] | None, Accepts("a positive integer such as 50, or None")
]
NonNegativeInt = Annotated[int, Field(ge=0), Accepts("0 or a positive integer")]
NonNegativeNumber = Annotated[float, Field(ge=0), Accepts("0 or a positive number")]
Seconds = Annotated[float, Field(gt=0), Accepts("a number of seconds above 0")]
Ratio = Annotated[float, Field(ge=0, le=1), Accepts("a number from 0 to 1")]
PositiveRatio = Annotated[float, Field(gt=0, le=1), Accepts("a number above 0 and at most 1, such as 0.8")]
Timestamp = Annotated[float | datetime, Accepts("seconds since the epoch, or a datetime")]
HttpUrl = Annotated[str, AfterValidator(_http_url), Accepts("a URL such as http://127.0.0.1:4318")]


def check_settings(settings: DataclassInstance, subject: str | None = None) -> None:
    """Raise `DefinitionError` with every setting that is not accepted."""
    if problems := setting_problems(settings):
        raise DefinitionError(subject or type(settings).__name__, problems)


def setting_problems(settings: DataclassInstance) -> list[str]:
    """Why settings are not accepted. Checks numbers, strings, booleans and literals; skips objects and functions."""
    # A default is accepted by declaration: only other values are validated, and most objects need no model at all.
    changed: dict[str, object] = {}

    for name, default in _defaults(type(settings)):
        value = getattr(settings, name)

        if value is not default:
            changed[name] = value

    if not changed:
        return []

    try:
        _checker(type(settings)).validate_python(changed)
    except ValidationError as error:
        return problem_texts(error)

    return []


def value_problems(accepted: object, values: Mapping[str, object]) -> list[str]:
    """Why named values are not accepted by a type such as `PositiveInt | None`."""
    problems: list[str] = []

    for name, value in values.items():
        try:
            _adapter(accepted).validate_python(value)
        except ValidationError as error:
            problems.extend(f"{name} {problem}" for problem in problem_texts(error))

    return problems


def read_settings(kind: type[_Settings], value: object, **nested: object) -> _Settings:
    """Build settings from a mapping with their names as keys; for use in a pydantic validator of a larger document.

    `nested` gives the types of settings that are not plain values, with the validators that read them. Raises
    `ValidationError`; pydantic puts the place of the mapping before the location of each problem.
    """
    values = read_options(kind, value, **nested)

    try:
        return kind(**values)
    except DefinitionError as error:  # a rule that concerns several settings
        details = [_detail("sentence", problem, (), value) for problem in error.problems]
        raise ValidationError.from_exception_data(kind.__name__, details) from error


def read_options(kind: type[DataclassInstance], value: object, **nested: object) -> dict[str, Any]:
    """The settings that a mapping gives, validated; settings that it leaves out are left out."""
    model = _model(kind, tuple(nested.items()))

    try:
        parsed = model.model_validate(_with_off(model, value))
    except ValidationError as error:
        raise in_plain_words(error, list(model.model_fields)) from error

    return {name: getattr(parsed, name) for name in parsed.model_fields_set}


def plain_error(title: str, problem: str, value: object) -> ValidationError:
    """One problem in words that follow the name of the setting: "must be …, not …"."""
    return ValidationError.from_exception_data(title, [_detail("words", problem, (), value)])


def in_plain_words(error: ValidationError, known: Sequence[str]) -> ValidationError:
    """The same problems in our words; `known` are the keys of the mapping that was validated."""
    details = [
        _detail(
            "sentence" if found["type"] == "sentence" else "words", _words(found, known), found["loc"], found["input"]
        )
        for found in error.errors(include_url=False)
    ]
    return ValidationError.from_exception_data(error.title, details)


def problem_texts(error: ValidationError) -> list[str]:
    """Each problem with the name of its setting: "limits.rounds must be 0 or a positive integer, not -5"."""
    return [problem_text(found) for found in error.errors(include_url=False)]


def problem_text(found: ErrorDetails) -> str:
    name = ".".join(str(part) for part in found["loc"])
    separator = "" if not name else ": " if found["type"] == "sentence" else " "
    return f"{name}{separator}{_words(found, ())}"


_TYPE_WORDS = {
    "bool_type": "must be true or false",
    "dict_type": "must be a mapping",
    "float_type": "must be a number",
    "int_from_float": "must be an integer",
    "int_type": "must be an integer",
    "list_type": "must be a list",
    "string_type": "must be a string",
    "tuple_type": "must be a list",
}


def _words(found: ErrorDetails, known: Sequence[str]) -> str:
    match found["type"]:
        case "words" | "sentence":
            return found["msg"]
        case "missing":
            return "is required"
        case "extra_forbidden":
            return f"is not a known key. {suggest(str(found['loc'][-1]), known)}"
        case "literal_error":
            words = f"must be {found['ctx']['expected']}"
        case "model_type":
            words = f"must be a mapping with keys such as {known[0]}" if known else "must be a mapping"
        case kind:
            words = _TYPE_WORDS.get(kind, found["msg"].replace("Input should be", "must be"))

    return f"{words}, not {abbreviate(found['input'])}"


def _detail(
    kind: Literal["words", "sentence"], text: str, location: tuple[str | int, ...], value: object
) -> InitErrorDetails:
    error = PydanticCustomError(kind, "{text}", {"text": text})
    return InitErrorDetails(type=error, loc=location, input=value)


@cache
def _defaults(kind: type[DataclassInstance]) -> tuple[tuple[str, object], ...]:
    return tuple((field.name, field.default) for field in dataclasses.fields(kind) if field.init)


@cache
def _adapter(accepted: Any) -> TypeAdapter[object]:
    return TypeAdapter(accepted, config=ConfigDict(strict=True))


@cache
def _checker(kind: type[DataclassInstance]) -> TypeAdapter[BaseModel]:
    return TypeAdapter(create_model(kind.__name__, __config__=ConfigDict(strict=True), **_fields(kind)))


@cache
def _model(kind: type[DataclassInstance], nested: tuple[tuple[str, object], ...] = ()) -> type[BaseModel]:
    return create_model(kind.__name__, __config__=ConfigDict(extra="forbid", strict=True), **_fields(kind, nested))


def _fields(kind: type[DataclassInstance], nested: tuple[tuple[str, object], ...] = ()) -> dict[str, Any]:
    """The dataclass's plain settings and the nested ones, as `create_model` takes them."""
    hints = get_type_hints(kind, include_extras=True)
    types = {name: hints[name] for name, _ in _defaults(kind) if _is_plain(hints[name])} | dict(nested)
    return {
        name: (types[name], ... if default is dataclasses.MISSING else default)
        for name, default in _defaults(kind)
        if name in types
    }


def _is_plain(hint: object) -> bool:
    """Whether a type consists of plain values: numbers, strings, booleans, times, None and literals.

    A literal of one value is a tag.
    """
    origin = get_origin(hint)

    if origin is Annotated:
        return _is_plain(get_args(hint)[0])

    if origin in (Union, UnionType):
        return all(get_origin(member) is Literal or _is_plain(member) for member in get_args(hint))

    if origin is Literal:
        return len(get_args(hint)) > 1

    return hint in (bool, int, float, str, datetime, NoneType)


def _with_off(model: type[BaseModel], value: object) -> object:
    """The mapping with "off" for false where only "off" is accepted: YAML reads an unquoted `off` as false."""
    if not isinstance(value, Mapping):
        return value

    fields = model.model_fields
    return {
        name: "off" if item is False and name in fields and "off" in get_args(fields[name].annotation) else item
        for name, item in value.items()
    }


# ------------------------------------------------------------------------------------------ warnings

Place = tuple[str | int, ...]
"""The keys and indexes that lead to a value in a configuration file."""

_locate: ContextVar[Callable[[Place], str]] = ContextVar("locate", default=lambda place: "")


@contextmanager
def settings_located_by(locate: Callable[[Place], str]) -> Iterator[None]:
    """Meanwhile, warnings about settings start with what `locate` returns for their place: file, line and column."""
    token = _locate.set(locate)

    try:
        yield
    finally:
        _locate.reset(token)


def warn_about(text: str, *place: str | int) -> None:
    """Warn about a setting at the line outside Crew that led here; `place` is its place in a configuration file."""
    frame = sys._getframe()

    # The generated __init__ of a dataclass has the globals of the module that defines the class.
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "crew":
        frame = frame.f_back

    names = frame.f_globals
    warnings.warn_explicit(
        f"{_locate.get()(place)}{text}",
        UserWarning,
        frame.f_code.co_filename,
        frame.f_lineno,
        module=str(names.get("__name__", "")),
        registry=names.setdefault("__warningregistry__", {}),
    )
