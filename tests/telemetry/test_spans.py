"""Every run is a tree of spans: right parents, right links, right bills, and every span ended on every way out."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable

import pytest
from opentelemetry import trace
from opentelemetry.trace import SpanKind, StatusCode

from crew import Agent, Crew, CrewExecutor, Limits, Parallel, Route, RunError, ScriptedProvider, call, tool
from crew.errors import Overloaded
from crew.history.policies import HeadTail
from crew.interfaces import Delta, ModelReply, ModelRequest, OnDelta, RetryAttempt
from crew.messages import ToolCall, Usage, UserMessage
from crew.runs import RunState
from crew.runs.events import BaseEvent, FellBack
from crew.telemetry import ExecutorTelemetry
from tests.support.providers import HangingProvider
from tests.support.remote_providers import KEY, PROTOCOLS, provider
from tests.support.stores import SlowStore
from tests.wire import Protocol, WireServer


def assert_whole(seen) -> None:
    """One root; every parent is there and encloses its children; nothing is left open."""
    spans = {span.context.span_id: span for span in seen.spans}

    for span in seen.spans:
        assert span.end_time is not None
        assert span.start_time <= span.end_time, span.name

        if span.parent is not None:
            parent = spans[span.parent.span_id]
            assert parent.context.trace_id == span.context.trace_id
            assert parent.start_time <= span.start_time, (parent.name, span.name)
            assert span.end_time <= parent.end_time, (parent.name, span.name)


async def test_a_run_is_one_tree_of_the_expected_shape(seen, support: Callable[..., Crew]) -> None:
    """Workflow, agents below it, model calls and tools below them, branches below their group, prunings in place."""
    executor = CrewExecutor(support(), max_messages_per_request=10, telemetry=seen.telemetry())
    result = await executor.execute("Where is my order?")
    assert_whole(seen)
    root = seen.one("invoke_workflow support")
    assert root.parent is None
    assert f"{root.context.trace_id:032x}" == result.trace_id

    def under(name: str) -> list[str]:
        parent = seen.one(name).context.span_id
        return [span.name for span in seen.spans if span.parent is not None and span.parent.span_id == parent]

    assert under("invoke_workflow support") == [
        "invoke_agent triage",
        "invoke_agent billing",
        "crew.parallel panel",
        "invoke_agent editor",
    ]
    assert under("invoke_agent triage") == ["chat scripted", "execute_tool transfer_to_billing"]
    assert sorted(under("crew.parallel panel")) == ["invoke_agent finance", "invoke_agent legal"]
    assert Counter(under("invoke_agent billing")) == {
        "chat scripted": 9,
        "execute_tool look": 8,
        "execute_tool transfer_to_panel": 1,
        "crew.history.prune": 2,
    }
    assert {span.kind for span in seen.named("chat")} == {SpanKind.CLIENT}
    assert len(seen.named("crew.history.prune")) == result.metrics.prunings


async def test_handoffs_and_groups_link_back_to_the_call_that_led_there(seen, support: Callable[..., Crew]) -> None:
    """A link on the target points at `execute_tool transfer_to_…`."""
    await CrewExecutor(support(), telemetry=seen.telemetry()).execute("Where is my order?")
    names = {span.context.span_id: span.name for span in seen.spans}

    for target, source in (
        ("invoke_agent billing", "transfer_to_billing"),
        ("crew.parallel panel", "transfer_to_panel"),
    ):
        (link,) = seen.one(target).links
        assert names[link.context.span_id] == f"execute_tool {source}"
        assert link.attributes == {"crew.link": "handoff"}


async def test_a_route_links_back_to_the_agent_that_sent_the_signal(seen) -> None:
    """Text signals are as visible as handoffs."""
    last = Agent("last", model=ScriptedProvider("Done."))
    first = Agent("first", model=ScriptedProvider("[ON]"), routes=[Route("[ON]", to=last)])
    await CrewExecutor(Crew("c", agents=[first, last]), telemetry=seen.telemetry()).execute("Go")
    (link,) = seen.one("invoke_agent last").links
    assert link.context.span_id == seen.one("invoke_agent first").context.span_id
    assert [event.name for event in seen.one("invoke_agent first").events] == ["crew.route"]


async def test_a_pruning_span_says_what_left_and_why(seen, support: Callable[..., Crew]) -> None:
    """Before, after, evicted, policy, reason, tokens, and whether the front of the requests moved."""
    result = await CrewExecutor(support(), max_messages_per_request=10, telemetry=seen.telemetry()).execute("Go")
    told = [dict(span.attributes) for span in seen.named("crew.history.prune")]
    assert [(t["crew.history.before"], t["crew.history.after"]) for t in told][:2] == list(result.metrics.sizes[:2])
    assert (
        told[0]
        | {
            "crew.history.before": 11,
            "crew.history.after": 5,
            "crew.history.evicted": 6,
            "crew.history.limit": 10,
            "crew.history.policy": "rolling",
            "crew.history.prefix_moved": True,
            "gen_ai.agent.name": "billing",
        }
        == told[0]
    )
    assert told[0]["crew.history.tokens_before"] > told[0]["crew.history.tokens_after"] > 0
    assert "limit of 10" in told[0]["crew.history.reason"]


async def test_the_sum_of_all_bills_is_the_runs_bill(seen, support: Callable[..., Crew]) -> None:
    """`gen_ai.usage.*` stands on chat spans alone, so a backend that sums over spans is right."""
    result = await CrewExecutor(support(), telemetry=seen.telemetry()).execute("Where is my order?")
    billed = [span for span in seen.spans if "gen_ai.usage.input_tokens" in span.attributes]
    assert {span.name.split()[0] for span in billed} == {"chat"}
    assert sum(s.attributes["gen_ai.usage.input_tokens"] for s in billed) == result.usage.input_tokens
    assert sum(s.attributes["gen_ai.usage.output_tokens"] for s in billed) == result.usage.output_tokens
    assert seen.one("invoke_workflow support").attributes["crew.usage.input_tokens"] == result.usage.input_tokens


async def test_retries_are_events_of_the_call_and_the_bill_still_adds_up(seen) -> None:
    """An attempt that failed is told on the span of the call that it belonged to."""

    def hard(request: ModelRequest) -> ModelReply:
        assert request.on_retry is not None
        request.on_retry(RetryAttempt(attempt=1, reason="RateLimited: slow down", wait=0.5))
        return ModelReply(text="At last.", usage=Usage(requests=2, input_tokens=70, output_tokens=3, cost=0.25))

    result = await CrewExecutor(Agent("a", model=ScriptedProvider(hard)), telemetry=seen.telemetry()).execute("Go")
    (chat,) = seen.named("chat")
    assert [(e.name, dict(e.attributes)) for e in chat.events] == [
        ("crew.retry", {"attempt": 1, "reason": "RateLimited: slow down", "wait": 0.5})
    ]
    assert chat.attributes["gen_ai.usage.input_tokens"] == result.usage.input_tokens == 70
    assert chat.attributes["crew.cost.usd"] == 0.25


async def test_code_inside_a_tool_sees_the_tools_span_as_current(seen) -> None:
    """Instrumented libraries that a tool uses nest below it; on threads too."""
    tracer = seen.provider.get_tracer("users")

    @tool
    async def query() -> str:
        """Ask the database."""
        with tracer.start_as_current_span("select"):
            return "rows"

    @tool
    def read() -> str:
        """Read a file."""
        with tracer.start_as_current_span("open"):
            return "text"

    before = trace.get_current_span()
    agent = Agent("a", model=ScriptedProvider([call("query"), call("read")], "Done."), tools=[query, read])
    await CrewExecutor(agent, telemetry=seen.telemetry()).execute("Go")
    assert seen.parent(seen.one("select")).name == "execute_tool query"
    assert seen.parent(seen.one("open")).name == "execute_tool read"
    assert trace.get_current_span() is before


async def test_a_provider_works_inside_its_chat_span(seen) -> None:
    """What an instrumented HTTP client adds, `traceparent` included, belongs to the model call."""
    current = []

    def look(request: ModelRequest) -> str:
        current.append(trace.get_current_span().get_span_context().span_id)
        return "Hello."

    await CrewExecutor(Agent("a", model=ScriptedProvider(look)), telemetry=seen.telemetry()).execute("Go")
    assert current == [seen.one("chat scripted").context.span_id]


async def test_a_run_is_a_child_of_the_callers_span(seen) -> None:
    """An application's request and the run that serves it are one trace; also from a thread of its own."""
    executor = CrewExecutor(Agent("a", model=ScriptedProvider("Hello.")), telemetry=seen.telemetry())

    with seen.provider.get_tracer("app").start_as_current_span("request") as request:
        await executor.execute("Go")
        executor.execute_sync("Go")

    parents = {span.parent.span_id for span in seen.named("invoke_workflow")}
    assert parents == {request.get_span_context().span_id}


