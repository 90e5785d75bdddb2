"""The codec: states and events as versioned JSON."""

from __future__ import annotations

import json

import pytest

from crew import ScriptedProvider, call
from crew.errors import StoreError
from crew.messages import Transcript, UserMessage
from crew.store import decode_events, decode_state, encode_events, encode_state
from tests.support.runs import executor_for
from tests.support.stores import JsonStore
from tests.support.tools import look


async def test_decoding_returns_the_encoded_values() -> None:
    """The state and the events of a whole run."""
    store = JsonStore()
    script = ScriptedProvider([call("look", n=1), call("nothing")], "done \N{SLIGHTLY SMILING FACE}")
    result = await executor_for(script, look, store=store).execute("go", run_id="r")
    assert decode_state(encode_state(result.state)) == result.state
    events = store.events
    assert decode_events(encode_events(events)) == events
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no json",
        b"[]",
        b"{}",
        b'{"version": 99, "state": {}, "events": []}',
        b'{"version": 4}',
        b'{"version": 4, "state": {"run_id": 5}, "events": [{"kind": "nothing"}]}',
    ],
)
def test_other_data_is_refused(data: bytes) -> None:
    """Another version, another type, or invalid JSON: the error says which."""
    with pytest.raises(StoreError, match="stored"):
        decode_state(data)

    with pytest.raises(StoreError, match="stored"):
        decode_events(data)


async def test_encoded_state_holds_its_version() -> None:
    """A later release can recognize it."""
    result = await executor_for("scripted:hello").execute("go")
    assert json.loads(encode_state(result.state))["version"] == 4


def test_transcript_is_immutable() -> None:
    """Versions share one list; an append never shows in another version, also after a fork."""
    first = Transcript([UserMessage("a")])
    left = first.append(UserMessage("b"))
    right = first.append(UserMessage("c"))
    assert [m.text for m in first] == ["a"]  # type: ignore[union-attr]
    assert [m.text for m in left] == ["a", "b"]  # type: ignore[union-attr]
    assert [m.text for m in right.append(UserMessage("d"))] == ["a", "c", "d"]  # type: ignore[union-attr]
    assert left[-1] == UserMessage("b")
    assert right[0:5] == [UserMessage("a"), UserMessage("c")]
    assert left != right
    assert left == Transcript(list(left))
    assert hash(left) == hash(right)
    assert repr(left) == "Transcript(2 messages)"

    with pytest.raises(IndexError):
        first[1]
