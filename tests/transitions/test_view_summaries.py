"""Summaries of one agent's view: only that agent sees them, nothing that it was shown is lost, each is paid once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crew import (
    Agent,
    Crew,
    CrewExecutor,
    Limits,
    Parallel,
    RequestParameters,
    RunResult,
    WholeHistory,
    call,
    handoff,
    simulate,
    tool,
)
from crew.errors import DefinitionError
from crew.history.handoff_filters import apply_handoff
from crew.history.policies import Checkpoint, HeadTail, MaskToolResults, Rolling, Summarize, Truncate, chain
from crew.history.view import ViewSummaries, visible_entries
from crew.interfaces import ModelRequest
from crew.runs import RunState
from crew.runs.event_text import event_text
from crew.runs.events import Asked, Compacted, CompactionFailed, HistoryPruned, Summarised
from tests.support.clocks import fixed_clock
from tests.support.messages import summaries_in, text_of, total_size
from tests.support.providers import CheckedModels, ReplyingProvider
from tests.support.runs import events_of_type, run_and_collect
from tests.support.stores import CheckedStore, Crash, JsonStore

# The bound of the history is smaller than some limits of policies here, on purpose.
pytestmark = pytest.mark.filterwarnings("ignore:.*has no effect")

WORDS = "There is a good deal to say about this, and it takes some words to say it well enough."


@tool(effect="read", touches="path")
def read(path: str) -> str:
    """Read a file."""
    return f"Contents of {path}. {WORDS}"


def reader(calls: int, summary: Any = "Files were read.", then: Any = "Done.") -> ReplyingProvider:
    """A model that reads so many files, one after the other, and then replies."""
    return ReplyingProvider(
        lambda request: call("read", path=f"src/{request.turn}.py") if request.turn < calls else then, summary
    )


def run_with(crew: Crew | Agent, **options: Any) -> CrewExecutor:
    """An executor whose limits end no run here, unless others are given."""
    return CrewExecutor(crew, **{"limits": Limits(rounds=400, handoffs=100), **options})


def own(state: RunState | None, agent: str) -> ViewSummaries:
    assert state is not None
    return state.views[agent].summaries or ViewSummaries()


def covered(result: RunResult) -> set[str]:
    """The messages that any summary of the transcript covers."""
    return {id for summary in summaries_in(result.transcript) for id in summary.covers}


# ------------------------------------------------------------------------------------------ one agent


@pytest.mark.parametrize(
    "policy",
    [
        "summarize",
        {"name": "summarize", "limit": 30},
        Summarize(limit=20),
        chain(MaskToolResults(keep_recent=3), Summarize(limit=30)),
        HeadTail(max_messages=20, preserve_first_n=2, preserve_last_n=6, summarize_on_trim=True),
        Checkpoint(trigger_at=30, keep_recent=6),
    ],
    ids=["name", "dict", "object", "chain", "head_tail", "checkpoint"],
)
async def test_agent_summarizes_what_leaves_its_view(policy: Any) -> None:
    """The summary is in its requests and in the transcript, never in the shared history. Nothing is lost: what a
    request lacks is covered by the summaries in it, each message once."""
    model, store = reader(56), CheckedStore()
    executor = run_with(Agent("a", model=model, tools=[read], history=policy), store=store)
    events, result = await run_and_collect(executor)
    compacted = events_of_type(events, Compacted)
    assert result.output == "Done."
    assert len(model.summaries) == len(compacted) >= 2
    assert {event.where for event in compacted} == {"view"}
    assert all(event.limit is not None and event.size <= event.limit for event in compacted)
    assert not summaries_in(result.history)
    assert [summary.id for summary in summaries_in(result.transcript)] == [event.summary for event in compacted]
    assert all(total_size(request.messages) <= 50 for request in model.replies)
    assert not store.violations
    last = model.replies[-1].messages
    assert summaries_in(last)
    assert last[0].id == result.transcript[0].id
    shown = {message.id for message in last}
    assert {m.id for m in result.transcript[:-1]} <= shown | covered(result)
    assert result.usage.requests == len(model.requests)


async def test_view_summary_request_extends_the_previous_request() -> None:
    """The summary is read from the prompt cache, also where the shared bound evicted the messages."""
    for policy, limit in ((Summarize(limit=20), 50), ("summarize", 20), (Summarize(threshold=0.5, target=0.2), 1_000)):
        model = reader(60)
        agent = Agent("a", model=model, tools=[read], history=policy, max_input_tokens=3_000)
        await run_with(agent, max_messages_per_request=limit).execute("Go.")
        assert len(model.summaries) >= 2

        for before, request in zip(model.requests, model.requests[1:], strict=False):
            if request.purpose == "summary":
                assert request.messages[:-1] == before.messages
                assert request.tools == before.tools


async def test_history_bound_feeds_the_summaries_of_a_view() -> None:
    """On a default executor the shared history evicts first; its messages are in the view's summary."""
    model = reader(40)
    agent = Agent("a", model=model, tools=[read], history=Summarize(limit=None))
    events, result = await run_and_collect(run_with(agent, max_messages_per_request=20))
    evicted = {i for e in events_of_type(events, HistoryPruned) if e.where == "history" for i in e.evicted}
    assert evicted
    assert evicted - {m.id for m in model.replies[-1].messages} <= covered(result) | set(own(result.state, "a").pending)


