"""Summaries as steps: within the message limit, from the prompt cache, retried after a failure."""

import asyncio
import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from crew import Agent, Crew, CrewExecutor, Limits, Parallel, Route, ScriptedProvider, call, handoff, tool
from crew.errors import DefinitionError
from crew.history.policies import Checkpoint, HeadTail, Summarize
from crew.messages import Message, SummaryMessage, UserMessage, message_size
from crew.runs import Event, RunResult
from crew.runs.events import Asked, Compacted, CompactionFailed, HistoryPruned, Summarised
from crew.store import MemoryStore
from tests.support.messages import summaries_in, text_of, total_size
from tests.support.providers import RecordingProvider, ReplyingProvider
from tests.support.runs import collect, events_of_type, executor_for

WORDS = "There is a good deal to say about this, and it takes some words to say it well enough."


@tool(effect="read", touches="path")
def read(path: str) -> str:
    """Read a file."""
    return f"Contents of {path}. {WORDS}"


def replying(reply: Any = lambda r: f"Answer {r.turn}. {WORDS}", summary: Any = "What was said before.") -> Any:
    return ReplyingProvider(reply, summary)


async def talk(
    executor: CrewExecutor, turns: int, start: RunResult | None = None, say: Callable[[int], str] | None = None
) -> tuple[RunResult, list[Event]]:
    """A conversation of so many turns, and its events."""
    result, events = start, []

    for turn in range(turns):
        text = say(turn) if say else f"Question {turn}. {WORDS}"

        async with executor.execute_stream(text, history=result) as stream:
            events.extend([event async for event in stream])

        result = stream.result

    assert result is not None
    return result, events


# ------------------------------------------------------------------------------------------ checkpoint


async def test_results_without_output_are_not_summarized() -> None:
    """Calls without arguments whose tools return nothing have no text that a summary could keep."""

    @tool(effect="read")
    async def tick() -> str:
        """Return nothing."""
        return ""

    model = replying(lambda r: [call("tick")] if r.turn < 60 else "done")
    executor = CrewExecutor(Agent("a", model=model, tools=[tick]), history=Checkpoint(trigger_at=20, keep_recent=10))
    result = await executor.execute("go")
    assert result.metrics.messages_pruned > 40
    assert not summaries_in(result.history)


async def test_checkpoint_keeps_ten_recent_messages() -> None:
    """`checkpoint(trigger_at=100, keep_recent=10)`: one checkpoint at the trigger, a second after the next; the
    transcript is complete."""
    model = replying()
    executor = CrewExecutor(Agent("a", model=model), history=Checkpoint(trigger_at=100, keep_recent=10))
    result, _ = await talk(executor, 50)
    assert len(result.history) <= 10  # the 100th message came: all but ten have left
    result, _ = await talk(executor, 1, result)
    assert len(summaries_in(result.history)) == 1
    assert len(model.requests[-1].messages) == 12  # ten that remained, the checkpoint, the new question
    result, _ = await talk(executor, 5, result)
    assert len(summaries_in(result.history)) == 2
    assert len(result.transcript) == 2 * 56 + 2
    covered = {id for message in summaries_in(result.history) for id in message.covers}
    shown = {message.id for message in result.history}
    assert {message.id for message in result.transcript} == covered | shown


async def test_checkpoints_stay_until_they_fill_half_the_limit() -> None:
    """Then the oldest leave the history; the transcript keeps them."""
    executor = CrewExecutor(Agent("a", model=replying()), history=Checkpoint(trigger_at=24, keep_recent=4))
    result, _ = await talk(executor, 120)
    shown = summaries_in(result.history)
    assert 1 < len(shown) <= 12
    assert [m.id for m in shown] == [m.id for m in summaries_in(result.transcript)][-len(shown) :]
    assert len(summaries_in(result.transcript)) > 12


async def test_no_checkpoint_if_nothing_can_be_evicted() -> None:
    """Mandatory messages alone do not trigger a checkpoint."""
    model = replying(
        reply=lambda request: [call("read", path=f"{n}") for n in range(8)] if request.turn < 1 else "Done."
    )
    executor = CrewExecutor(Agent("a", model=model, tools=[read]), history=Checkpoint(trigger_at=11, keep_recent=2))
    result = await executor.execute("Read them.")
    assert not model.summaries
    assert result.output == "Done."


# ------------------------------------------------------------------------------------------ how a summary is made


