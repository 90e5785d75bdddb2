"""Checks that the packages of the extra `serve` are installed."""

from __future__ import annotations

from importlib.util import find_spec

from crew.errors import DefinitionError


def check_installed() -> None:
    """Raise `DefinitionError` with the command to install what is missing."""
    missing = [name for name in ("starlette", "uvicorn") if find_spec(name) is None]

    if missing:
        text = f"the package {' and '.join(missing)} is not installed; run: pip install 'crew-executor[serve]'"
        raise DefinitionError("crew.server", text)
