"""Which messages the next turn of a conversation loads for its summaries."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from crew import Agent, CrewExecutor, ScriptedProvider
from crew.history.history import History
from crew.interfaces import HistoryEntry
from crew.messages import SummaryMessage, Transcript, UserMessage
from crew.store import SQLiteStore
from crew.store.codec import BareState
from crew.store.references import pending_positions
from tests.contracts.run_store import state


async def test_a_long_conversation_with_view_summaries_loads_no_more_for_a_turn(tmp_path: Path) -> None:
    """Each summary covers the one before; those of messages that left the shared history are not needed again."""
    store = SQLiteStore(tmp_path / "runs.db")
    store._file.execute("PRAGMA synchronous=OFF")
    agent = Agent("a", model=ScriptedProvider(lambda request: "answer " * 20), history="summarize")
    executor = CrewExecutor(agent, store=store, max_messages_per_request=20)
    loaded: list[int] = []

    for turn in range(90):
        await executor.execute(f"Question {turn}.", conversation="c")
        [data] = store._file.execute("SELECT state FROM runs ORDER BY rowid DESC LIMIT 1").fetchone()
        loaded.append(len(BareState(data).referenced_positions()))

    messages = await store.transcript("c")
    assert sum(isinstance(message, SummaryMessage) for message in messages) > 10
    assert max(loaded[-30:]) <= max(loaded[20:50])
    store.close()


def test_summaries_may_cover_each_other_any_number_of_times() -> None:
    """A summary that covers nothing but a summary stands where that one does: all below are needed."""
    count = 3_000
    first = UserMessage("hi", id="r:0")
    chain = [SummaryMessage("so far", id=f"r:{n}", covers=(f"r:{n - 1}",)) for n in range(1, count)]
    shown = HistoryEntry(message=chain[-1], position=0)
    found = replace(
        state(), transcript=Transcript([first, *chain]), history=History(entries=(shown,), size=1, goal="r:0")
    )
    assert pending_positions(found) == {*range(count)}
