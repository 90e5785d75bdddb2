"""Imports what a configuration file names as `module:name`."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_REFERENCE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


def is_reference(text: str) -> bool:
    """Whether a text has exactly the form `module:name`."""
    return _REFERENCE.fullmatch(text) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportableModules:
    """Imports what a file names as `module:name`."""

    folder: Path
    allowed: tuple[str, ...] | None

    @contextmanager
    def importing(self) -> Iterator[None]:
        """Import modules next to the file, whatever the current directory is, unless only some modules are allowed.

        The folder is first on `sys.path` meanwhile, and stays last: a function may import its neighbours when it is
        called, and no module of the program is hidden.
        """
        if self.allowed is not None:
            yield
            return

        sys.path.insert(0, str(self.folder))

        try:
            yield
        finally:
            sys.path.remove(str(self.folder))

            if str(self.folder) not in sys.path:
                sys.path.append(str(self.folder))

    def load(self, path: str) -> object:
        """The object; raises `ImportError`, `AttributeError` or `ValueError`."""
        name, _, attribute = path.partition(":")

        if self.allowed is not None and not any(f"{name}.".startswith(f"{prefix}.") for prefix in self.allowed):
            listed = ", ".join(self.allowed) or "none"
            raise ImportError(f"the module {name!r} is not allowed (allowed modules: {listed})")

        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if self.allowed is None:
                raise

            hint = "with allowed modules, those next to the file are not found: install them, or set PYTHONPATH"
            raise ImportError(f"{error} ({hint})") from error

        if self.allowed is None:
            self._check_not_hidden(name)

        return getattr(module, attribute)

    def _check_not_hidden(self, name: str) -> None:
        package = name.partition(".")[0]
        files = (self.folder / f"{package}.py", self.folder / package / "__init__.py")
        neighbours = [file for file in files if file.is_file()]
        spec = sys.modules[package].__spec__

        origin = None if spec is None else spec.origin

        if neighbours and origin is not None and Path(origin).resolve() not in neighbours:
            raise ImportError(f"{neighbours[0]} is hidden by {origin}, which was imported before; rename one of them")