async def test_an_agent_as_a_tool_works_below_the_call(seen) -> None:
    """The called agent's spans are children of `execute_tool ask_…`."""
    expert = Agent("expert", model=ScriptedProvider("42."))
    asker = Agent(
        "asker", model=ScriptedProvider(call("ask_expert", request="?"), "It is 42."), tools=[expert.as_tool()]
    )
    await CrewExecutor(asker, telemetry=seen.telemetry()).execute("Go")
    assert_whole(seen)
    assert seen.parent(seen.one("invoke_agent expert")).name == "execute_tool ask_expert"
    assert seen.one("execute_tool ask_expert").attributes["gen_ai.tool.type"] == "agent"


async def test_a_tools_error_marks_its_span_and_keeps_its_words_out(seen) -> None:
    """What a tool said is content; what kind of error it was is not. A tool that does not exist has a span too."""

    @tool
    async def fail() -> str:
        """Fail."""
        raise LookupError("no such customer: Jane Doe")

    agent = Agent("a", model=ScriptedProvider([call("fail"), call("unknown")], "Sorry."), tools=[fail])
    await CrewExecutor(agent, telemetry=seen.telemetry()).execute("Go")
    failed, unknown = seen.one("execute_tool fail"), seen.one("execute_tool unknown")
    assert (failed.status.status_code, failed.attributes["error.type"]) == (StatusCode.ERROR, "LookupError")
    assert (unknown.status.status_code, unknown.attributes["error.type"]) == (StatusCode.ERROR, "tool_error")
    assert "Jane" not in "".join(span.to_json() for span in seen.spans)