async def test_history_that_is_too_long_is_summarized_in_parts() -> None:
    """Messages of an imported history that the bound evicts at once are covered too, before the first request."""
    model = ReplyingProvider("Done.")
    earlier = [{"role": role, "content": f"{role} {n}. {WORDS}"} for n in range(40) for role in ("user", "assistant")]
    executor = run_with(Agent("a", model=model, history="summarize"), max_messages_per_request=20)
    result = await executor.execute("And now?", history=earlier)
    assert all(total_size(request.messages) <= 21 for request in model.requests)
    shown = {message.id for message in model.replies[0].messages}
    missing = {m.id for m in result.transcript[:80]} - shown - covered(result)
    assert missing == set(own(result.state, "a").pending)
    assert len(missing) < 10


@pytest.mark.parametrize(
    "parameters",
    [RequestParameters(max_history_size=12), RequestParameters(max_tokens=900)],
    ids=["max_history_size", "max_tokens"],
)
async def test_view_summary_stays_within_request_limits(parameters: RequestParameters) -> None:
    """What `max_history_size` and `max_tokens` hide is summarized; the summary leaves after all other messages."""
    model, store = reader(36), CheckedStore()
    executor = run_with(Agent("a", model=model, tools=[read], history="summarize"), store=store)
    result = await executor.execute("Go.", parameters=parameters)
    assert not store.violations
    assert summaries_in(model.replies[-1].messages)
    first = next(i for i, request in enumerate(model.replies) if summaries_in(request.messages))
    assert all(summaries_in(request.messages) for request in model.replies[first:])

    if parameters.max_history_size:
        assert all(total_size(request.messages) <= 12 for request in model.replies)

    shown = {message.id for message in model.replies[-1].messages}
    waiting = set(own(result.state, "a").pending)
    assert {m.id for m in result.transcript[:-1]} <= shown | covered(result) | waiting


async def test_view_summary_and_window_policy_share_a_view() -> None:
    """`truncate` hides messages behind a marker; the summary of the same view covers them."""
    model, store = reader(36), CheckedStore()
    policy = chain(Truncate(threshold=0.5, target=0.3), Summarize(limit=30))
    agent = Agent("a", model=model, tools=[read], history=policy, max_input_tokens=1_000)
    events, result = await run_and_collect(run_with(agent, store=store))
    last = model.replies[-1].messages
    assert not store.violations
    assert summaries_in(last)
    assert "truncate" in {event.policy for event in events_of_type(events, HistoryPruned)}
    assert {m.id for m in result.transcript[:-1]} <= {m.id for m in last} | covered(result) | set(
        own(result.state, "a").pending
    )


@pytest.mark.parametrize("kind", ["function", "provider", "model"])
async def test_agent_has_a_summarizer_of_its_own(kind: str) -> None:
    """A function, a provider or the name of a model writes the summaries of one view."""
    other = ReplyingProvider(summary="By another model.")
    given: Any = {"function": lambda span: f"{len(span)} by a function.", "provider": other, "model": "scripted:Named."}
    model = reader(40)
    agent = Agent("a", model=model, tools=[read], history=Summarize(limit=20, summarizer=given[kind]))
    result = await run_with(agent).execute("Go.")
    expected = {"function": "by a function.", "provider": "By another model.", "model": "Named."}
    assert not model.summaries
    assert bool(other.summaries) == (kind == "provider")
    assert all(expected[kind] in summary.text for summary in summaries_in(result.transcript))
    assert summaries_in(model.replies[-1].messages)