async def test_summary_request_extends_the_previous_request() -> None:
    """It reads the prompt cache: same messages, tools and instructions, plus one instruction."""
    model = replying(reply=lambda r: call("read", path=f"src/{r.turn}.py") if r.turn < 60 else "Done.")
    agent = Agent("a", instructions="Read files.", model=model, tools=[read])
    await CrewExecutor(agent, history=Summarize(limit=30)).execute("Read them all.")
    assert len(model.summaries) > 2

    for index, request in enumerate(model.requests):
        if request.purpose == "summary":
            before = model.requests[index - 1]
            assert request.messages[:-1] == before.messages
            assert (request.tools, request.instructions) == (before.tools, before.instructions)
            assert request.settings.max_output_tokens == 1024
            assert "data" in text_of(request.messages[-1:])


async def test_unseen_messages_are_summarized_from_the_transcript() -> None:
    """After a handoff that lets nothing cross, evicted messages come from the transcript, within the limit."""
    first = replying(reply=lambda r: call("read", path=f"src/{r.turn}.py") if r.turn < 9 else call("transfer_to_b"))
    second = replying()
    b = Agent("b", instructions="Go on.", model=second, tools=[read])
    a = Agent("a", model=first, tools=[read], handoffs=[handoff(b, history="none")])
    second.reply = lambda r: call("read", path=f"docs/{r.turn}.md") if r.turn < 20 else "Done."
    crew = Crew("c", agents=[a, b])
    await CrewExecutor(crew, history=HeadTail(max_messages=22, preserve_last_n=4, summarize_on_trim=True)).execute(
        "Go."
    )
    request = (first.summaries + second.summaries)[0]
    assert request.agent == "b"
    assert "src/0.py" in str(request.messages)
    assert sum(map(message_size, request.messages)) <= 23


async def test_summary_that_is_not_smaller_is_refused() -> None:
    """Its messages are carried over to the next summary."""
    model = replying(reply="Yes.", summary="word " * 400)
    executor = CrewExecutor(Agent("a", model=model), history=Checkpoint(trigger_at=20, keep_recent=4))
    result, events = await talk(executor, 30, say=lambda turn: "And?")
    assert events_of_type(events, CompactionFailed)
    assert "not smaller" in events_of_type(events, CompactionFailed)[0].reason
    assert not summaries_in(result.transcript)


@pytest.mark.parametrize(
    ("summary", "why"),
    [
        (lambda r: call("read", path="x"), "called read"),
        (lambda r: RuntimeError("down"), "down"),
        (lambda r: "  ", "empty"),
        (lambda r: "word " * 2000, "more than 1024"),
    ],
    ids=["calls", "raises", "empty", "long"],
)
async def test_failed_summary_is_retried_after_ten_evictions(summary: Any, why: str) -> None:
    """The eviction stands, the run continues, and the next summary covers the messages of the failed ones."""
    model = replying()
    model.summary = lambda r: summary(r) if len(model.summaries) <= 2 else "What was said before."
    executor = CrewExecutor(
        Agent("a", model=model, tools=[read]),
        history=HeadTail(max_messages=20, preserve_last_n=4, summarize_on_trim=True),
    )
    result, events = await talk(executor, 40)
    failed = events_of_type(events, CompactionFailed)
    assert len(failed) == 2
    assert all(why in event.reason for event in failed)
    assert failed[0].pending_messages < failed[1].pending_messages
    assert (
        len(events_of_type(events, Compacted)[0].covers) == 19
    )  # oldest first, as many as a request holds; the rest waits on
    order = [event for event in events if isinstance(event, HistoryPruned | Summarised)]
    since = 0

    for event in order:
        if isinstance(event, Summarised):
            assert since >= 10
            since = 0
        else:
            since += event.before - event.after

    gone = {id for event in events_of_type(events, HistoryPruned) for id in event.evicted}
    covered = {id for event in events_of_type(events, Compacted) for id in event.covers}
    waiting = set(result.state.pending_summary.message_ids)
    assert gone <= covered | waiting