async def test_a_run_that_fails_ends_its_spans_as_errors(seen) -> None:
    """Chat, agent and root are ended; chat and root say what happened."""
    agent = Agent("a", model=ScriptedProvider(RuntimeError("broken pipe")))

    with pytest.raises(RunError) as raised:
        await CrewExecutor(agent, telemetry=seen.telemetry()).execute("Go")

    assert_whole(seen)
    chat, root = seen.one("chat scripted"), seen.one("invoke_workflow a")
    assert (chat.status.status_code, chat.attributes["error.type"]) == (StatusCode.ERROR, "RuntimeError")
    assert (root.status.status_code, root.attributes["crew.stop_reason"]) == (StatusCode.ERROR, "failed")
    assert "broken pipe" in root.status.description
    assert raised.value.result.trace_id == f"{root.context.trace_id:032x}"


async def test_a_branch_that_fails_is_an_error_of_that_branch_alone(seen) -> None:
    """The group says how many succeeded; the run goes on."""
    good, bad = Agent("good", model=ScriptedProvider("Yes.")), Agent("bad", model=ScriptedProvider(RuntimeError("no")))
    group = Parallel("panel", branches=[good, bad])
    await CrewExecutor(Crew("c", agents=[good, bad], groups=[group], entry=group), telemetry=seen.telemetry()).execute(
        "Go"
    )
    assert_whole(seen)
    assert seen.one("invoke_agent bad").status.status_code is StatusCode.ERROR
    assert seen.one("invoke_agent bad").attributes["crew.branch.outcome"] == "failed"
    assert seen.one("invoke_agent good").status.status_code is StatusCode.UNSET
    told = seen.one("crew.parallel panel").attributes
    assert told["crew.parallel.policy"] == "collect"
    assert (told["crew.parallel.branches"], told["crew.parallel.succeeded"]) == (2, 1)
    assert seen.one("invoke_workflow c").attributes["crew.stop_reason"] == "completed"