def test_unknown_summarizer_of_an_agent_is_refused() -> None:
    """The executor checks the names of all summarizers when it is created."""
    agent = Agent("a", model="scripted:x", history=Summarize(summarizer="nowhere:model"))

    with pytest.raises(DefinitionError, match="nowhere"):
        run_with(agent)


def test_view_without_space_for_a_summary_is_refused() -> None:
    """Goal, call, result and summary are four messages."""
    agent = Agent("a", model="scripted:x", tools=[read], history=Summarize(limit=3))

    with pytest.raises(DefinitionError, match="at least 4 messages, with its summary, not 3"):
        run_with(agent)


async def test_view_summaries_from_a_configuration_file(tmp_path: Path) -> None:
    """`history: summarize` of an agent in YAML."""
    path = tmp_path / "config.yaml"
    path.write_text(
        """\
crews:
  c:
    agents:
      a: {model: "scripted:Hello.", history: summarize, handoffs: [b]}
      b: {model: "scripted:Hello.", history: {name: summarize, limit: 20}}
    entry: a
""",
        encoding="utf-8",
    )
    executor = CrewExecutor.from_config(path, "c")
    assert executor.plan.view_limit("a") == 50
    assert executor.plan.view_limit("b") == 20
    assert set(executor.plan.view_summarizers) == {"a", "b"}


# ------------------------------------------------------------------------------------------ failures and limits


async def test_failed_view_summary_loses_nothing() -> None:
    """It emits CompactionFailed, counts in the usage, and its messages wait for the next summary."""
    answers = iter(["", "word " * 2_000, *["All of it."] * 20])
    model = reader(40, summary=lambda request: next(answers))
    agent = Agent("a", model=model, tools=[read], history=Summarize(limit=20))
    events, result = await run_and_collect(run_with(agent))
    failed = events_of_type(events, CompactionFailed)
    first, second = events_of_type(events, Compacted)[:2]
    assert [event.where for event in failed] == ["view", "view"]
    assert failed[0].pending_messages >= 10
    assert failed[1].pending_messages > failed[0].pending_messages
    # More than one request holds: two parts, and the second replaces the first.
    assert len({*first.covers, *second.covers} - {first.summary}) > failed[1].pending_messages
    assert first.summary in second.covers
    assert result.usage.requests == len(model.requests)
    assert "of the view" in event_text(failed[0])
    assert "of the view" in event_text(first)
    assert not own(result.state, "a").pending.keys() & covered(result)


async def test_run_limits_count_view_summaries() -> None:
    """The tokens of a summary end a run at its limit, before the next request."""
    model = reader(36)
    executor = run_with(Agent("a", model=model, tools=[read], history=Summarize(limit=20)))
    events, result = await run_and_collect(executor)
    used = [event.usage for event in events_of_type(events, Summarised)]
    before = sum(request.purpose == "reply" for request in model.requests[: model.requests.index(model.summaries[0])])
    assert result.usage.requests == len(model.requests)
    assert all(usage.requests == 1 for usage in used)
    again = reader(36)
    agent = Agent("a", model=again, tools=[read], history=Summarize(limit=20))
    result = await run_with(agent, limits=Limits(rounds=before + 1)).execute("Go.")
    assert result.stop_reason == "limit"
    assert (len(again.replies), len(again.summaries)) == (before, 1)
    assert summaries_in(result.transcript)


async def test_view_summary_is_paid_once_across_crashes() -> None:
    """Killed after any commit around a summary and resumed, a run sends the same requests and has the same result."""

    def executor(model: Any, store: Any) -> CrewExecutor:
        agent = Agent("a", model=model, tools=[read], history=Summarize(limit=14))
        return run_with(agent, store=store, clock=fixed_clock, monotonic=fixed_clock)

    whole, complete = reader(16), JsonStore()
    expected = await executor(whole, complete).execute("Go.", run_id="r")
    assert len(whole.summaries) >= 2

    due = [i for i, state in enumerate(complete.states) if state.next.kind == "compact"]

    for after in sorted({max(1, i + n) for i in due for n in (0, 1, 2)}):
        first, second, store = reader(16), reader(16), JsonStore(crash_after=after)

        with pytest.raises(Crash):
            await executor(first, store).execute("Go.", run_id="r")

        result = await executor(second, store).resume("r")
        again = len(first.requests) + len(second.requests) - len(whole.requests)
        assert again in (0, 1)
        assert first.shown[: len(first.requests) - again] + second.shown == whole.shown
        assert [m.id for m in result.transcript] == [m.id for m in expected.transcript]
        assert result.usage == expected.usage