async def test_summaries_count_in_usage_and_limits() -> None:
    """Its tokens are in the usage, and it counts as a round."""
    model = replying(reply=lambda r: call("read", path=f"{r.turn}") if r.turn < 40 else "Done.")
    agent = Agent("a", model=model, tools=[read])
    result = await CrewExecutor(agent, history=Summarize(limit=20)).execute("Read.")
    assert model.summaries
    assert result.usage.requests == len(model.requests)
    assert result.state.counters.rounds == len(model.requests)
    model.requests.clear()
    result = await CrewExecutor(agent, history=Summarize(limit=20), limits=Limits(rounds=15)).execute("Read.")
    assert (result.stop_reason, len(model.requests)) == ("limit", 15)
    assert model.summaries


async def test_summarizer_can_be_a_model_a_tool_or_a_function() -> None:
    """The text ends up in the history in each case."""
    other = ScriptedProvider(lambda request: "Written by another model.", model="other")

    async def later(messages: Sequence[Message]) -> str:
        return f"{len(messages)} messages, written later."

    @tool
    def write(text: str) -> str:
        """Summarise."""
        return f"Written by a tool from {len(text) > 100} text."

    cases: list[tuple[Any, str]] = [
        (other, "another model"),
        ("scripted:Written by name.", "by name"),
        (lambda messages: f"{len(messages)} messages at once.", "at once"),
        (later, "written later"),
        (write, "by a tool from True"),
    ]

    for summarizer, words in cases:
        model = replying()
        policy = Checkpoint(trigger_at=20, keep_recent=4, summarizer=summarizer)
        result, _ = await talk(CrewExecutor(Agent("a", model=model), history=policy), 15)
        assert words in text_of(summaries_in(result.history))
        assert not model.summaries


async def test_run_resumes_at_an_interrupted_summary() -> None:
    """The step is stored: nothing before it is repeated, and the summary is requested again."""
    store, asked = MemoryStore(), asyncio.Event()
    hang = True

    async def summarise(messages: Sequence[Message]) -> str:
        asked.set()
        await asyncio.sleep(3600 if hang else 0)
        return "What was read before."

    model = replying(reply=lambda r: call("read", path=f"src/{r.turn}.py") if r.turn < 30 else "Done.")
    agent = Agent("a", model=model, tools=[read])
    policy = Summarize(limit=20, summarizer=summarise)
    work = asyncio.ensure_future(CrewExecutor(agent, history=policy, store=store).execute("Read.", run_id="r"))
    await asked.wait()
    before = len(model.requests)
    work.cancel()
    await asyncio.wait([work])
    hang = False
    result = await CrewExecutor(agent, history=policy, store=store).resume("r")
    assert result.output == "Done."
    assert summaries_in(result.transcript)
    assert [r.turn for r in model.requests] == list(range(31))
    assert before < 31


# ------------------------------------------------------------------------------------------ facts


@pytest.mark.parametrize(
    "policy",
    [
        Summarize(limit=24),
        HeadTail(max_messages=24, preserve_last_n=6, summarize_on_trim=True),
        Checkpoint(trigger_at=60, keep_recent=6),
    ],
    ids=lambda policy: policy.name,
)
async def test_twenty_summaries_keep_forty_identifiers_in_view(policy: Any) -> None:
    """Ids, paths and numbers of the user stay readable, although the summarizer omits them."""
    facts = [f"INV-{7000 + n}" if n % 3 == 0 else f"src/m{n}.py" if n % 3 == 1 else f"{n}0.{n}" for n in range(40)]
    model = replying(summary="The user gave facts.")
    executor = CrewExecutor(Agent("a", model=model), history=policy)
    result: Any = None
    turn = 0

    while len(summaries_in(result.transcript) if result else []) < 20 or turn < 40:
        fact = f"Mind {facts[turn]}." if turn < 40 else WORDS
        result, _ = await talk(executor, 1, result, lambda _, fact=fact: fact)  # type: ignore[misc]
        turn += 1
        assert turn < 500

    await talk(executor, 1, result)
    view = text_of(model.requests[-1].messages)
    missing = [fact for fact in facts if not re.search(rf"(?<![\w.]){re.escape(fact)}(?![\w])", view)]
    assert not missing


async def test_omitted_identifiers_are_counted_and_recallable() -> None:
    """At most 256 tokens of identifiers are attached; the others are counted."""
    executor = CrewExecutor(Agent("a", model=replying()), history=Checkpoint(trigger_at=40, keep_recent=4))
    ids = [f"TICKET-{n}-{n * 7919}" for n in range(400)]
    result, _ = await talk(executor, 25, say=lambda turn: " ".join(ids[turn * 16 : turn * 16 + 16]))
    text = text_of(summaries_in(result.history))
    assert ids[0] in text
    assert re.search(r"\(\d+ more: recall\)", text)
    assert len(text) < 1500