@pytest.mark.parametrize("way", ["caller", "executor", "aclose", "stream"])
async def test_every_span_is_ended_when_a_run_is_stopped(seen, way: str) -> None:
    """The caller's task is cancelled, `cancel` or `aclose` is called, a stream is left half-way: nothing stays open."""
    hanging = HangingProvider()
    helper = Agent("helper", model=hanging)
    agent = Agent("a", model=ScriptedProvider(call("ask_helper", request="?")), tools=[helper.as_tool()])
    executor = CrewExecutor(agent, telemetry=seen.telemetry())

    if way == "stream":
        async with executor.execute_stream("Go", run_id="r") as events:
            async for event in events:
                if event.kind == "asked" and event.agent == "helper":
                    break
    else:
        task = asyncio.create_task(executor.execute("Go", run_id="r"))
        await hanging.asked.wait()

        if way == "executor":
            await executor.cancel("r")
            assert (await task).stop_reason == "cancelled"
        else:
            if way == "aclose":
                await executor.aclose()
            else:
                task.cancel()

            with pytest.raises(asyncio.CancelledError):
                await task

    assert_whole(seen)
    stop = "cancelled" if way == "executor" else "interrupted"
    assert seen.one("invoke_workflow a").attributes["crew.stop_reason"] == stop
    assert {span.name for span in seen.spans} == {
        "invoke_workflow a",
        "invoke_agent a",
        "chat scripted",
        "execute_tool ask_helper",
        "invoke_agent helper",
        "chat hanging",
    }


async def test_a_pause_is_an_event_and_the_resumed_run_links_back(seen) -> None:
    """Pauses are no errors; the second trace points at the first, from what the store kept."""

    @tool(approval="always")
    async def pay() -> str:
        """Pay."""
        return "paid"

    agent = Agent("a", model=ScriptedProvider(call("pay"), "Done."), tools=[pay])
    executor = CrewExecutor(agent, telemetry=seen.telemetry())
    paused = await executor.execute("Go")
    first = seen.one("invoke_workflow a")
    assert_whole(seen)
    assert (first.status.status_code, first.attributes["crew.stop_reason"]) == (StatusCode.UNSET, "paused")
    assert [event.name for event in first.events] == ["crew.paused"]

    done = await executor.resume(paused.run_id, {paused.pauses[0].id: True})
    assert_whole(seen)
    (second,) = [span for span in seen.named("invoke_workflow") if span is not first]
    (link,) = second.links
    assert link.context.span_id == first.context.span_id
    assert link.attributes == {"crew.link": "resumed"}
    assert f"{link.context.trace_id:032x}" == paused.trace_id != done.trace_id == f"{second.context.trace_id:032x}"
    assert [s.name for s in seen.spans if s.context.trace_id == second.context.trace_id] == [
        "invoke_workflow a",
        "invoke_agent a",
        "execute_tool pay",
        "chat scripted",
    ]