async def test_resume_without_the_summarizing_policy_continues() -> None:
    """A summary that was due when the crew changed is made; the view keeps it."""
    model, store = reader(30), JsonStore()
    agent = Agent("a", model=model, tools=[read], history=Summarize(limit=14))
    await run_with(agent, store=store).execute("Go.", run_id="r")
    due = next(i for i, state in enumerate(store.states) if state.next.kind == "compact")
    stopped = CheckedStore.after(store.snapshots[: due + 1])
    plain = Agent("a", model=reader(30), tools=[read])
    result = await run_with(plain, store=stopped).resume("r")
    assert result.output == "Done."
    assert len(own(result.state, "a").shown) == 1


# ------------------------------------------------------------------------------------------ several agents


def pair(first: Any, second: Any, back: str = "full", there: str = "full", policy: Any = None) -> Crew:
    """Agent `a`, whose view is summarized, and `b`, which hands back to it."""
    b = Agent("b", model=second, tools=[read], handoffs=[handoff("a", history=back)])
    policy = policy or Summarize(limit=14)
    a = Agent("a", model=first, tools=[read], handoffs=[handoff("b", history=there)], history=policy)
    return Crew("c", agents=[a, b])


def worker(prefix: str, works: int, target: str) -> ReplyingProvider:
    """Reads so many files, hands off, and does the same when it gets control again; its third reply is the last."""

    def reply(request: ModelRequest) -> Any:
        part, rest = divmod(request.turn, works + 1)
        return (
            "Done."
            if part == 2
            else call(f"transfer_to_{target}")
            if rest == works
            else call("read", path=f"{prefix}/{request.turn}.py")
        )

    return ReplyingProvider(reply, summary=lambda request: f"Summary for {request.agent}.")


async def test_only_the_agent_itself_sees_its_summaries() -> None:
    """Across handoffs there and back its summary stays; the other agent never gets it."""
    first, second, store = worker("one", 12, "b"), worker("two", 12, "a"), CheckedStore()
    result = await run_with(pair(first, second), store=store).execute("Go.")
    assert result.output == "Done."
    assert not store.violations
    assert not second.summaries
    assert not any(summaries_in(request.messages) for request in second.requests)
    back = next(r for r in first.replies if "two/" in str(r.messages))
    assert summaries_in(back.messages)
    assert not summaries_in(result.history)
    assert set(own(result.state, "a").shown[-1].entry.message.covers) <= {m.id for m in result.transcript}


async def test_view_summaries_cover_only_what_the_agent_was_shown() -> None:
    """A handoff that passes nothing on: the agent's summary holds nothing from before, and nothing of the other's
    work that left the history before it came back."""
    first, second, store = worker("one", 12, "b"), worker("two", 30, "a"), CheckedStore(20)
    executor = run_with(pair(first, second, back="none"), max_messages_per_request=20, store=store)
    result = await executor.execute("Go.")
    assert not store.violations
    assert first.summaries
    assert not any("two/" in str(summary) for summary in summaries_in(result.transcript))
    assert not any("two/" in str(message) for message in result.transcript if message.id in covered(result))
    back = next(r for r in first.replies if r.turn == 13)
    assert not summaries_in(back.messages)  # from before the handoff, which passed nothing on


async def test_full_handoff_shows_the_summaries_again() -> None:
    """A filtered handoff hides them with the messages that they cover; a full one passes on both."""
    model = ReplyingProvider("x")
    state = await run_with(pair(worker("one", 12, "b"), model)).execute("Go.")
    assert state.state is not None
    view, history = state.state.views["a"], state.state.history
    end = len(state.transcript)
    hidden = apply_handoff(view, history, end, "none")
    assert not summaries_in([e.message for e in visible_entries(history, hidden)])
    texts = apply_handoff(view, history, end, "text_only")
    assert len(summaries_in([e.message for e in visible_entries(history, texts)])) == 1
    chosen = apply_handoff(view, history, end, summaries_in)
    assert len(summaries_in([e.message for e in visible_entries(history, chosen)])) == 1
    again = apply_handoff(hidden, history, end, "full")
    assert visible_entries(history, again) == visible_entries(history, view)