# ------------------------------------------------------------------------------------------ the policies


async def test_head_tail_keeps_one_summary_in_the_middle() -> None:
    """The summary counts in the limit, and there is never a second one."""
    model = replying()
    policy = HeadTail(max_messages=20, preserve_first_n=2, preserve_last_n=6, summarize_on_trim=True)
    executor = CrewExecutor(Agent("a", model=model), history=policy)
    result, _ = await talk(executor, 60)
    assert text_of(result.history[:2]).startswith("Question 0.")
    assert isinstance(result.history[2], SummaryMessage)
    assert len(summaries_in(result.history)) == 1
    assert "Question 59." in text_of(result.history[-6:])

    for request in model.requests:
        assert len(request.messages) <= 20 + (request.purpose == "summary")
        assert len(summaries_in(request.messages)) <= 1


async def test_head_tail_without_summaries_evicts_the_middle() -> None:
    """The first and last messages stay."""
    model = replying()
    policy = HeadTail(max_messages=12, preserve_first_n=2, preserve_last_n=4)
    result, events = await talk(CrewExecutor(Agent("a", model=model), history=policy), 20)
    assert text_of(result.history[:1]).startswith("Question 0.")
    assert not model.summaries
    assert all(event.after >= 6 for event in events_of_type(events, HistoryPruned))


async def test_head_tail_with_zero_messages_is_unbounded() -> None:
    """`max_messages=0`: unbounded."""
    model = replying()
    executor = CrewExecutor(Agent("a", model=model), history=HeadTail(max_messages=0))
    result, _ = await talk(executor, 70)
    assert len(result.history) == 140
    assert result.metrics.limit is None


def test_head_tail_without_a_middle_warns_when_built() -> None:
    """If first + last ≥ max, first + last messages are kept."""
    with pytest.warns(UserWarning, match="leaves no middle"):
        policy = HeadTail(max_messages=10, preserve_first_n=4, preserve_last_n=8)

    assert policy.options.limit == 12


async def test_summarize_starts_at_four_fifths_of_the_window() -> None:
    """The first user message, the goal, the tail and the newest result of each touched file stay."""
    paths = [f"src/{n % 3}.py" if n < 12 else f"tmp/{n}.txt" for n in range(60)]
    model = replying(reply=lambda r: call("read", path=paths[r.turn - 1]) if 0 < r.turn < 60 else f"Fine. {WORDS}")
    agent = Agent("a", model=model, tools=[read], max_input_tokens=1600)
    executor = CrewExecutor(agent, history=Summarize(limit=100, keep_files=10))
    first = await executor.execute("The first thing that I want.")
    events: list[Event] = []

    async with executor.execute_stream("Read them all.", history=first) as stream:
        events.extend([event async for event in stream])

    assert events_of_type(events, Compacted)
    assert all("80%" in event.reason for event in events_of_type(events, HistoryPruned))
    assert max(event.tokens_estimated for event in events_of_type(events, Asked)) <= 1600

    for request in model.requests[1:]:
        view = text_of(request.messages)
        assert "The first thing that I want." in view
        assert "Read them all." in view

    last = [request for request in model.requests if request.purpose == "reply"][-1]
    assert "tmp/58.txt" in str(last.messages)
    shown = str([m for m in last.messages if not isinstance(m, SummaryMessage)])
    assert sum(f"Contents of tmp/{n}.txt" in shown for n in range(50, 59)) >= 4


def test_invalid_policy_options_are_refused_when_built() -> None:
    """The error names the accepted values."""
    agent = Agent("a", model=ScriptedProvider("x"), tools=[read])

    for make in (
        lambda: Checkpoint(trigger_at=10, keep_recent=10),
        lambda: Checkpoint(trigger_at=0),
        lambda: HeadTail(preserve_last_n=-1),
        lambda: Summarize(threshold=0.4, target=0.5),
        lambda: CrewExecutor(agent, history="summarise"),
        lambda: CrewExecutor(agent, history={"name": "checkpoint", "keep_resent": 3}),
        lambda: CrewExecutor(agent, history={"trigger_at": 3}),
        lambda: CrewExecutor(agent, history={"name": "chain"}),
        lambda: CrewExecutor(agent, history={"name": "checkpoint", "summarizer": "gpt"}),
        lambda: CrewExecutor(agent, history=Checkpoint(), max_messages_per_request=50),
        lambda: CrewExecutor(agent, history=HeadTail(), max_messages_per_request=99),
        lambda: CrewExecutor(agent, history="summarize", max_messages_per_request=3),
    ):
        with pytest.raises(DefinitionError):
            make()


