"""Messages that wait for a summary are not lost in branches, nor while agents are called as tools."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crew import Agent, Crew, CrewExecutor, LastNMessages, Parallel, RequestParameters, Route, tool
from crew import call as call_tool
from crew.history.policies import HeadTail, Summarize
from crew.messages import AssistantMessage, Message, UserMessage
from crew.runs import Event, RunState
from crew.runs.events import Compacted
from crew.store import MemoryStore
from tests.support.invariants import request_violations, unsummarized_ids
from tests.support.messages import represented_ids
from tests.support.providers import ReplyingProvider
from tests.support.runs import events_of_type, run_and_collect

WORDS = "There is a good deal to say about this, and it takes some words to say it well enough."


@tool(effect="read")
def read(path: str) -> str:
    """Read a file."""
    return f"Contents of {path}. {WORDS}"


def reading(rounds: int, last: Any = f"Done. {WORDS}", summary: Any = "What was said.") -> ReplyingProvider:
    """A model that reads so many files and then ends with this reply."""
    return ReplyingProvider(
        lambda r: call_tool("read", path=f"{r.agent}/{r.turn}.py") if r.turn < rounds else last, summary
    )


class CheckingStore(MemoryStore):
    """Collects the messages that a committed state neither shows, nor covers, nor keeps for a summary."""

    def __init__(self) -> None:
        super().__init__()
        self.lost: list[str] = []

    async def commit(self, run_id: str, version: int, events: Sequence[Event], state: RunState) -> None:
        self.lost.extend(unsummarized_ids(state))
        await super().commit(run_id, version, events, state)


async def test_branches_cover_messages_that_waited_when_they_started() -> None:
    """The lead's summary failed before the group started: each branch's first summary covers its messages too."""
    lead = reading(14, "[GO]", summary=lambda r: RuntimeError("down"))
    members = reading(12)
    branches = [Agent(name, model=members, tools=[read]) for name in ("one", "two")]
    panel = Parallel("panel", branches=branches)
    first = Agent("lead", model=lead, tools=[read], routes=[Route("[GO]", to=panel)])
    executor = CrewExecutor(Crew("c", agents=[first, *branches], groups=[panel]), history=Summarize(limit=16))
    events, result = await run_and_collect(executor)
    waiting = {id for id in result.state.pending_summary.message_ids if id.startswith(f"{result.run_id}:")}
    assert waiting

    for branch in result.branches:
        covered = {id for e in events_of_type(events, Compacted) if e.run_id == branch.run_id for id in e.covers}
        assert covered >= waiting


async def test_branches_compress_what_the_bound_evicted_before() -> None:
    """A group as the entry of a crew: the input exceeds the bound, and each branch asks for a TL;DR of all of it."""
    members = ReplyingProvider(f"Done. {WORDS}")
    group = Parallel("panel", branches=[Agent(name, model=members) for name in ("one", "two")])
    crew = Crew("c", agents=list(group.branches), groups=[group], entry=group)  # type: ignore[arg-type]
    kinds: tuple[Any, ...] = (UserMessage, AssistantMessage)
    before = [kinds[n % 2](f"Message {n}. {WORDS}", id=f"m{n}") for n in range(60)]
    parameters = RequestParameters(compression_strategy=LastNMessages(6))
    result = await CrewExecutor(crew).execute("And now?", history=before, parameters=parameters)
    assert len(members.replies) == 2

    for request in members.replies:
        branch = next(branch for branch in result.branches if branch.run_id == request.run_id)
        transcript: list[Message] = [*result.transcript, *branch.transcript]
        assert represented_ids(request.messages, transcript) >= {message.id for message in before}


@pytest.mark.filterwarnings("ignore:head_tail keeps")
@settings(max_examples=max(20, settings().max_examples // 4))
@given(
    lead_rounds=st.integers(0, 20),
    branch_rounds=st.integers(0, 16),
    called_rounds=st.integers(0, 14),
    limit=st.integers(12, 24),
    head_tail=st.booleans(),
    outcomes=st.lists(st.booleans(), max_size=8),
)
def test_every_message_is_shown_covered_or_waits_in_every_run(
    lead_rounds: int, branch_rounds: int, called_rounds: int, limit: int, head_tail: bool, outcomes: list[bool]
) -> None:
    """In the run, in its branches and in agents called as tools, whichever summaries fail."""
    asked = 0

    def summary(request: Any) -> Any:
        nonlocal asked
        asked += 1
        return "What was said." if asked > len(outcomes) or outcomes[asked - 1] else RuntimeError("down")

    called = reading(called_rounds, summary=summary)
    librarian = Agent("librarian", model=called, tools=[read])

    def work(request: Any) -> Any:
        if request.turn == branch_rounds // 2:
            return call_tool("ask_librarian", request="Find it.")

        return call_tool("read", path=f"{request.turn}.py") if request.turn < branch_rounds else f"Done. {WORDS}"

    members, lead = ReplyingProvider(work, summary), reading(lead_rounds, "[GO]", summary)
    branches = [Agent(name, model=members, tools=[read, librarian.as_tool()]) for name in ("one", "two")]
    panel = Parallel("panel", branches=branches)
    first = Agent("lead", model=lead, tools=[read], routes=[Route("[GO]", to=panel)])
    crew = Crew("c", agents=[first, *branches, librarian], groups=[panel])
    policy = (
        HeadTail(max_messages=limit, preserve_last_n=4, summarize_on_trim=True) if head_tail else Summarize(limit=limit)
    )
    store = CheckingStore()
    asyncio.run(CrewExecutor(crew, history=policy, store=store).execute("Go."))
    requests = [*lead.requests, *members.requests, *called.requests]
    assert not [violation for request in requests for violation in request_violations(request, limit)]
    assert called.replies
    assert not store.lost