async def test_a_branch_that_comes_back_after_a_pause_stands_below_its_group_again(seen) -> None:
    """A resumed trace has the shape of the first one."""

    @tool(approval="always")
    async def pay() -> str:
        """Pay."""
        return "paid"

    one = Agent("one", model=ScriptedProvider(call("pay"), "Paid."), tools=[pay])
    two = Agent("two", model=ScriptedProvider("Fine."))
    group = Parallel("panel", branches=[one, two])
    executor = CrewExecutor(Crew("c", agents=[one, two], groups=[group], entry=group), telemetry=seen.telemetry())
    paused = await executor.execute("Go")
    seen.exporter.clear()
    await executor.resume(paused.run_id, {paused.pauses[0].id: True})
    assert_whole(seen)
    assert seen.parent(seen.one("invoke_agent one")).name == "crew.parallel panel"
    assert seen.one("crew.parallel panel").attributes["crew.parallel.succeeded"] == 2


async def test_a_limit_is_told_on_the_root(seen) -> None:
    """Which limit, and that it ended the run."""
    agent = Agent("a", model=ScriptedProvider(lambda request: call("nothing")))
    await CrewExecutor(agent, limits=Limits(rounds=2), telemetry=seen.telemetry()).execute("Go")
    root = seen.one("invoke_workflow a")
    assert root.attributes["crew.stop_reason"] == "limit"
    assert [(e.name, e.attributes["limit"]) for e in root.events] == [("crew.limit_reached", "rounds")]


async def test_a_hundred_runs_at_once_are_a_hundred_whole_trees(
    seen, support: Callable[..., Crew], caplog: pytest.LogCaptureFixture
) -> None:
    """No span of one run stands in another one's trace, and no context is detached where it was not attached."""
    caplog.set_level(logging.DEBUG)
    executor = CrewExecutor(support(2), telemetry=seen.telemetry())

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(executor.execute("Go")) for _ in range(100)]

    assert_whole(seen)
    runs = Counter(f"{span.context.trace_id:032x}" for span in seen.spans)
    assert set(runs) == {task.result().trace_id for task in tasks}
    assert len(set(runs.values())) == 1
    assert "detach" not in caplog.text.lower()


async def test_streams_left_half_way_never_detach_in_the_wrong_place(
    seen, support: Callable[..., Crew], caplog: pytest.LogCaptureFixture
) -> None:
    """Leaving after the n-th event, for every n: all spans are ended, and nothing is logged about contexts."""
    executor = CrewExecutor(support(1), telemetry=seen.telemetry())

    async with executor.execute_stream("Go") as events:
        total = len([event async for event in events])

    for leave in range(1, total):
        count = 0

        async for _ in executor.execute_stream("Go"):
            count += 1

            if count == leave:
                break

        await asyncio.sleep(0)

    await executor.aclose()
    assert_whole(seen)
    assert len(seen.named("invoke_workflow")) == total
    assert "detach" not in caplog.text.lower()


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_stream_from_a_server_that_is_left_half_way_ends_its_spans(
    protocol: Protocol, seen, caplog: pytest.LogCaptureFixture
) -> None:
    """The connection is left in the middle of a reply; its key is in none of the spans, though content is captured."""
    async with WireServer(lambda *_: "words " * 200) as server:
        telemetry = seen.telemetry(capture_content=True)
        executor = CrewExecutor(Agent("a", model=provider(server, protocol, "classic")), telemetry=telemetry)

        async with executor.execute_stream(f"Is {KEY} yours?") as events:
            async for event in events:
                if event.kind == "text_delta":
                    break

        await executor.aclose()

    assert_whole(seen)
    assert [span.name.split()[0] for span in seen.spans] == ["invoke_workflow", "invoke_agent", "chat"]
    assert not [span for span in seen.spans if KEY in span.to_json()]
    assert "detach" not in caplog.text.lower()


