"""The tree of child runs: shared limits, cancellation, failure and resume."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from crew import Agent, Crew, CrewExecutor, Limits, Parallel, Quorum, RunError, RunResult, call, handoff
from crew.errors import BranchesFailed, StoreError, UnknownPause
from crew.interfaces import ModelReply, ModelRequest
from crew.messages import ToolCall, Usage
from crew.runs import Event, RunState
from crew.runs.events import BranchFinished, BranchStarted, LimitReached, Paused, RunFailed
from tests.support.clocks import run_in_virtual_time
from tests.support.providers import CheckedModels, hang
from tests.support.runs import finish
from tests.support.stores import CheckedStore
from tests.support.tools import CountedTools


def busy(models: CheckedModels, name: str, usage: Usage | None = None, **given: Any) -> Agent:
    """An agent that calls its tool forever."""

    def reply(request: ModelRequest) -> ModelReply:
        called = ToolCall(id=f"{name}{request.turn}", name="work")
        return ModelReply(text=f"{name} {request.turn}", calls=(called,), usage=usage or Usage(requests=1))

    return Agent(name, model=models.scripted(reply), tools=[CountedTools().tool("work")], **given)


def executor_of_group(agents: Sequence[Agent], *, executor: dict[str, Any], **group: Any) -> CrewExecutor:
    """An executor whose crew starts with a group of these agents."""
    panel = Parallel("g", branches=[a for a in agents if a.name != "end"], **group)
    return CrewExecutor(Crew("c", agents=agents, groups=[panel], entry="g"), **executor)


# ------------------------------------------------------------------------------------------ budgets


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_branches_share_the_remaining_rounds(models: CheckedModels, store: CheckedStore, count: int) -> None:
    """The remaining rounds are split equally; a branch that has used its share stops with its result so far."""
    agents = [busy(models, f"b{n}") for n in range(count)]
    result = run_in_virtual_time(
        executor_of_group(agents, executor={"limits": Limits(rounds=20), "store": store}).execute("Goal.")
    )
    assert len(models.requests) == 20 // count * count
    assert all(branch.outcome == "limit" for branch in result.branches)
    assert result.output.count("(stopped at its limit) b") == count


def test_unused_rounds_return_at_the_join(models: CheckedModels) -> None:
    """The next agent can use the rounds that a branch left."""
    agents = [Agent("b", model=models.scripted("B.")), Agent("c", model=models.scripted("C.")), busy(models, "end")]
    executor = executor_of_group(agents, executor={"limits": Limits(rounds=20)}, then="end")
    result = run_in_virtual_time(executor.execute("Goal."))
    assert result.stop_reason == "limit"
    assert Counter(request.agent for request in models.requests) == {"b": 1, "c": 1, "end": 18}


@pytest.mark.parametrize("limit", ["tokens", "cost_usd"])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_branches_exceed_the_budget_by_one_request_at_most(
    models: CheckedModels, store: CheckedStore, limit: str, count: int
) -> None:
    """Tokens and cost are split like rounds; the request that exceeds the share is the last of its branch."""
    each = Usage(requests=1, input_tokens=70, output_tokens=30, cost=0.1)
    limits = Limits(tokens=1000) if limit == "tokens" else Limits(cost_usd=1.0)
    agents = [*(busy(models, f"b{n}", each) for n in range(count)), busy(models, "end", each)]
    result = run_in_virtual_time(
        executor_of_group(agents, executor={"limits": limits, "store": store}, then="end").execute("Goal.")
    )

    assert result.stop_reason == "limit"
    assert result.usage.total_tokens <= 1000 + 100 * count
    assert result.usage.cost is not None
    assert result.usage.cost <= 1.0 + 0.1 * count + 1e-9
    assert result.usage.requests == len(models.requests) >= 10


def test_nested_groups_share_one_budget(models: CheckedModels, store: CheckedStore) -> None:
    """The whole tree stays within the limits of the run."""
    deep = Agent("deep", model=models.scripted("Deeper."), then="g")
    crew = Crew("c", agents=[deep], groups=[Parallel("g", branches=[deep, deep])], entry="g")
    result = run_in_virtual_time(CrewExecutor(crew, limits=Limits(rounds=30), store=store).execute("Goal."))
    assert len(models.requests) <= 30
    assert result.usage.requests == len(models.requests)
    assert result.stop_reason == "completed", "the join of branches that reached their limits is an answer"


def test_budget_holds_across_a_pause(models: CheckedModels, store: CheckedStore) -> None:
    """A resumed branch continues with the rest of its share."""
    ran = CountedTools()

    def reply(request: ModelRequest) -> Any:
        return call("pay") if request.turn == 1 else call("work")

    tools = [ran.tool("pay", approval=True), ran.tool("work")]
    agents = [Agent(name, model=models.scripted(reply), tools=tools) for name in "bc"]
    executor = executor_of_group(agents, executor={"limits": Limits(rounds=10), "store": store})
    paused = run_in_virtual_time(executor.execute("Goal."))
    assert (len(paused.pauses), paused.usage.requests) == (2, 4)
    result = run_in_virtual_time(finish(executor, paused))
    assert (result.usage.requests, len(models.requests)) == (10, 10)


def test_usage_includes_active_branches(models: CheckedModels, store: CheckedStore) -> None:
    """The result of a paused run includes their usage; at the end nothing is counted twice."""
    ran = CountedTools()
    pays = Agent("pays", model=models.scripted(call("pay"), "Paid."), tools=[ran.tool("pay", approval=True)])
    looks = Agent("looks", model=models.scripted(call("look"), "Seen."), tools=[ran.tool("look")])
    executor = executor_of_group([pays, looks], executor={"store": store})
    paused = run_in_virtual_time(executor.execute("Goal."))
    assert paused.usage.requests == 3
    assert {name: usage.requests for name, usage in paused.metrics.by_agent.items()} == {"pays": 1, "looks": 2}
    assert paused.metrics.by_tool["look"].calls == 1

    result = run_in_virtual_time(finish(executor, paused))
    assert result.usage.requests == 4
    assert sum(usage.requests for usage in result.metrics.by_agent.values()) == 4
    assert {name: counts.calls for name, counts in result.metrics.by_tool.items()} == {"look": 1, "pay": 1}


# ------------------------------------------------------------------------------------------ time


def test_limit_of_seconds_covers_the_whole_tree(models: CheckedModels, store: CheckedStore) -> None:
    """Branches share the remaining time concurrently; time before the fan-out is not counted twice."""

    async def a_minute(request: ModelRequest) -> None:
        await asyncio.sleep(60)

    def waits(name: str, lines: int) -> Agent:
        script = [*(call("work") for _ in range(lines - 1)), f"{name}."]
        return Agent(name, model=models.scripted(*script, before=a_minute), tools=[CountedTools().tool("work")])

    async def story() -> RunResult:
        first = Agent("a", model=models.scripted("A.", before=a_minute), then="g")
        crew = Crew("c", agents=[first, waits("b", 1), waits("c", 9)], groups=[Parallel("g", branches=["b", "c"])])
        clock = asyncio.get_running_loop().time
        limits = Limits(seconds=150)
        return await CrewExecutor(crew, limits=limits, store=store, monotonic=clock).execute("Goal.")

    result = run_in_virtual_time(story())
    assert result.stop_reason == "limit"
    assert [e.limit for e in store.events if isinstance(e, LimitReached)] == ["seconds"]
    assert [(branch.agent, branch.outcome) for branch in result.branches] == [("b", "completed"), ("c", "cancelled")]


# ------------------------------------------------------------------------------------------ cancellation


def deep_tree(models: CheckedModels, store: CheckedStore) -> CrewExecutor:
    """a fans out to b, which calls the agent d as a tool, and to c, which fans out to e; d and e hang."""
    d = Agent("d", model=models.scripted("D.", before=hang))
    b = Agent("b", model=models.scripted(call("ask_d", request="Help."), "B."), tools=[d.as_tool()])
    c = Agent("c", model=models.scripted("Go."), then="inner")
    e = Agent("e", model=models.scripted("E.", before=hang))
    f = Agent("f", model=models.scripted("F."))
    groups = [Parallel("outer", branches=["b", "c", "f"]), Parallel("inner", branches=["e", "f"])]
    return CrewExecutor(Crew("c", agents=[b, c, e, f], groups=groups, entry="outer"), store=store)


async def until(condition: Any) -> None:
    while not condition():
        await asyncio.sleep(1)


def test_cancel_ends_the_whole_tree(models: CheckedModels, store: CheckedStore) -> None:
    """Every branch that started is reported as ended, no task is left, and the usage is known."""

    async def story() -> RunResult:
        executor = deep_tree(models, store)
        running = asyncio.ensure_future(executor.execute("Goal.", run_id="r"))
        await until(lambda: len(models.requests) == 6)
        await asyncio.sleep(1)
        await executor.cancel("r")
        result = await running
        assert len(asyncio.all_tasks()) == 1
        return result

    result = run_in_virtual_time(story())
    assert result.stop_reason == "cancelled"
    assert result.usage.requests == 4, "the two that hang have not been billed"
    started = [e.branch for e in store.events if isinstance(e, BranchStarted)]
    ended = {e.branch: e.outcome for e in store.events if isinstance(e, BranchFinished)}
    assert len(started) == 6
    assert set(ended) == set(started)
    assert Counter(ended.values()) == {"cancelled": 4, "completed": 2}
    assert {branch.run_id: len(branch.branches) for branch in result.branches} == {"r/b": 1, "r/c": 2, "r/f": 0}


def test_interrupted_run_resumes_in_every_branch(models: CheckedModels, store: CheckedStore) -> None:
    """Committed work is not repeated; an interrupted request is sent again."""

    async def story() -> RunResult:
        executor = deep_tree(models, store)
        running = asyncio.ensure_future(executor.execute("Goal.", run_id="r"))
        await until(lambda: len(models.requests) == 6)
        await asyncio.sleep(1)
        running.cancel()

        with pytest.raises(asyncio.CancelledError):
            await running

        models.requests.clear()

        for agent in executor.plan.agents.values():
            agent.model.before = None

        return await executor.resume("r")

    result = run_in_virtual_time(story())
    inner = "[Results of inner]\n### e\nE.\n\n### f\nF."
    assert result.output == f"[Results of outer]\n## b\nB.\n\n## c\n{inner}\n\n## f\nF."
    assert sorted(turn.split(":", 1)[1] for turn in models.turns) == ["b:1", "d:0", "e:0"]


def test_paused_run_with_branches_can_be_cancelled(models: CheckedModels, store: CheckedStore) -> None:
    """Its pauses are dropped, its calls get results, and its branches are reported as ended."""
    pays = Agent("pays", model=models.scripted(call("pay")), tools=[CountedTools().tool("pay", approval=True)])
    executor = executor_of_group([pays], executor={"store": store})

    async def story() -> None:
        paused = await executor.execute("Goal.", run_id="r")
        await executor.cancel("r")

        with pytest.raises(UnknownPause):
            await executor.resume("r", {paused.pauses[0].id: True})

    run_in_virtual_time(story())
    assert [e.outcome for e in store.events if isinstance(e, BranchFinished)] == ["cancelled"]


# ------------------------------------------------------------------------------------------ failure and resume


class FailsSometimes:
    """Fails the given number of times, then works."""

    def __init__(self, times: int) -> None:
        self.left = times

    async def __call__(self, request: ModelRequest) -> None:
        if self.left:
            self.left -= 1
            raise ValueError("boom")


@pytest.mark.parametrize("on_error", ["fail_fast", Quorum(3)], ids=["fail_fast", "quorum"])
def test_resume_after_a_failed_group_repeats_only_failures(
    models: CheckedModels, store: CheckedStore, on_error: Any
) -> None:
    """A finished branch is not repeated; a stopped branch continues where it was."""
    ran, gate = CountedTools(), asyncio.Event()

    async def waits(request: ModelRequest) -> None:
        if request.turn == 1:
            await gate.wait()

    async def later(request: ModelRequest) -> None:
        await asyncio.sleep(1)
        await flaky(request)

    flaky = FailsSometimes(1)
    good = Agent("good", model=models.scripted(call("one"), "Good."), tools=[ran.tool("one")])
    bad = Agent("bad", model=models.scripted("Better.", before=later))
    slow = Agent("slow", model=models.scripted(call("two"), "Slow.", before=waits), tools=[ran.tool("two")])
    executor = executor_of_group([good, bad, slow], executor={"store": store}, on_error=on_error)

    async def story() -> RunResult:
        with pytest.raises(BranchesFailed) as caught:
            await executor.execute("Goal.", run_id="r")

        assert caught.value.result.usage.requests == 3
        models.requests.clear()
        gate.set()
        return await executor.resume("r")

    result = run_in_virtual_time(story())
    assert result.output == "[Results of g]\n## good\nGood.\n\n## bad\nBetter.\n\n## slow\nSlow."
    assert sorted(models.turns) == ["r/bad:bad:0", "r/slow:slow:1"]
    assert ran.times == {"one": 1, "two": 1}


def test_resume_retries_a_failed_nested_group(models: CheckedModels, store: CheckedStore) -> None:
    """The failed branch is retried at any depth."""
    flaky = FailsSometimes(2)
    bad = Agent("bad", model=models.scripted("Better.", before=flaky))
    b = Agent("b", model=models.scripted("Go."), then="inner")
    groups = [Parallel(n, branches=[m], on_error="fail_fast") for n, m in [("outer", "b"), ("inner", "bad")]]
    executor = CrewExecutor(Crew("c", agents=[b, bad], groups=groups, entry="outer"), store=store)

    async def story() -> RunResult:
        with pytest.raises(BranchesFailed):
            await executor.execute("Goal.", run_id="r")

        with pytest.raises(BranchesFailed, match="boom"):
            await executor.resume("r")

        return await executor.resume("r")

    result = run_in_virtual_time(story())
    assert result.output == "[Results of outer]\n## b\n[Results of inner]\n### bad\nBetter."
    assert Counter(models.turns) == {"r/b:b:0": 1, "r/b/bad:bad:0": 3}


def test_failed_group_keeps_the_pause_of_another_branch(models: CheckedModels, store: CheckedStore) -> None:
    """The pause is in the result, and can be answered when the run is resumed."""
    ran = CountedTools()
    pays = Agent("pays", model=models.scripted(call("pay"), "Paid."), tools=[ran.tool("pay", approval=True)])

    async def later(request: ModelRequest) -> None:
        await asyncio.sleep(1)
        await flaky(request)

    flaky = FailsSometimes(1)
    bad = Agent("bad", model=models.scripted("Better.", before=later))
    executor = executor_of_group([pays, bad], executor={"store": store}, on_error="fail_fast")

    async def story() -> RunResult:
        with pytest.raises(BranchesFailed) as caught:
            await executor.execute("Goal.", run_id="r")

        failed = caught.value.result
        assert (failed.stop_reason, len(failed.pauses)) == ("failed", 1)
        return await executor.resume("r", {failed.pauses[0].id: True})

    result = run_in_virtual_time(story())
    assert result.output == "[Results of g]\n## pays\nPaid.\n\n## bad\nBetter."
    assert ran.times == {"pay": 1}
    assert not any(isinstance(e, Paused) for e in store.events)


def test_result_before_a_failed_group_is_kept(models: CheckedModels, store: CheckedStore) -> None:
    """After a resume the call is neither in doubt nor repeated."""
    ran = CountedTools()
    agents = [Agent(n, model=models.scripted(call("work"), "Done."), tools=[ran.tool("work")]) for n in "bc"]
    executor = executor_of_group(
        agents, executor={"store": store, "limits": Limits(rounds=2)}, on_error="first_success"
    )

    async def story() -> RunResult:
        with pytest.raises(BranchesFailed, match="b: limit; c: limit") as caught:
            await executor.execute("Goal.", run_id="r")

        return caught.value.result

    result = run_in_virtual_time(story())
    assert ran.times == {"work": 2}
    assert result.usage.requests == 2
    assert result.metrics.by_tool["work"].calls == 2
    assert not result.pauses


def test_raising_filter_fails_its_branch(models: CheckedModels, store: CheckedStore) -> None:
    """The error policy of the group decides."""

    def broken(messages: Any) -> Any:
        raise RuntimeError("no such message")

    b = Agent("b", model=models.scripted(call("transfer_to_c")), handoffs=[handoff("c", history=broken)])
    c = Agent("c", model=models.scripted("C."))
    result = run_in_virtual_time(executor_of_group([b, c], executor={"store": store}).execute("Goal."))
    assert result.output == "[Results of g]\n## b\n(failed) RuntimeError: no such message\n\n## c\nC."
    assert [e.error_type for e in store.events if isinstance(e, RunFailed)] == ["RuntimeError"]


class FailsOnce(CheckedStore):
    """Fails once, at the given commit."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.failing_at = at

    async def commit(self, run_id: str, version: int, events: Sequence[Event], state: RunState) -> None:
        if version == self.failing_at:
            self.failing_at = -1
            raise OSError("disk full")

        await super().commit(run_id, version, events, state)


