"""A tracer provider that keeps what it gets, and a crew that does a little of everything."""

from collections.abc import Callable, Iterator

import pytest

from crew import Agent, Crew, Parallel, ScriptedProvider, call, tool
from tests.support.spans import RecordedSpans, recorded_spans


@pytest.fixture
def seen() -> Iterator[RecordedSpans]:
    """A new recorder."""
    with recorded_spans() as recorder:
        yield recorder


@tool
async def look(order_id: str) -> str:
    """Look an order up."""
    return f"order {order_id} is on its way"


@pytest.fixture
def support() -> Callable[..., Crew]:
    """Makes the crew."""
    return _support


def _support(calls: int = 8) -> Crew:
    """Triage hands over to billing, which calls a tool again and again, and then to a panel of two."""
    legal = Agent("legal", model=ScriptedProvider("Legal agrees."))
    finance = Agent("finance", model=ScriptedProvider("Finance agrees."))
    editor = Agent("editor", model=ScriptedProvider("The end."))
    panel = Parallel("panel", branches=[legal, finance], then=editor)
    script = [call("look", order_id=str(number)) for number in range(calls)]
    billing = Agent(
        "billing", model=ScriptedProvider(*script, call("transfer_to_panel")), tools=[look], handoffs=[panel]
    )
    triage = Agent("triage", model=ScriptedProvider(call("transfer_to_billing")), handoffs=[billing])
    return Crew("support", agents=[triage, billing, editor, legal, finance], groups=[panel])
