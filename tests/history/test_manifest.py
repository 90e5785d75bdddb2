"""The manifest: enough to know every request of a run, in the size of what changed."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

from crew import Agent, CrewExecutor, ScriptedProvider, call, handoff, tool
from crew.agents import Crew
from crew.history import Calibration, History, RequestView, TokenBudget, View
from crew.history.manifest import build_manifest, expand_manifests
from crew.history.policies import MaskToolResults, Truncate
from crew.history.view import entry_codes, mask_messages, visible_entries, with_marker
from crew.interfaces import HistoryEntry, ModelReply
from crew.messages import (
    AssistantMessage,
    Manifest,
    ManifestLine,
    SummaryMessage,
    ToolCall,
    ToolMessage,
    ToolResult,
    Transcript,
    UserMessage,
)
from crew.runs.events import Asked, Replied
from crew.store import decode_events, encode_events


@tool
async def read(part: int) -> str:
    """Read a part."""
    return f"part {part}: " + "lorem ipsum dolor " * 60


def reader(parts: int) -> Any:
    return lambda request: call("read", part=request.turn) if request.turn < parts else "All read."


async def told(**options: Any) -> tuple[list[Manifest], Any, list[list[str]]]:
    """A run's manifests, its result, and the ids that each of its requests held."""
    sent: list[list[str]] = []

    def line(request: Any) -> Any:
        sent.append([message.id for message in request.messages])
        return reader(70)(request)

    history = options.pop("own", None)
    agent = Agent("reader", model=ScriptedProvider(line), tools=[read], history=history, max_input_tokens=6_000)
    executor = CrewExecutor(agent, **options)

    async with executor.execute_stream("Read it.") as stream:
        events = [event async for event in stream]

    assert decode_events(encode_events(events)) == events
    asked = [event.manifest for event in events if isinstance(event, Asked)]
    replied = [event.message.manifest for event in events if isinstance(event, Replied)]
    assert [replace(m, tokens_billed=None, cached_billed=None) for m in replied if m] == asked
    return [m for m in replied if m is not None], stream.result, sent


async def test_the_changes_add_up_to_every_request() -> None:
    """Folding the manifests of an agent gives the ordered messages of any of its requests."""
    for own in (None, Truncate(), MaskToolResults(keep_recent=3)):
        manifests, result, sent = await told(own=own)
        assert [m.manifest for m in result.transcript if m.role == "assistant"] == manifests

        for number in range(len(manifests)):
            assert [line.id for line in expand_manifests(manifests[: number + 1])] == sent[number]


async def test_a_manifest_is_as_large_as_what_changed() -> None:
    """Flat in the length of the run: between two prunings a manifest tells of the two new messages alone."""
    manifests, _, _ = await told()
    held = [m for m in manifests if not m.moved_by]
    assert len(held) > 60
    assert all(len(m.tail) == 2 and not m.removed for m in held)


async def test_a_prefix_that_held_still_is_the_request_before() -> None:
    """The digest of a request is the prefix of the next one, unless a rule moved it."""
    manifests, result, _ = await told()

    for before, after in pairwise(manifests):
        assert (after.prefix_digest == before.digest) == (after.moved_by == "")

    assert {m.moved_by for m in manifests} >= {"first request", "", "rolling"}
    assert result.metrics.prefix_breaks == sum(1 for m in manifests[1:] if m.moved_by)
    assert result.metrics.cached_predicted == sum(m.cached_predicted for m in manifests)
    assert result.metrics.tokens_billed == sum(m.tokens_billed or 0 for m in manifests)
    assert result.metrics.tokens_estimated == sum(m.tokens_estimated for m in manifests)


async def test_what_left_is_named_with_the_rule() -> None:
    """Evicted by the crew's policy, or hidden by a rule of the view."""
    manifests, _, _ = await told(max_messages_per_request=20)
    moved = [m for m in manifests if m.moved_by == "rolling"]
    assert moved
    assert all({line.disposition for line in m.removed} == {"evicted"} for m in moved)
    assert all({line.reason for line in m.removed} == {"rolling"} for m in moved)
    cut, _, _ = await told(own=Truncate(), history="unbounded")
    lines = [line for m in cut if m.moved_by == "truncate" for line in (*m.tail, *m.removed)]
    assert {(line.disposition, line.reason) for line in lines} == {
        ("kept", ""),
        ("marker", "truncate"),
        ("evicted", "truncate"),
    }


async def test_masked_results_are_told_as_masked() -> None:
    """With the rule that masked them."""
    manifests, _, _ = await told(own=MaskToolResults(keep_recent=3))
    lines = [line for m in manifests for line in m.tail if line.disposition == "masked"]
    assert lines[0].reason == "mask_tool_results"
    assert {line.reason for line in lines} <= {"mask_tool_results", "masked before"}


async def test_what_crossed_a_handoff_as_text_is_told_so() -> None:
    """A reply whose calls stayed behind."""
    second = Agent("second", model=ScriptedProvider("Done."))

    first = Agent(
        "first",
        model=ScriptedProvider(ModelReply(text="I look.", calls=(call("read", part=1),)), call("transfer_to_second")),
        tools=[read],
        handoffs=[handoff(second, history="text_only")],
    )
    result = await CrewExecutor(Crew("c", agents=[first, second])).execute("Read it.")
    manifest = result.transcript[-1].manifest  # type: ignore[union-attr]
    assert [(line.disposition, line.reason) for line in manifest.tail] == [
        ("kept", ""),
        ("text_only", "handoff"),
        ("kept", ""),
        ("kept", ""),
    ]