async def test_branches_and_called_agents_summarize_their_views() -> None:
    """Each has a summary of its own; the parent's history and view have none."""
    models = [reader(20, summary=f"By {n}.", then=f"Part {n}.") for n in range(3)]
    left, right, helper = (
        Agent(name, model=model, tools=[read], history=Summarize(limit=14), instructions="Read.")
        for name, model in zip(("left", "right", "helper"), models, strict=True)
    )
    end = Agent("end", model=ReplyingProvider("The end."))
    ask = ReplyingProvider(lambda r: call("ask_helper", request="Help.") if r.turn == 0 else call("transfer_to_both"))
    start = Agent("start", model=ask, tools=[helper.as_tool()], handoffs=[handoff("both")])
    crew = Crew(
        "c",
        agents=[start, left, right, end],
        groups=[Parallel("both", branches=["left", "right"], then="end")],
        entry="start",
    )
    store = CheckedStore()
    events, result = await run_and_collect(run_with(crew, store=store))
    assert result.output == "The end."
    assert not store.violations
    assert {event.agent for event in events_of_type(events, Compacted)} == {"left", "right", "helper"}
    assert not summaries_in(result.transcript)

    for branch, model in zip(result.branches, (models[2], models[0], models[1]), strict=True):
        assert {summary.text[:5] for summary in summaries_in(branch.transcript)} == {model.summary[:5]}
        assert summaries_in(model.replies[-1].messages)

    assert result.usage.requests == sum(len(model.requests) for model in (*models, ask, end.model))


async def test_conversation_continues_with_the_summaries_of_its_views() -> None:
    """`history=result`: the summary is in the first request of the next turn, and what waits is covered later."""
    model, store = ReplyingProvider(lambda r: f"Answer {r.turn}. {WORDS}"), CheckedStore()
    executor = run_with(Agent("a", model=model, history=Summarize(limit=14)), store=store)
    result: RunResult | None = None

    for turn in range(30):
        result = await executor.execute(f"Question {turn}. {WORDS}", history=result)

    assert result is not None
    assert not store.violations
    assert len(model.summaries) >= 3
    last = model.replies[-1].messages
    assert len(summaries_in(last)) == 1
    shown = {message.id for message in last}
    waiting = set(own(result.state, "a").pending)
    assert {m.id for m in result.transcript[:-1]} <= shown | covered(result) | waiting
    first = next(i for i, request in enumerate(model.replies) if summaries_in(request.messages))
    assert all(summaries_in(request.messages) for request in model.replies[first:])


# ------------------------------------------------------------------------------------------ beside other summaries


async def test_request_shows_messages_in_one_summary() -> None:
    """Where the executor summarizes too, the view shows its own summary in place of the history's: no message is in
    two summaries of one request."""
    for limit in (20, None):
        model, store = reader(36), CheckedStore()
        agent = Agent("a", model=model, tools=[read], history=Summarize(limit=limit))
        executor = run_with(agent, history=Summarize(limit=40), store=store)
        events, result = await run_and_collect(executor)
        assert not store.violations
        assert all(len(summaries_in(request.messages)) <= 1 for request in model.replies)
        shown = {summary.id for request in model.replies for summary in summaries_in(request.messages)}
        compacted = events_of_type(events, Compacted)
        assert {event.where for event in compacted} == {"history", "view"}
        assert shown == {event.summary for event in compacted if event.where == "view"}
        assert len(summaries_in(result.history)) == 1


async def test_summary_of_the_history_shows_what_others_did() -> None:
    """The history's summary of another agent's work is shown when the agent gets control again: no summary of its
    view covers that work."""
    first, second, store = worker("one", 4, "b"), worker("two", 30, "a"), CheckedStore(20)
    executor = run_with(pair(first, second), history=Summarize(limit=20), store=store)
    await executor.execute("Go.")
    assert not store.violations
    back = next(request for request in first.replies if request.turn == 5)
    assert "two/5.py" in text_of(summaries_in(back.messages))


async def test_compression_beside_view_summaries_loses_nothing() -> None:
    """The TL;DR that a caller asks for is shown in the view; its messages no longer wait for the view's summary."""
    model, store = reader(40), CheckedStore()
    agent = Agent("a", model=model, tools=[read], history=Summarize(limit=30))
    executor = run_with(agent, store=store)
    parameters = RequestParameters(compression_strategy=WholeHistory())
    result = await executor.execute("Go.", parameters=parameters)
    assert not store.violations
    shown = {message.id for message in model.replies[-1].messages}
    waiting = set(own(result.state, "a").pending)
    assert {m.id for m in result.transcript[:-1]} <= shown | covered(result) | waiting
    assert summaries_in(model.replies[-1].messages)


# ------------------------------------------------------------------------------------------ what is reported


