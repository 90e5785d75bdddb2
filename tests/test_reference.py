"""docs/reference.md is generated from the code, and current."""

import dataclasses
import importlib.util
from pathlib import Path
from typing import Any

import crew
from crew import errors
from crew.runs import events

ROOT = Path(__file__).parent.parent


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

    for name in crew.__all__:
        value = getattr(crew, name)
        is_error = isinstance(value, type) and issubclass(value, errors.CrewError)
        assert (f"| `{name}` |" if is_error else f"### `{name}`\n") in page, name

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