async def test_summaries_are_compaction_spans_with_a_chat_span(seen) -> None:
    """What a summary cost counts once, on a chat span below `crew.compact`."""
    script = [call("look", order_id=str(number)) for number in range(20)]

    def answer(request: ModelRequest) -> ToolCall | str:
        asked = isinstance(request.messages[-1], UserMessage) and request.turn > 0
        return "They looked at orders." if asked else script[request.turn] if request.turn < 20 else "Done."

    @tool
    async def look(order_id: str) -> str:
        """Look an order up."""
        return f"order {order_id} is on its way, says the warehouse, and it will be there soon " * 4

    executor = CrewExecutor(
        Agent("a", model=ScriptedProvider(answer), tools=[look]),
        history=HeadTail(max_messages=12, preserve_last_n=4, summarize_on_trim=True),
        telemetry=seen.telemetry(),
    )
    result = await executor.execute("Go")
    assert_whole(seen)
    compactions = seen.named("crew.compact")
    assert compactions
    chats = [span for span in seen.named("chat") if seen.parent(span).name == "crew.compact"]
    assert len(chats) >= len(compactions)
    assert sum(s.attributes["gen_ai.usage.input_tokens"] for s in seen.named("chat")) == result.usage.input_tokens
    assert compactions[0].attributes["crew.compact.covers"] >= 2
    assert executor.metrics()["gen_ai.client.token.usage"].total == result.usage.total_tokens


async def test_a_fallback_keeps_the_bill_whole_and_shows_both_calls(seen) -> None:
    """The first model's call is an error, the backup's is billed, and the agent's span says why."""
    backup = ScriptedProvider("From the backup.", model="small")
    agent = Agent("a", model=ScriptedProvider(Overloaded("too much work"), model="big"), backup=backup)
    result = await CrewExecutor(agent, telemetry=seen.telemetry()).execute("Go")
    assert_whole(seen)
    big, small = seen.one("chat big"), seen.one("chat small")
    assert (big.status.status_code, big.attributes["error.type"]) == (StatusCode.ERROR, "Overloaded")
    assert small.attributes["gen_ai.usage.input_tokens"] == result.usage.input_tokens
    (told,) = seen.one("invoke_agent a").events
    assert (told.name, told.attributes["backup"]) == ("crew.fallback", "scripted:small")


async def test_branches_retries_fallbacks_and_summaries_in_one_run_still_add_up(seen) -> None:
    """Over all spans the bills come to the run's own, in tokens in and out, and in money; every span is ended."""

    @tool
    async def look(order_id: str) -> str:
        """Look an order up."""
        return f"order {order_id} is on its way, says the warehouse, and it will be there soon " * 4

    def hard(request: ModelRequest) -> ModelReply | ToolCall:
        usage = Usage(requests=1, input_tokens=100 + request.turn, output_tokens=7, cost=0.25)

        if request.purpose == "reply" and request.on_retry is not None:
            request.on_retry(RetryAttempt(attempt=1, reason="RateLimited: slow down", wait=0.5))

        if request.purpose == "summary" or request.turn >= 12:
            return ModelReply(text="They looked at orders.", usage=usage)

        return ModelReply(calls=(call("look", order_id=str(request.turn)),), usage=usage)

    def worker(name: str) -> Agent:
        down = ScriptedProvider(lambda request: Overloaded("too much work"), model="big")
        return Agent(name, model=down, backup=ScriptedProvider(hard, model="small"), tools=[look])

    both = Parallel("both", branches=["a", "b"], then="a")
    crew = Crew("c", agents=[worker("a"), worker("b")], groups=[both], entry="both")
    executor = CrewExecutor(
        crew,
        history=HeadTail(max_messages=12, preserve_last_n=4, summarize_on_trim=True),
        telemetry=seen.telemetry(),
    )
    result = await executor.execute("Go")
    assert_whole(seen)
    chats = seen.named("chat")

    def total(name: str) -> float:
        return sum(span.attributes.get(name, 0) for span in seen.spans)

    assert total("gen_ai.usage.input_tokens") == result.usage.input_tokens > 0
    assert total("gen_ai.usage.output_tokens") == result.usage.output_tokens
    assert sum(s.attributes.get("crew.cost.usd", 0) for s in chats) == pytest.approx(result.usage.cost)
    assert sum("gen_ai.usage.input_tokens" in span.attributes for span in chats) == result.usage.requests
    events = [event.name for span in seen.spans for event in span.events]
    assert events.count("crew.fallback") >= 2
    assert events.count("crew.retry") >= 24
    assert seen.named("crew.compact")
    assert seen.named("crew.parallel")
    figures = executor.metrics()
    assert figures["gen_ai.client.token.usage"].total == result.usage.total_tokens
    by_agent = result.metrics.by_agent.values()
    assert sum(usage.input_tokens for usage in by_agent) == result.usage.input_tokens
    own = [usage for branch in result.branches for usage in [branch.usage]]
    assert 0 < sum(usage.input_tokens for usage in own) < result.usage.input_tokens


