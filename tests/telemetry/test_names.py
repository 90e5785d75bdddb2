"""The names module is complete, and the tables that are generated from it are current."""

import importlib.util
from collections.abc import Callable
from pathlib import Path

from crew import Agent, Crew, CrewExecutor, RunError, ScriptedProvider, call
from crew.telemetry import names
from crew.telemetry.event_table import ON_ROOT, SPAN_EVENT_ENTRIES, SPAN_EVENTS

ROOT = Path(__file__).parents[2]


def test_tables_in_the_docs_are_current() -> None:
    """Otherwise: python scripts/telemetry_tables.py."""
    spec = importlib.util.spec_from_file_location("telemetry_tables", ROOT / "scripts" / "telemetry_tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    page = module.PAGE.read_text(encoding="utf-8")
    assert module.renewed(page) == page, "run python scripts/telemetry_tables.py"


async def test_every_emitted_name_is_in_the_tables(seen, support: Callable[..., Crew]) -> None:
    """Spans, attributes, events and links of a run with content, and of one that fails."""
    telemetry = seen.telemetry(capture_content=True)
    await CrewExecutor(support(), max_messages_per_request=10, telemetry=telemetry).execute("Go")

    try:
        failing = Agent("a", model=ScriptedProvider(call("x"), RuntimeError("no")))
        await CrewExecutor(failing, telemetry=telemetry).execute("Go")
    except RunError:
        pass

    kinds = {name.split(" ")[0] for name in names.SPANS}
    assert {span.name.split(" ")[0] for span in seen.spans} <= kinds
    keys = {key for span in seen.spans for key in span.attributes}
    keys |= {key for span in seen.spans for link in span.links for key in link.attributes}
    assert keys <= set(names.ATTRIBUTES)
    assert {event.name for span in seen.spans for event in span.events} <= set(SPAN_EVENTS)


def test_every_span_event_is_listed() -> None:
    """The docs list every span event."""
    assert {entry.name for entry in SPAN_EVENT_ENTRIES.values()} == set(SPAN_EVENTS)
    assert set(SPAN_EVENTS) >= ON_ROOT