@pytest.mark.parametrize("at", range(1, 7))
def test_failing_store_fails_the_run_and_not_a_branch(models: CheckedModels, at: int) -> None:
    """Whatever the error policy; the run resumes from its last commit."""
    store = FailsOnce(at)
    tools = [CountedTools().tool("work", effect="read")]
    agents = [Agent(n, model=models.scripted(call("work"), f"{n}."), tools=tools) for n in "bc"]
    executor = executor_of_group(agents, executor={"store": store})

    async def story() -> RunResult:
        with pytest.raises(RunError, match="disk full") as caught:
            await executor.execute("Goal.", run_id="r")

        assert isinstance(caught.value.__cause__, StoreError)
        return await finish(executor, await executor.resume("r"))

    assert run_in_virtual_time(story()).output == "[Results of g]\n## b\nb.\n\n## c\nc."
    assert not store.violations


def test_sibling_stopped_during_a_commit_completes_it(models: CheckedModels) -> None:
    """The commit completes before the branch ends; versions have no gap."""

    class Slow(CheckedStore):
        async def commit(self, run_id: str, version: int, events: Sequence[Event], state: RunState) -> None:
            await asyncio.sleep(3)
            await super().commit(run_id, version, events, state)

    store = Slow()
    agents = [
        Agent(n, model=models.scripted(call("work"), f"{n}."), tools=[CountedTools().tool("work")]) for n in "bcd"
    ]
    agents.append(Agent("end", model=models.scripted("End.")))
    executor = executor_of_group(agents, executor={"store": store}, on_error="first_success", then="end", timeout=1000)
    assert run_in_virtual_time(executor.execute("Goal.")).output == "End."
    assert not store.violations
    assert [state.sequence for state in store.states] == sorted({state.sequence for state in store.states})
    assert [e.sequence for e in store.events] == sorted({e.sequence for e in store.events})
