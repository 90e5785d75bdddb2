"""Reads a YAML file, resolves environment variables, and reports problems with line and column."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import yaml
from pydantic import ValidationError

from crew.config.file_schema import ConfigFile, Place, contradictions
from crew.errors import ConfigError
from crew.settings import problem_text

_ENVIRONMENT_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_MAX_BYTES = 1_000_000


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
            reader.add_problem(found["loc"], problem_text(found))

    for place, text in contradictions(values):
        reader.add_problem(place, text)

    if reader.problems:
        raise ConfigError(name, [text for _, text in sorted(reader.problems)])

    config.set_locations(reader.locations)
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

    return node


class _NodeReader:
    """Converts YAML nodes to Python values and records the position of each key."""

    def __init__(self, name: str, environment: Mapping[str, str]) -> None:
        self.name, self.environment = name, environment
        self.problems: list[tuple[tuple[int, int], str]] = []
        """Each problem with its line and column."""
        self._marks: dict[Place, yaml.Mark] = {}
        self._loader = yaml.SafeLoader("")

    def read(self, node: yaml.Node, place: Place) -> object:
        self._marks.setdefault(place, node.start_mark)

        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, place)

        if isinstance(node, yaml.SequenceNode):
            return [self.read(item, (*place, index)) for index, item in enumerate(node.value)]

        return self._scalar(node)

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
        self.problems.append(((line, column), f"{location}: {text}"))

    def _mapping(self, node: yaml.MappingNode, place: Place) -> dict[str, object]:
        values: dict[str, object] = {}

        for key_node, value_node in node.value:
            key = str(key_node.value)
            self._marks[*place, key] = key_node.start_mark

            if key in values:
                self._add_problem_at(key_node.start_mark, f"duplicate key {key!r}")

            values[key] = self.read(value_node, (*place, key))

        return values

    def _scalar(self, node: yaml.Node) -> object:
        text = str(node.value)
        tag = node.tag

        if "${" in text:
            text = _ENVIRONMENT_REFERENCE.sub(lambda match: self._variable(match, node), text)
            # A value from the environment is parsed as if it were written in the file: 5 is a number, "5" is a string.
            quoted = isinstance(node, yaml.ScalarNode) and node.style is not None
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

        if not value and default is not None:
            return default

        if value is None:
            text = f"the environment variable {name} is not set; set it, or write ${{{name}:-default}}"
            self._add_problem_at(node.start_mark, text)
            return ""

        return value
