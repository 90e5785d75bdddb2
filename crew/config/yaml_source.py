"""Reads a YAML file, resolves environment variables, and reports problems with line and column."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import yaml
from pydantic import ValidationError

from crew.config.file_schema import ConfigFile, Variables, contradictions
from crew.errors import ConfigError
from crew.settings import Place, problem_text

_ENVIRONMENT_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_MAX_BYTES = 1_000_000
_MAX_VALUES = 50_000
_MAX_DEPTH = 50
"""A file with aliases can describe very many values in a few bytes."""


def load(path: str | Path, environment: Mapping[str, str] | None = None) -> ConfigFile:
    """Read and validate a file. Raises `ConfigError` with all problems, each with its line and column."""
    name = str(path)
    root = _parse_yaml(Path(path), name)
    reader = _NodeReader(name, os.environ if environment is None else environment)
    values = {} if root is None else reader.read(root, ())

    if not isinstance(values, dict):
        raise ConfigError(name, f"the file must contain a mapping, not a {type(values).__name__}")

    try:
        config = ConfigFile.model_validate(values)
    except ValidationError as error:
        for found in error.errors(include_url=False):
            written = reader.substituted.get(found["loc"])
            reader.add_problem(found["loc"], problem_text(found if written is None else {**found, "input": written}))

    for place, text in contradictions(values):
        reader.add_problem(place, text)

    if reader.problems:
        raise ConfigError(name, [text for _, text in sorted(reader.problems)])

    config.set_source(reader.locations, reader.variables)
    return config


def _parse_yaml(path: Path, name: str) -> yaml.Node | None:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(name, f"can't read the file: {error.strerror or error}") from error

    if len(data) > _MAX_BYTES:
        raise ConfigError(name, f"the file has {len(data)} bytes; at most {_MAX_BYTES} are accepted")

    try:
        node: yaml.Node | None = yaml.compose(data.decode("utf-8-sig"), Loader=yaml.SafeLoader)
    except UnicodeDecodeError as error:
        raise ConfigError(name, f"the file is not UTF-8: {error}") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        location = f"{name}:{mark.line + 1}:{mark.column + 1}: " if mark else ""
        raise ConfigError(name, f"{location}invalid YAML: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise ConfigError(name, f"invalid YAML: {error}") from error
    except RecursionError:
        raise ConfigError(name, f"the file is nested too deeply; at most {_MAX_DEPTH} levels are accepted") from None

    return node


class _NodeReader:
    """Converts YAML nodes to Python values and records the position of each key."""

    def __init__(self, name: str, environment: Mapping[str, str]) -> None:
        self.name, self.environment = name, environment
        self.problems: list[tuple[tuple[int, int], str]] = []
        """Each problem with its line and column."""
        self.variables = Variables()
        self.substituted: dict[Place, str] = {}
        """The values with variables, as they are written in the file."""
        self._marks: dict[Place, yaml.Mark] = {}
        self._count = 0
        self._open: set[int] = set()
        self._loader = yaml.SafeLoader("")

    def read(self, node: yaml.Node, place: Place) -> object:
        self._marks.setdefault(place, node.start_mark)
        self._count += 1

        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, place)

        self._check_size(node)
        self._open.add(id(node))

        try:
            if isinstance(node, yaml.MappingNode):
                return self._mapping(node, place)

            return [self.read(item, (*place, index)) for index, item in enumerate(node.value)]
        finally:
            self._open.discard(id(node))

    def _check_size(self, node: yaml.Node) -> None:
        """Raise `ConfigError` for a file that grows without bound when its aliases are replaced by their values."""
        mark = node.start_mark
        location = f"{self.name}:{mark.line + 1}:{mark.column + 1}"

        if id(node) in self._open:
            raise ConfigError(self.name, f"{location}: an alias refers to a value that contains it")

        if len(self._open) >= _MAX_DEPTH:
            raise ConfigError(self.name, f"{location}: nested too deeply; at most {_MAX_DEPTH} levels are accepted")

        if self._count > _MAX_VALUES:
            text = f"with its aliases, the file has more than {_MAX_VALUES:,} values"
            raise ConfigError(self.name, f"{location}: {text}; write fewer")

    @property
    def locations(self) -> dict[Place, str]:
        """The file, line and column of each key and item."""
        return {place: f"{self.name}:{mark.line + 1}:{mark.column + 1}" for place, mark in self._marks.items()}

    def add_problem(self, place: Place, text: str) -> None:
        """Record a problem at a place, or at the nearest enclosing one that is in the file."""
        while place and place not in self._marks:
            place = place[:-1]

        self._add_problem_at(self._marks.get(place), text)

    def _add_problem_at(self, mark: yaml.Mark | None, text: str) -> None:
        line, column = (mark.line + 1, mark.column + 1) if mark else (0, 0)
        location = f"{self.name}:{line}:{column}" if mark else self.name
        self.problems.append(((line, column), f"{location}: {self.variables.hide(text)}"))

    def _mapping(self, node: yaml.MappingNode, place: Place) -> dict[str, object]:
        values: dict[str, object] = {}

        for key_node, value_node in node.value:
            key = str(key_node.value)
            self._marks[*place, key] = key_node.start_mark

            if key in values:
                self._add_problem_at(key_node.start_mark, f"duplicate key {key!r}")

            values[key] = self.read(value_node, (*place, key))

        return values

    def _scalar(self, node: yaml.ScalarNode, place: Place) -> object:
        text = str(node.value)
        tag = node.tag

        if "${" in text:
            self.substituted[place] = text
            text = _ENVIRONMENT_REFERENCE.sub(lambda match: self._variable(match, node), text)
            # A value from the environment is parsed as if it were written in the file: 5 is a number, "5" is a string.
            quoted = node.style is not None
            resolve: Callable[..., str] = self._loader.resolve
            tag = "tag:yaml.org,2002:str" if quoted else resolve(yaml.ScalarNode, text, (True, False))

        try:
            value: object = self._loader.construct_object(yaml.ScalarNode(tag, text, node.start_mark, node.end_mark))
        except (yaml.YAMLError, ValueError) as error:
            reason = error.problem if isinstance(error, yaml.MarkedYAMLError) else str(error)
            self._add_problem_at(node.start_mark, f"can't read {text!r}: {reason}")
            return None

        return value

    def _variable(self, match: re.Match[str], node: yaml.Node) -> str:
        name, default = match[1], match[2]
        value = self.environment.get(name)
        self.variables.add(name, value or "")

        if not value and default is not None:
            return default

        if value is None:
            text = f"the environment variable {name} is not set; set it, or write ${{{name}:-default}}"
            self._add_problem_at(node.start_mark, text)
            return ""

        return value