# ---------------------------------------------------------------------------------------------------- by hand


def made(*messages: Any, goal: str = "") -> tuple[History, Transcript]:
    entries = tuple(HistoryEntry(message=m, position=i, tokens=600) for i, m in enumerate(messages))
    return History(entries=entries, size=len(entries), goal=goal), Transcript(messages)


def manifest(history: History, transcript: Transcript, view: View, **changes: Any) -> Manifest:
    given: dict[str, Any] = {
        "token_budget": TokenBudget(model="m"),
        "calibration": Calibration(),
        "billed_until": 0,
        "policy": "rolling",
    }
    return build_manifest(history, transcript, view, RequestView.of(history, view), agent="a", **(given | changes))


def answered(view: View, history: History) -> View:
    return replace(
        view,
        turn=view.turn + 1,
        last_request=entry_codes(with_marker(visible_entries(history, view), view), view),
        last_model="m",
    )


def test_what_a_summary_covers_is_told_as_summarised() -> None:
    """It left the history, and something stands for it."""
    messages = [UserMessage("goal", id="g"), *(AssistantMessage(f"t{i}", id=f"t{i}") for i in range(4))]
    history, transcript = made(*messages, goal="g")
    view = answered(View(), history)
    summary = HistoryEntry(message=SummaryMessage("short", covers=("t0", "t1"), id="s"), position=2, tokens=5)
    later = replace(history, entries=(history.entries[0], summary, history.entries[4]))
    found = manifest(later, transcript, view)
    assert found.same_messages == 1
    assert found.moved_by == "rolling"
    assert found.removed == (
        ManifestLine(id="t0", disposition="summarised", reason="rolling"),
        ManifestLine(id="t2", disposition="evicted", reason="rolling"),
    )
    assert [line.id for line in found.tail] == ["s", "t3"]


def test_another_model_has_cached_nothing() -> None:
    """A cache belongs to a model, whatever is the same."""
    history, transcript = made(UserMessage("goal", id="g"), AssistantMessage("x", id="x"), UserMessage("y", id="y"))
    view = answered(View(), history)
    assert manifest(history, transcript, view).cached_predicted == 1_800
    assert manifest(history, transcript, view).moved_by == ""
    other = manifest(history, transcript, view, token_budget=TokenBudget(model="n"))
    assert (other.same_messages, other.cached_predicted, other.moved_by) == (0, 0, "another model")
    fallen = manifest(history, transcript, replace(view, moved_by="fallback"), token_budget=TokenBudget(model="n"))
    assert fallen.moved_by == "fallback"


def test_the_estimate_says_where_it_comes_from() -> None:
    """Estimated, counted exactly, or calibrated by a bill."""
    history, transcript = made(UserMessage("goal", id="g"))
    assert manifest(history, transcript, View()).count_method == "estimated"
    assert manifest(history, transcript, View(), token_budget=TokenBudget(counts_exactly=True)).count_method == "exact"
    assert manifest(history, transcript, View(), calibration=Calibration(bill_count=1)).count_method == "calibrated"


def test_a_request_that_lost_its_end_differs_from_there_on() -> None:
    """Also where nothing new stands in its place."""
    history, transcript = made(UserMessage("goal", id="g"), AssistantMessage("x", id="x"))
    view = answered(View(), history)
    shorter = replace(history, entries=history.entries[:1])
    found = manifest(shorter, transcript, view)
    assert (found.same_messages, found.moved_by, found.tail) == (1, "rolling", ())


def test_every_form_of_a_message_has_a_number_of_its_own() -> None:
    """Whole, as text, masked, or a summary in the place of the last message that it covers."""
    result = ToolMessage((ToolResult(call_id="a", text="long"),), id="r")
    reply = AssistantMessage("text", calls=(ToolCall(id="a", name="read"),), id="c")
    history, _ = made(UserMessage("goal", id="g"), reply, result, SummaryMessage("short", id="s"), goal="g")
    assert entry_codes(history.entries, View()) == (0, 4, 8, 15)
    assert entry_codes(history.entries, View(masked_before=3)) == (0, 4, 10, 15)
    assert entry_codes(history.entries, View(handoff_text_only=(1,))) == (0, 5, 8, 15)


def test_masks_that_are_not_at_the_front_are_kept_one_by_one() -> None:
    """A user's own policy may mask what it likes."""

    def exchange(name: str) -> list[Any]:
        made = AssistantMessage(calls=(ToolCall(id=name, name="read"),), id=f"c{name}")
        return [made, ToolMessage((ToolResult(call_id=name, text="long"),), id=f"r{name}")]

    history, transcript = made(UserMessage("goal", id="g"), *exchange("a"), *exchange("b"), *exchange("c"))
    view = mask_messages(View(), visible_entries(history, View()), {"rb"})
    assert (view.masked_before, view.masked_positions) == (0, (4,))
    whole = mask_messages(view, visible_entries(history, view), {"ra"})
    assert (whole.masked_before, whole.masked_positions) == (5, ())
    everything = mask_messages(whole, visible_entries(history, whole), {"rc"})
    assert (everything.masked_before, everything.masked_positions) == (7, ())
    nothing = mask_messages(View(), visible_entries(history, View()), set())
    assert (nothing.masked_before, nothing.masked_positions) == (0, ())
    lines = manifest(history, transcript, view).tail
    assert [line.disposition for line in lines].count("masked") == 1
