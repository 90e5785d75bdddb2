"""A run keeps the invariants of history with any policy, alone, chained or hostile."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crew import (
    Agent,
    Chunked,
    CrewExecutor,
    FromTimestamp,
    LastNMessages,
    RequestParameters,
    ScriptedProvider,
    WholeHistory,
    WholeHistoryMultipleSystemMessages,
    call,
    tool,
)
from crew.errors import CompressionFailed, ContextOverflow
from crew.history.policies import (
    Checkpoint,
    HeadTail,
    MaskToolResults,
    Rolling,
    Summarize,
    Truncate,
    chain,
    split_stages,
)
from crew.interfaces import (
    HistoryBudget,
    MessageGroup,
    ModelRequest,
    Policy,
    PolicyOptions,
    PruneDecision,
    policy_options,
)
from crew.message_rules import validate
from crew.messages import SummaryMessage, SystemMessage
from crew.runs import RunResult, RunState
from crew.store import MemoryStore, decode_state, encode_state
from tests.support.messages import total_size

# Random numbers may leave no middle between head and tail, or cut too little: both warn, and both must hold.
pytestmark = pytest.mark.filterwarnings("ignore:head_tail keeps", "ignore:prune_to=")


@dataclass(frozen=True)
class HostilePolicy:
    """Keeps, evicts, masks and names messages at random, also missing ones."""

    seed: int
    limit: int
    eager: bool
    summarizes: bool
    name: str = "hostile"

    @property
    def options(self) -> PolicyOptions:
        return PolicyOptions(limit=self.limit, eager=self.eager, summarizes=self.summarizes)

    def prune(self, history: Sequence[MessageGroup], budget: HistoryBudget) -> PruneDecision:
        dice = random.Random(f"{self.seed}{len(history)}{history[-1].entries[-1].position}")
        ids = [entry.message.id for g in history for entry in g.entries]
        kept = dice.sample(list(history), dice.randint(0, len(history)))
        nothing = MessageGroup(entries=(), size=0, tokens=0, kind="user")
        return PruneDecision(
            kept=(*kept, *kept[:2], nothing),
            evicted=tuple(history[:1]),
            masked=("nowhere", *ids[:1]),
            to_summarize=("nowhere", *dice.sample(ids, dice.randint(0, len(ids))), *ids[:1]),
            reason="dice",
        )


@st.composite
def lone_policies(draw: st.DrawFn) -> Policy:
    kind = draw(st.sampled_from(["rolling", "head_tail", "summarize", "checkpoint", "hostile"]))
    limit = draw(st.integers(5, 24))  # a goal, a call and its result, a system message, a summary

    match kind:
        case "rolling":
            return Rolling(limit=limit, prune_to=draw(st.none() | st.integers(1, limit)))
        case "head_tail":
            first, last = draw(st.integers(0, 4)), draw(st.integers(0, 10))
            return HeadTail(
                max_messages=limit,
                preserve_first_n=first,
                preserve_last_n=last,
                summarize_on_trim=draw(st.booleans()),
            )
        case "summarize":
            return Summarize(
                limit=limit, window=draw(st.sampled_from([60, 200, 1000])), keep_files=draw(st.integers(0, 3))
            )
        case "checkpoint":
            return Checkpoint(trigger_at=limit, keep_recent=draw(st.integers(1, limit - 1)))
        case _:
            seed, eager, summarizes = draw(st.integers(0, 9999)), draw(st.booleans()), draw(st.booleans())
            return HostilePolicy(seed=seed, limit=limit, eager=eager, summarizes=summarizes)


views = st.builds(MaskToolResults, keep_recent=st.integers(0, 6)) | st.just(Truncate())
policies = lone_policies() | st.builds(
    lambda first, rest: chain(*rest[:1], first, *rest[1:]),
    lone_policies(),
    st.lists(lone_policies() | views, max_size=3),
)
strategies = st.none() | st.sampled_from(
    [WholeHistory(), LastNMessages(5), Chunked(6), FromTimestamp(0.0), WholeHistoryMultipleSystemMessages()]
)
parameters = st.builds(
    RequestParameters,
    compression_strategy=strategies,
    max_history_size=st.none() | st.integers(4, 30),
    max_tokens=st.none() | st.sampled_from([600, 3000]),
)
conversations = st.lists(st.lists(st.integers(1, 6), max_size=8), min_size=1, max_size=5)
"""For each execute the numbers of calls in its replies; then comes a plain reply."""
summaries = st.lists(st.sampled_from(["ok", "ok", "ok", "calls", "empty", "raises", "long"]), min_size=1, max_size=6)


@tool(effect="read", touches="path")
def read(path: str) -> str:
    """Read a file."""
    return f"The file {path} says that line 17 of it is wrong, and that TICKET-{len(path)} has the details."


@dataclass
class PolicyRun:
    """One conversation under test: its moves, requests and commits."""

    executor: CrewExecutor
    moves: list[int] = field(default_factory=list)
    requests: list[ModelRequest] = field(default_factory=list)
    states: list[RunState] = field(default_factory=list)


def stage(policy: Policy, outcomes: list[str], parameters: RequestParameters) -> PolicyRun:
    def answer(request: ModelRequest) -> Any:
        made.requests.append(request)

        if request.purpose == "summary":
            asked = sum(r.purpose == "summary" for r in made.requests)
            match outcomes[asked % len(outcomes)]:
                case "calls":
                    return call("read", path="x")
                case "empty":
                    return " "
                case "raises":
                    return RuntimeError("the summariser is down")
                case "long":
                    return "words " * 3000

            return "Files were read."

        if not made.moves:
            return "That is done, and here is what I found in the files."

        return [call("read", path=f"src/{request.turn}/{n}.py") for n in range(made.moves.pop(0))]

    class Watching(MemoryStore):
        async def commit(self, run_id: str, version: int, events: Any, state: RunState) -> None:
            made.states.append(state)
            await super().commit(run_id, version, events, state)

    executor = CrewExecutor(
        Agent("reader", instructions="Read.", model=ScriptedProvider(answer), tools=[read]),
        history=policy,
        store=Watching(),
        parameters=parameters,
    )
    made = PolicyRun(executor=executor)
    return made


def check(made: PolicyRun, limit: int, goal: str, given_parameters: RequestParameters | None = None) -> None:
    given_parameters = given_parameters or RequestParameters()

    for request in made.requests:
        most = limit + (request.purpose == "summary")
        # A marker of truncation stands in a view for what it hides, and counts.
        assert total_size(request.messages) <= most

        if given_parameters.max_history_size is not None and request.purpose == "reply":
            assert total_size(request.messages) <= given_parameters.max_history_size

        assert not validate(request.messages)

        if request.purpose == "reply":
            assert goal in [getattr(m, "text", "") for m in request.messages]

    for state in made.states:
        assert state.history.size == total_size(state.history.messages) <= limit
        positions = [entry.position for entry in state.history.entries]
        assert positions == sorted(set(positions))
        assert decode_state(encode_state(state)) == state


def overflows(error: ContextOverflow, given_parameters: RequestParameters) -> None:
    """Only if the mandatory part is larger than the limit."""
    assert sum(size for _, size in error.items) > error.limit
    assert error.limit in (given_parameters.max_history_size, given_parameters.max_tokens)


def nothing_is_lost(result: RunResult) -> None:
    """Hidden messages are in the transcript; covered messages are named by their summary."""
    known = {message.id: message for message in result.transcript}

    for message in result.history:
        assert message.id in known

        if isinstance(message, SummaryMessage):
            assert set(message.covers) <= known.keys()
            assert not {m.id for m in result.history} & set(message.covers)


@pytest.mark.filterwarnings("ignore::UserWarning")  # some combinations have a limit that can't take effect
@given(policy=policies, talk=conversations, outcomes=summaries, given_parameters=parameters, systems=st.integers(0, 1))
def test_every_policy_keeps_the_invariants(
    policy: Policy, talk: list[list[int]], outcomes: list[str], given_parameters: RequestParameters, systems: int
) -> None:
    """Bounded after every append, valid in every request, the goal in view, nothing lost."""
    limit = policy_options(split_stages(policy)[0]).history_limit
    assert limit is not None
    made = stage(policy, outcomes, given_parameters)
    given: Any = [SystemMessage("Be brief.")] * systems

    for number, moves in enumerate(talk):
        made.moves[:] = moves
        made.requests.clear()
        made.states.clear()
        goal = f"Question {number}: look into TICKET-{number}."

        try:
            given = asyncio.run(made.executor.execute(goal, history=given))
        except CompressionFailed as error:
            assert given_parameters.compression_strategy is not None
            check(made, limit, goal, given_parameters)
            nothing_is_lost(error.result)
            return
        except ContextOverflow as error:
            overflows(error, given_parameters)
            check(made, limit, goal, given_parameters)
            return

        check(made, limit, goal, given_parameters)
        nothing_is_lost(given)


def test_default_executor_never_requests_a_summary() -> None:
    """Compression is opt-in."""
    made = stage(Rolling(), ["ok"], RequestParameters())
    result: Any = None

    for _ in range(20):
        made.moves[:] = [3, 1, 2]
        result = asyncio.run(made.executor.execute("Look into it.", history=result))

    assert len(made.requests) == 80
    assert {request.purpose for request in made.requests} == {"reply"}
    assert result.metrics.limit == 50


def test_custom_policy_is_one_small_class() -> None:
    """A policy needs a name and `prune`; its mistakes are corrected."""

    class Nothing:
        name = "nothing"

        def prune(self, history: Sequence[MessageGroup], budget: HistoryBudget) -> PruneDecision:
            return PruneDecision(kept=())

    made = stage(Nothing(), ["ok"], RequestParameters())
    made.moves[:] = [2] * 30
    result = asyncio.run(made.executor.execute("Look into it."))
    check(made, 50, "Look into it.")
    assert result.metrics.prunings > 0


@pytest.mark.parametrize("summarizes", [True, False])
def test_summary_fits_for_a_policy_without_the_option(summarizes: bool) -> None:
    """A policy that names messages for a summary gets one, within the limit."""

    class Careless:
        name = "careless"
        options = PolicyOptions(limit=12, summarizes=summarizes)

        def prune(self, history: Sequence[MessageGroup], budget: HistoryBudget) -> PruneDecision:
            return PruneDecision(
                kept=tuple(history[1:]), to_summarize=tuple(e.message.id for g in history for e in g.entries)
            )

    made = stage(Careless(), ["ok"], RequestParameters())
    made.moves[:] = [1] * 40
    asyncio.run(made.executor.execute("Look into it."))
    check(made, 12, "Look into it.")
    assert any(isinstance(m, SummaryMessage) for r in made.requests for m in r.messages)