async def test_manifest_names_what_a_view_summary_replaced() -> None:
    """Messages are `summarised` by the agent's policy, the summary is a message of the request."""
    model = reader(40)
    agent = Agent("a", model=model, tools=[read], history=Summarize(limit=20))
    events, _ = await run_and_collect(run_with(agent))
    summaries = {event.summary: event for event in events_of_type(events, Compacted)}
    moved = [event.manifest for event in events_of_type(events, Asked) if event.manifest.moved_by == "summarize"]
    assert len(moved) == len(summaries)

    for manifest, (id, event) in zip(moved, summaries.items(), strict=True):
        assert id in [line.id for line in manifest.tail]
        gone = {line.id: line.disposition for line in manifest.removed}
        assert gone
        assert set(gone.values()) == {"summarised"}
        assert gone.keys() <= set(event.covers)


async def test_replay_makes_the_same_view_summaries() -> None:
    """`simulate` with the crew replays the run: the same requests, summaries among them."""
    model = reader(40)
    agent = Agent("a", model=model, tools=[read], history=Summarize(limit=20))
    result = await run_with(agent).execute("Go.")
    (row,) = simulate(result, ["rolling"], crew=agent).rows
    assert [request.purpose for request in row.requests] == [request.purpose for request in model.requests]
    assert [len(request.messages) for request in row.requests] == [len(r.messages) for r in model.requests]


# ------------------------------------------------------------------------------------------ any conversation


policies = st.sampled_from(
    [
        Summarize(limit=8),
        Summarize(limit=None, threshold=0.4, target=0.2),
        Checkpoint(trigger_at=10, keep_recent=3),
        HeadTail(max_messages=10, preserve_first_n=1, preserve_last_n=3, summarize_on_trim=True),
        chain(Rolling(limit=9), Summarize(limit=12)),
        chain(MaskToolResults(keep_recent=1), Truncate(threshold=0.5, target=0.3), Summarize(limit=12)),
    ]
)
moves = st.lists(st.sampled_from(["read", "read", "read2", "text", "hand off", "empty"]), min_size=15, max_size=45)


@settings(max_examples=max(1, settings().max_examples // 5))
@given(
    policy=policies,
    shared=st.sampled_from([Rolling(limit=12), Rolling(limit=30), Summarize(limit=16)]),
    script=moves,
    size=st.sampled_from([None, 7, 20]),
    failing=st.sets(st.integers(0, 8), max_size=4),
    filters=st.fixed_dictionaries({name: st.sampled_from(["full", "none", "text_only", "last"]) for name in "ab"}),
    seed=st.integers(0, 3),
)
async def test_views_with_summaries_keep_every_invariant(
    policy: Any,
    shared: Any,
    script: list[str],
    size: int | None,
    failing: set[int],
    filters: dict[str, Any],
    seed: int,
) -> None:
    """Any policies, moves, handoffs and failing summaries, over several turns: requests are valid and within their
    limits, the goal stays, and every message that left a view is covered by exactly one of its summaries, or waits."""
    models, store = CheckedModels(shared.limit), CheckedStore(shared.limit)
    steps = iter(script)
    made = iter(range(1_000))

    def reply(request: ModelRequest) -> Any:
        if request.purpose == "summary":
            return "" if next(made) in failing else f"Summary. {WORDS}"[: 20 + 20 * seed]

        match next(steps, "text"):
            case "read" | "read2" as kind:
                return [call("read", path=f"{request.agent}/{request.turn}-{n}") for n in range(1 + (kind == "read2"))]
            case "hand off":
                return call("transfer_to_b" if request.agent == "a" else "transfer_to_a")
            case kind:
                return f"Reply. {WORDS}" if kind == "text" else ""

    def agent(name: str, other: str, history: Any) -> Agent:
        return Agent(
            name,
            model=models.scripted(reply),
            tools=[read],
            handoffs=[handoff(other, history=filters[name])],
            history=history,
            max_input_tokens=2_000,
        )

    crew = Crew("c", agents=[agent("a", "b", policy), agent("b", "a", None if seed % 2 else policy)])
    executor = run_with(crew, history=shared, store=store)
    result: RunResult | None = None
    parameters = RequestParameters(max_history_size=size)

    for turn in range(6):
        result = await executor.execute(f"Question {turn}. {WORDS}", history=result, parameters=parameters)

    assert result is not None
    assert not models.violations
    assert not store.violations
    goals = [request for request in models.requests if request.purpose == "reply"]
    assert all(any("Question" in text_of([m]) for m in request.messages) for request in goals)
    assert size is None or all(total_size(request.messages) <= size for request in goals)
