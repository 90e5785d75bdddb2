"""Imports the public names of a package on first use, so that importing the package loads none of its modules."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping


def lazy_names(package: str, modules: Mapping[str, str]) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """The module functions `__getattr__` and `__dir__` of a package; `modules` lists the names of each module.

    A package repeats these imports under `if TYPE_CHECKING:`, where type checkers and the import contracts see them.
    """
    owners = {name: module for module, names in modules.items() for name in names.split()}

    def load(name: str) -> object:
        if name in owners:
            value: object = getattr(importlib.import_module(owners[name]), name)
            setattr(sys.modules[package], name, value)  # the next access does not come here
            return value

        submodule = f"{package}.{name}"

        if not name.startswith("_"):
            try:
                return importlib.import_module(submodule)
            except ModuleNotFoundError as error:
                if error.name != submodule:
                    raise

        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def list_names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *owners})

    return load, list_names
