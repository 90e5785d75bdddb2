"""Generates docs/reference.md from the code: `python scripts/reference.py`."""

import ast
import dataclasses
import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

from crew import errors
from crew.runs import events
from crew.tools import Tool

PAGE = Path(__file__).parent.parent / "docs" / "reference.md"

PACKAGES = {
    "crew": "The names that most programs need.",
    "crew.agents": "Agents, groups, handoffs, guardrails and the crew.",
    "crew.tools": "Tools and toolsets.",
    "crew.runs": "A run as data: state, result, limits, interfaces.",
    "crew.interfaces": "What providers, policies and counters implement, and the values that they get.",
    "crew.messages": "Messages, transcripts and usage.",
    "crew.history": "History policies.",
    "crew.providers": "Models.",
    "crew.message_rules": "The rules that requests to a model must follow.",
    "crew.store": "Stores.",
    "crew.validation": "Checks of input.",
    "crew.config": "Configuration files.",
    "crew.telemetry": "Spans, metrics and logs.",
    "crew.simulator": "Simulation of history policies.",
    "crew.mcp": "Tools of MCP servers.",
    "crew.mcp_server": "Crews as an MCP server.",
    "crew.server": "Crews as an HTTP service.",
    "crew.client": "The client of the HTTP service.",
    "crew.temporal": "Runs on Temporal.",
}


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")


def page() -> str:
    """The text of the page."""
    return "\n".join(lines()) + "\n"


def lines() -> Iterator[str]:
    yield "# Reference"
    yield ""
    yield "Every public class with its fields, every event and every error. This page is generated from the code by"
    yield "`python scripts/reference.py`."
    seen: set[int] = set()

    for package, title in PACKAGES.items():
        yield from _package(package, title, seen)

    yield from _events()
    yield from _errors()


def _package(name: str, title: str, seen: set[int]) -> Iterator[str]:
    module = importlib.import_module(name)
    found = [(one, getattr(module, one)) for one in _public_names(module)]
    new = [(one, value) for one, value in found if id(value) not in seen and _is_documented(value)]
    seen.update(id(value) for _, value in new)

    yield from ("", f"## `{name}`", "", title)

    for one, value in sorted(new, key=lambda pair: (not inspect.isclass(pair[1]), pair[0].lower())):
        yield from ("", f"### `{one}`", "")
        yield from _class(value) if inspect.isclass(value) else _function(one, value)


def _public_names(module: Any) -> list[str]:
    listed = getattr(module, "__all__", None)

    if listed is None:  # what it defines, and what it imports as the same name, such as `from a import B as B`
        own = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
        imports = [node for node in ast.parse(inspect.getsource(module)).body if isinstance(node, ast.ImportFrom)]
        listed = own + [alias.name for node in imports for alias in node.names if alias.asname == alias.name]

    return [name for name in listed if not name.startswith("_")]


def _is_documented(value: object) -> bool:
    if isinstance(value, Tool):
        return True

    is_error = value in vars(errors).values() and inspect.isclass(value) and issubclass(value, errors.CrewError)
    return not is_error and (inspect.isclass(value) or inspect.isroutine(value)) and not _is_event(value)


def _is_event(value: object) -> bool:
    return inspect.isclass(value) and issubclass(value, events.BaseEvent)


def _class(kind: type) -> Iterator[str]:
    yield _doc(kind)

    if dataclasses.is_dataclass(kind):
        fields = [field for field in dataclasses.fields(kind) if field.init and not field.name.startswith("_")]

        if fields:
            yield from ("", *_field_table(fields))
    elif "__init__" in vars(kind):
        yield from ("", f"`{kind.__name__}{_signature(kind.__init__, skip_first=True)}`")

    methods = [*_methods(kind)]

    if methods:
        yield from ("", "| method or property | |", "|---|---|")
        yield from (f"| `{_cell(call)}` | {_cell(text)} |" for call, text in methods)


def _methods(kind: type) -> Iterator[tuple[str, str]]:
    for name, value in vars(kind).items():
        if name.startswith("_"):
            continue

        if isinstance(value, property):
            yield name, _first_paragraph(value.fget)
        elif isinstance(value, classmethod | staticmethod):
            yield (
                f"{name}{_signature(value.__func__, skip_first=isinstance(value, classmethod))}",
                _first_paragraph(value.__func__),
            )
        elif inspect.isfunction(value):
            yield f"{name}{_signature(value, skip_first=True)}", _first_paragraph(value)