async def test_a_call_that_is_told_late_is_traced_from_its_beginning(seen) -> None:
    """While one branch commits, the other's question is under way before its event is told; its span is there."""

    current: dict[str, int] = {}

    def look(request: ModelRequest) -> str:
        current[request.agent] = trace.get_current_span().get_span_context().span_id
        return "Yes."

    branches = [Agent(name, model=ScriptedProvider(look)) for name in ("one", "two", "three")]
    group = Parallel("panel", branches=branches)
    crew = Crew("c", agents=branches, groups=[group], entry=group)
    await CrewExecutor(crew, store=SlowStore(), telemetry=seen.telemetry(capture_content=True)).execute("Go")
    assert_whole(seen)
    chats = {span.attributes["gen_ai.agent.name"]: span for span in seen.named("chat")}
    assert {name: span.context.span_id for name, span in chats.items()} == current
    assert {span.name for span in chats.values()} == {"chat scripted"}
    assert all("gen_ai.input.messages" in span.attributes for span in chats.values())


async def test_fallback_is_a_span_event_and_unknown_events_are_ignored(seen) -> None:
    """The event has model, backup and reason; an event of a later release changes nothing."""
    watch = _watch(seen)
    watch(FellBack(run_id="r", agent="a", at=1.0, model="big", backup="small", reason="Overloaded: later"))
    watch(Stamped(run_id="r", agent="a", at=2.0))
    watch.close(None, None)
    (event,) = seen.one("invoke_workflow c").events
    assert dict(event.attributes) == {"model": "big", "backup": "small", "reason": "Overloaded: later"}


class Stamped(BaseEvent):
    """An event that nobody knows."""

    kind = "from_the_future"


def _watch(seen):
    agent = Agent("a", model=ScriptedProvider("Hello."))
    state = RunState(run_id="r", conversation_id="r", crew="c", agent="a", limits=Limits())
    lookout = ExecutorTelemetry(Crew("c", agents=[agent]), 50, lambda: 0.5, seen.telemetry)
    return lookout.start_run(state, resumes=False)


async def test_time_to_the_first_piece_is_measured_on_streams(seen) -> None:
    """`gen_ai.client.operation.time_to_first_chunk`, once for each call."""

    class Slow(ScriptedProvider):
        async def complete(self, request: ModelRequest, on_delta: OnDelta | None = None) -> ModelReply:
            if on_delta is not None:
                on_delta(Delta(text="He"))
                on_delta(Delta(text="llo"))

            return ModelReply(text="Hello")

    executor = CrewExecutor(Agent("a", model=Slow()), telemetry=seen.telemetry())

    async with executor.execute_stream("Go") as events:
        async for _ in events:
            pass

    assert executor.metrics()["gen_ai.client.operation.time_to_first_chunk"].count == 1
