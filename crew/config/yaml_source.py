"""A YAML file with its places: values come from the environment where it says so, problems name line and column."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from crew.config.file_schema import ConfigFile
from crew.errors import ConfigError
from crew.settings import problem_text

_ENVIRONMENT_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_MAX_BYTES = 1_000_000

Place = tuple[str | int, ...]


def load(path: str | Path, environment: Mapping[str, str] | None = None) -> ConfigFile:
    """The settings of a file; everything that is wrong with it at once, each with its line and column."""
    name = str(path)
    tree = _parse_yaml(Path(path), name)
    reader = _NodeReader(name, os.environ if environment is None else environment)
    values = {} if tree is None else reader.read(tree, ())

    if not isinstance(values, dict):
        raise ConfigError(name, f"the file must hold keys and values, not a {type(values).__name__}")

    try:
        settings = ConfigFile.model_validate(values)
    except ValidationError as error:
        reader.problems.extend(reader.describe_error(found) for found in error.errors(include_url=False))

    if reader.problems:
        raise ConfigError(name, sorted(reader.problems, key=_by_location))

    return settings


def _parse_yaml(path: Path, name: str) -> yaml.Node | None:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(name, f"the file can't be read: {error.strerror or error}") from error

    if len(data) > _MAX_BYTES:
        raise ConfigError(name, f"the file has {len(data)} bytes; at most {_MAX_BYTES} are read")

    try:
        node: yaml.Node | None = yaml.compose(data.decode("utf-8-sig"), Loader=yaml.SafeLoader)
    except UnicodeDecodeError as error:
        raise ConfigError(name, f"the file is not UTF-8: {error}") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"{name}:{mark.line + 1}:{mark.column + 1}: " if mark else ""
        raise ConfigError(name, f"{place}this is not YAML: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise ConfigError(name, f"this is not YAML: {error}") from error

    return node


class _NodeReader:
    """Turns nodes into plain values and remembers where each of them stands."""

    def __init__(self, name: str, environment: Mapping[str, str]) -> None:
        self.name, self.environment = name, environment
        self.problems: list[str] = []
        self._marks: dict[Place, yaml.Mark] = {}
        self._plain = yaml.SafeLoader("")

    def read(self, node: yaml.Node, place: Place) -> Any:
        self._marks.setdefault(place, node.start_mark)

        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, place)

        if isinstance(node, yaml.SequenceNode):
            return [self.read(item, (*place, index)) for index, item in enumerate(node.value)]

        return self._scalar(node)

    def _mapping(self, node: yaml.MappingNode, place: Place) -> dict[str, Any]:
        values: dict[str, Any] = {}

        for key_node, value_node in node.value:
            key = str(key_node.value)
            self._marks[*place, key] = key_node.start_mark

            if key in values:
                self.problems.append(f"{self._location(key_node.start_mark)}: the key {key!r} is here twice")

            values[key] = self.read(value_node, (*place, key))

        return values

    def _scalar(self, node: yaml.Node) -> Any:
        text: str = node.value
        tag = node.tag

        if "${" in text:
            text = _ENVIRONMENT_REFERENCE.sub(lambda found: self._variable(found, node), text)
            # What came from the environment is read as if it had been written here: a number is a number.
            quoted = getattr(node, "style", None) is not None
            resolve: Any = self._plain.resolve
            tag = "tag:yaml.org,2002:str" if quoted else resolve(yaml.ScalarNode, text, (True, False))

        try:
            return self._plain.construct_object(yaml.ScalarNode(tag, text, node.start_mark, node.end_mark))
        except (yaml.YAMLError, ValueError) as error:
            reason = getattr(error, "problem", None) or str(error)
            self.problems.append(f"{self._location(node.start_mark)}: {text!r} can't be read: {reason}")
            return None

    def _variable(self, found: re.Match[str], node: yaml.Node) -> str:
        name, default = found[1], found[2]
        value = self.environment.get(name)

        if not value and default is not None:
            return default

        if value is None:
            where = self._location(node.start_mark)
            text = f"the environment has no {name}; set it, or write ${{{name}:-default}}"
            self.problems.append(f"{where}: {text}")
            return ""

        return value

    def describe_error(self, found: ErrorDetails) -> str:
        """A problem that pydantic found, with its place in the file."""
        return f"{self._location(self._nearest_mark(found['loc']))}: {problem_text(found)}"

    def _nearest_mark(self, place: Place) -> yaml.Mark | None:
        while place and place not in self._marks:
            place = place[:-1]

        return self._marks.get(place)

    def _location(self, mark: yaml.Mark | None) -> str:
        return f"{self.name}:{mark.line + 1}:{mark.column + 1}" if mark else self.name


def _by_location(problem: str) -> tuple[int, int, str]:
    found = re.search(r":(\d+):(\d+): ", problem)
    return (int(found[1]), int(found[2]), problem) if found else (0, 0, problem)