def _function(name: str, function: Callable[..., object]) -> Iterator[str]:
    function = function.function if isinstance(function, Tool) else function
    yield f"`{name}{_signature(function)}`"
    yield ""
    yield _doc(function)


def _events() -> Iterator[str]:
    common = {field.name for field in dataclasses.fields(events.BaseEvent)}
    union = get_args(events.Event)
    kinds = get_args(union[0]) if get_origin(union[0]) is not None or len(union) > 1 else union

    yield from ("", "## Events", "")
    yield "Observers and streams get these events. Each one has:"
    yield from ("", *_field_table(dataclasses.fields(events.BaseEvent)))

    for kind in sorted(kinds, key=lambda kind: kind.__name__):
        yield from ("", f"### `{kind.__name__}`", "", _doc(kind))
        own = [field for field in dataclasses.fields(kind) if field.name not in common]

        if own:
            yield from ("", *_field_table(own))


def _errors() -> Iterator[str]:
    yield from ("", "## Errors", "", "All errors of Crew are in `crew.errors`.", "")
    tree = (errors.__doc__ or "").split("\n\n", 1)[1].strip()
    yield from ("```text", tree, "```", "", "| error | attributes | meaning |", "|---|---|---|")

    for name, kind in vars(errors).items():
        if inspect.isclass(kind) and issubclass(kind, errors.CrewError):
            yield f"| `{name}` | {_cell(_attributes(kind))} | {_cell(_first_paragraph(kind))} |"


def _attributes(kind: type) -> str:
    source = inspect.getsource(kind)
    names = [
        name.strip()
        for part in re.findall(r"^        (self\.[\w, .]+) = ", source, re.MULTILINE)
        for name in part.split(",")
    ]
    return ", ".join(
        f"`{name.removeprefix('self.')}`" for name in dict.fromkeys(names) if not name.startswith("self._")
    )


def _field_table(fields: Any) -> Iterator[str]:
    yield "| field | type | default |"
    yield "|---|---|---|"

    for field in fields:
        yield f"| `{field.name}` | `{_cell(_type(field.type))}` | {_cell(_default(field))} |"


def _default(field: Any) -> str:
    if field.default is not dataclasses.MISSING:
        return f"`{_value(field.default)}`"

    return "" if field.default_factory is dataclasses.MISSING else f"`{_value(field.default_factory)}()`"


def _value(value: object) -> str:
    if inspect.isclass(value) or inspect.isroutine(value):
        return value.__name__

    if isinstance(value, frozenset) and value:
        return f"frozenset({{{', '.join(sorted(map(repr, value)))}}})"  # the order of a set differs in every process

    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def _type(annotation: object) -> str:
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return re.sub(r"\b(?:collections\.abc|typing|crew(?:\.\w+)+)\.", "", text)


def _signature(function: Callable[..., object], *, skip_first: bool = False) -> str:
    signature = inspect.signature(function)
    parameters = [*signature.parameters.values()][skip_first:]
    shown = [
        parameter.replace(
            annotation=inspect.Parameter.empty
            if parameter.annotation is parameter.empty
            else _Text(_type(parameter.annotation)),
            default=parameter.default if parameter.default is parameter.empty else _Text(_value(parameter.default)),
        )
        for parameter in parameters
    ]
    returns = "" if signature.return_annotation is signature.empty else f" -> {_type(signature.return_annotation)}"
    return f"{signature.replace(parameters=shown, return_annotation=signature.empty)}{returns}"


class _Text:
    """A text that is shown as it is."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def _doc(value: object) -> str:
    """The whole docstring; tables that are set with spaces stay as they are."""
    text = inspect.cleandoc(getattr(value, "__doc__", None) or "")

    if inspect.isclass(value) and text.startswith(f"{value.__name__}("):
        return ""  # the signature that `dataclass` writes

    parts = text.split("\n\n")
    return "\n\n".join(
        f"```text\n{part}\n```" if re.search(r"^\w+(?:, \w+)* {2,}\S", part, re.MULTILINE) else part for part in parts
    )


def _first_paragraph(value: object) -> str:
    return " ".join(inspect.cleandoc(getattr(value, "__doc__", None) or "").split("\n\n")[0].split())


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    main()
