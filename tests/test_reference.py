"""docs/reference.md is generated from the code, and current."""

import dataclasses
import importlib.util
import inspect
import pkgutil
from pathlib import Path
from typing import Any

import crew
from crew import errors
from crew.runs import events
from crew.tools import Tool

ROOT = Path(__file__).parent.parent
PUBLIC_MODULES: dict[str, tuple[str, ...]] = {
    "crew": (),
    **{
        f"crew.{found.name}": ()
        for found in pkgutil.iter_modules(crew.__path__)
        if found.ispkg and "\n__all__ = " in (ROOT / "crew" / found.name / "__init__.py").read_text(encoding="utf-8")
    },
    "crew.interfaces": ("ModelSettings", "Provider", "RetryPolicy", "PolicyOptions"),
    "crew.messages": ("Usage", "UserMessage", "Transcript"),
}
"""Every package with `__all__`, and names of modules without it."""


def load_script() -> Any:
    spec = importlib.util.spec_from_file_location("reference", ROOT / "scripts" / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_page_is_current() -> None:
    """Otherwise: python scripts/reference.py."""
    script = load_script()
    assert script.PAGE.read_text(encoding="utf-8") == script.page(), "run python scripts/reference.py"


def test_page_has_every_public_class_event_and_error() -> None:
    """With every field; two runs of the script write the same text."""
    script = load_script()
    page = script.page()
    assert page == script.page()

    for package, names in PUBLIC_MODULES.items():
        module = importlib.import_module(package)

        for name in names or module.__all__:
            value = getattr(module, name)
            is_row = vars(errors).get(name) is value
            is_documented = isinstance(value, Tool) or inspect.isclass(value) or inspect.isroutine(value)
            assert not is_documented or (f"| `{name}` |" if is_row else f"### `{name}`\n") in page, f"{package}.{name}"

    for name, kind in vars(events).items():
        if isinstance(kind, type) and issubclass(kind, events.BaseEvent) and kind is not events.BaseEvent:
            section = page.partition(f"### `{name}`\n")[2].partition("\n##")[0]
            common = {field.name for field in dataclasses.fields(events.BaseEvent)}
            missing = [
                f.name for f in dataclasses.fields(kind) if f.name not in common and f"| `{f.name}` |" not in section
            ]
            assert not missing, name

    for name, kind in vars(errors).items():
        if isinstance(kind, type) and issubclass(kind, errors.CrewError):
            assert f"| `{name}` |" in page