def test_policy_by_name_and_options_equals_the_class() -> None:
    """A mapping, as in a configuration file, means the same as the class."""
    agent = Agent("a", model=ScriptedProvider("x"))
    chained = {"name": "chain", "policies": [{"name": "head_tail", "max_messages": 40}, "summarize"]}
    assert CrewExecutor(agent, history={"name": "checkpoint", "trigger_at": 30}).plan.budget.limit == 30
    assert CrewExecutor(agent, history=chained).plan.budget.limit == 40
    assert CrewExecutor(agent, history="checkpoint", max_messages_per_request=120).plan.budget.limit == 120


async def test_long_input_history_is_summarized_first() -> None:
    """A history above the limit is pruned once and summarized before the first request."""
    model = replying()
    given = [UserMessage(f"Note {n}: {WORDS}") for n in range(60)]
    executor = CrewExecutor(Agent("a", model=model), history=Summarize(limit=30))
    result = await executor.execute("And now?", history=given)
    assert [request.purpose for request in model.requests] == ["summary", "reply"]
    assert len(summaries_in(result.history)) == 1
    assert "Note 1:" in text_of(model.requests[0].messages)
    assert "Note 0:" in text_of(result.history)


async def test_branch_summaries_stay_in_the_branch() -> None:
    """They are in the branch transcript, count in the limits of the run, and pending ones end with the branch."""
    worker = replying(reply=lambda r: call("read", path=f"src/{r.turn}.py") if r.turn < 15 else f"Done. {WORDS}")
    one, two = (Agent(name, model=worker, tools=[read]) for name in ("one", "two"))
    editor = replying(reply="The end.")
    panel = Parallel("panel", branches=[one, two], then=Agent("editor", model=editor))
    lead = Agent("lead", model=ScriptedProvider("[GO]"), routes=[Route("[GO]", to=panel)])
    crew = Crew("c", agents=[lead, one, two, panel.then], groups=[panel])  # type: ignore[list-item]
    result = await CrewExecutor(crew, history=Summarize(limit=12)).execute("Read.")
    assert result.output == "The end."
    assert len(worker.summaries) >= 2
    assert all(summaries_in(branch.transcript) for branch in result.branches)
    assert not summaries_in(result.transcript)
    assert result.state.pending_summary.message_ids == ()
    assert result.usage.requests == len(worker.requests) + len(editor.requests) + 1


async def test_summary_after_runs_without_requests_is_bounded() -> None:
    """Messages that were never in a request are summarized from the transcript."""
    policy = HeadTail(max_messages=6, preserve_first_n=1, preserve_last_n=2, summarize_on_trim=True)
    provider = RecordingProvider(lambda request: "Fine.")
    result = await executor_for(provider, history=policy).execute("the first")

    for n in range(15):
        result = await executor_for(provider, history=policy, limits=Limits(rounds=0)).execute(f"{n}", history=result)

    await executor_for(provider, history=policy).execute("the last", history=result)
    assert any(request.purpose == "summary" for request in provider.requests)
    assert all(total_size(request.messages) <= 6 + (request.purpose == "summary") for request in provider.requests)


async def test_unbounded_policy_summarizes_what_it_evicts() -> None:
    """Evicted messages are summarized and reported also without a message limit."""
    provider = RecordingProvider(*[call("report", n=n) for n in range(20)], "done")

    @tool(effect="read")
    async def report(n: int) -> str:
        """Report something long."""
        return f"fact_{n} " + "word " * 40

    policy = Summarize(limit=None, window=600, summarizer=lambda span: "What was said.")
    executor = executor_for(provider, report, history=policy)
    events, result = await collect(executor.execute_stream("the goal"))
    pruned = {id for event in events if isinstance(event, HistoryPruned) for id in event.evicted}
    covered = {id for m in result.transcript if isinstance(m, SummaryMessage) for id in m.covers}
    assert result.metrics.prunings
    assert covered
    assert {m.id for m in result.transcript} - {m.id for m in result.history} <= pruned | covered
