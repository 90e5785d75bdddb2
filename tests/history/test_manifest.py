"""The manifest describes every request of a run, in the size of what changed."""

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


async def run_with_manifests(**options: Any) -> tuple[list[Manifest], Any, list[list[str]]]:
    """The manifests of a run, its result, and the message ids of each request."""
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
    assert [replace(m, tokens_billed=None, cached_billed=None, output_billed=None) for m in replied if m] == asked
    return [m for m in replied if m is not None], stream.result, sent


async def test_manifests_add_up_to_every_request() -> None:
    """Folding the manifests of an agent gives the ordered messages of each request."""
    for own in (None, Truncate(), MaskToolResults(keep_recent=3)):
        manifests, result, sent = await run_with_manifests(own=own)
        assert [m.manifest for m in result.transcript if m.role == "assistant"] == manifests

        for number in range(len(manifests)):
            assert [line.id for line in expand_manifests(manifests[: number + 1])] == sent[number]


async def test_manifest_is_as_large_as_the_change() -> None:
    """Its size does not grow with the run: between two prunings it lists only the two new messages."""
    manifests, _, _ = await run_with_manifests()
    held = [m for m in manifests if not m.moved_by]
    assert len(held) > 60
    assert all(len(m.tail) == 2 and not m.removed for m in held)


async def test_prefix_digest_equals_the_previous_request() -> None:
    """Unless a rule moved the prefix."""
    manifests, result, _ = await run_with_manifests()

    for before, after in pairwise(manifests):
        assert (after.prefix_digest == before.digest) == (after.moved_by == "")

    assert {m.moved_by for m in manifests} >= {"first request", "", "rolling"}
    assert result.metrics.prefix_breaks == sum(1 for m in manifests[1:] if m.moved_by)
    assert result.metrics.cached_predicted == sum(m.cached_predicted for m in manifests)
    assert result.metrics.tokens_billed == sum(m.tokens_billed or 0 for m in manifests)
    assert result.metrics.tokens_estimated == sum(m.tokens_estimated for m in manifests)


async def test_removed_messages_are_listed_with_the_rule() -> None:
    """Evicted by the policy of the crew, or hidden by a rule of the view."""
    manifests, _, _ = await run_with_manifests(max_messages_per_request=20)
    moved = [m for m in manifests if m.moved_by == "rolling"]
    assert moved
    assert all({line.disposition for line in m.removed} == {"evicted"} for m in moved)
    assert all({line.reason for line in m.removed} == {"rolling"} for m in moved)
    cut, _, _ = await run_with_manifests(own=Truncate(), history="unbounded")
    lines = [line for m in cut if m.moved_by == "truncate" for line in (*m.tail, *m.removed)]
    assert {(line.disposition, line.reason) for line in lines} == {
        ("kept", ""),
        ("marker", "truncate"),
        ("evicted", "truncate"),
    }


async def test_masked_results_are_listed_as_masked() -> None:
    """With the rule that masked them."""
    manifests, _, _ = await run_with_manifests(own=MaskToolResults(keep_recent=3))
    lines = [line for m in manifests for line in m.tail if line.disposition == "masked"]
    assert lines[0].reason == "mask_tool_results"
    assert {line.reason for line in lines} <= {"mask_tool_results", "masked before"}


async def test_replies_without_calls_are_listed_as_text() -> None:
    """After a handoff that lets only text cross."""
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


def test_covered_messages_are_listed_as_summarized() -> None:
    """They left the history, and a summary stands for them."""
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


def test_another_model_has_no_cached_prefix() -> None:
    """A prompt cache belongs to one model."""
    history, transcript = made(UserMessage("goal", id="g"), AssistantMessage("x", id="x"), UserMessage("y", id="y"))
    view = answered(View(), history)
    assert manifest(history, transcript, view).cached_predicted == 1_800
    assert manifest(history, transcript, view).moved_by == ""
    other = manifest(history, transcript, view, token_budget=TokenBudget(model="n"))
    assert (other.same_messages, other.cached_predicted, other.moved_by) == (0, 0, "another model")
    fallen = manifest(history, transcript, replace(view, moved_by="fallback"), token_budget=TokenBudget(model="n"))
    assert fallen.moved_by == "fallback"


def test_manifest_names_the_count_method() -> None:
    """Estimated, counted exactly, or calibrated by a bill."""
    history, transcript = made(UserMessage("goal", id="g"))
    assert manifest(history, transcript, View()).count_method == "estimated"
    assert manifest(history, transcript, View(), token_budget=TokenBudget(counts_exactly=True)).count_method == "exact"
    assert manifest(history, transcript, View(), calibration=Calibration(bill_count=1)).count_method == "calibrated"


def test_request_that_lost_its_end_differs_from_there_on() -> None:
    """Also if no new message takes its place."""
    history, transcript = made(UserMessage("goal", id="g"), AssistantMessage("x", id="x"))
    view = answered(View(), history)
    shorter = replace(history, entries=history.entries[:1])
    found = manifest(shorter, transcript, view)
    assert (found.same_messages, found.moved_by, found.tail) == (1, "rolling", ())


def test_each_form_of_a_message_has_a_separate_code() -> None:
    """Verbatim, as text, masked, or a summary at the position of the last message it covers."""
    result = ToolMessage((ToolResult(call_id="a", text="long"),), id="r")
    reply = AssistantMessage("text", calls=(ToolCall(id="a", name="read"),), id="c")
    history, _ = made(UserMessage("goal", id="g"), reply, result, SummaryMessage("short", id="s"), goal="g")
    assert entry_codes(history.entries, View()) == (0, 4, 8, 15)
    assert entry_codes(history.entries, View(masked_before=3)) == (0, 4, 10, 15)
    assert entry_codes(history.entries, View(handoff_text_only=(1,))) == (0, 5, 8, 15)


def test_scattered_masks_are_stored_one_by_one() -> None:
    """A custom policy can mask any message."""

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
