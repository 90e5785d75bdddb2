"""Every run is a tree of spans with the right parents, links and usage, and every span ends in every outcome."""

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


def assert_complete_tree(seen) -> None:
    """One root; every parent exists and encloses its children; no span is open."""
    spans = {span.context.span_id: span for span in seen.spans}

    for span in seen.spans:
        assert span.end_time is not None
        assert span.start_time <= span.end_time, span.name

        if span.parent is not None:
            parent = spans[span.parent.span_id]
            assert parent.context.trace_id == span.context.trace_id
            assert parent.start_time <= span.start_time, (parent.name, span.name)
            assert span.end_time <= parent.end_time, (parent.name, span.name)


async def test_run_is_one_tree(seen, support: Callable[..., Crew]) -> None:
    """Workflow, agents below it, model calls and tools below them, branches below their group, prunings in place."""
    executor = CrewExecutor(support(), max_messages_per_request=10, telemetry=seen.telemetry())
    result = await executor.execute("Where is my order?")
    assert_complete_tree(seen)
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


async def test_handoffs_and_groups_link_to_their_call(seen, support: Callable[..., Crew]) -> None:
    """A link of the target refers to `execute_tool transfer_to_…`."""
    await CrewExecutor(support(), telemetry=seen.telemetry()).execute("Where is my order?")
    names = {span.context.span_id: span.name for span in seen.spans}

    for target, source in (
        ("invoke_agent billing", "transfer_to_billing"),
        ("crew.parallel panel", "transfer_to_panel"),
    ):
        (link,) = seen.one(target).links
        assert names[link.context.span_id] == f"execute_tool {source}"
        assert link.attributes == {"crew.link": "handoff"}


async def test_route_links_to_the_agent_of_the_signal(seen) -> None:
    """Like a handoff."""
    last = Agent("last", model=ScriptedProvider("Done."))
    first = Agent("first", model=ScriptedProvider("[ON]"), routes=[Route("[ON]", to=last)])
    await CrewExecutor(Crew("c", agents=[first, last]), telemetry=seen.telemetry()).execute("Go")
    (link,) = seen.one("invoke_agent last").links
    assert link.context.span_id == seen.one("invoke_agent first").context.span_id
    assert [event.name for event in seen.one("invoke_agent first").events] == ["crew.route"]


async def test_pruning_span_has_counts_and_reason(seen, support: Callable[..., Crew]) -> None:
    """Before, after, evicted, policy, reason, tokens, and whether the prefix moved."""
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


async def test_usage_of_all_spans_is_the_usage_of_the_run(seen, support: Callable[..., Crew]) -> None:
    """`gen_ai.usage.*` is on chat spans only, so that a backend can sum over spans."""
    result = await CrewExecutor(support(), telemetry=seen.telemetry()).execute("Where is my order?")
    billed = [span for span in seen.spans if "gen_ai.usage.input_tokens" in span.attributes]
    assert {span.name.split()[0] for span in billed} == {"chat"}
    assert sum(s.attributes["gen_ai.usage.input_tokens"] for s in billed) == result.usage.input_tokens
    assert sum(s.attributes["gen_ai.usage.output_tokens"] for s in billed) == result.usage.output_tokens
    assert seen.one("invoke_workflow support").attributes["crew.usage.input_tokens"] == result.usage.input_tokens


async def test_retries_are_events_of_their_call(seen) -> None:
    """A failed attempt is an event of the span of its call, and usage adds up."""

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


async def test_span_of_a_tool_is_current_inside_it(seen) -> None:
    """Instrumented libraries nest below it, also in threads."""
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


async def test_provider_runs_inside_its_chat_span(seen) -> None:
    """The `traceparent` of an instrumented HTTP client belongs to the model call."""
    current = []

    def look(request: ModelRequest) -> str:
        current.append(trace.get_current_span().get_span_context().span_id)
        return "Hello."

    await CrewExecutor(Agent("a", model=ScriptedProvider(look)), telemetry=seen.telemetry()).execute("Go")
    assert current == [seen.one("chat scripted").context.span_id]


async def test_run_is_a_child_of_the_current_span(seen) -> None:
    """A request of the application and its run are one trace, also from a separate thread."""
    executor = CrewExecutor(Agent("a", model=ScriptedProvider("Hello.")), telemetry=seen.telemetry())

    with seen.provider.get_tracer("app").start_as_current_span("request") as request:
        await executor.execute("Go")
        executor.execute_sync("Go")

    parents = {span.parent.span_id for span in seen.named("invoke_workflow")}
    assert parents == {request.get_span_context().span_id}


async def test_called_agent_is_below_its_call(seen) -> None:
    """Its spans are children of `execute_tool ask_…`."""
    expert = Agent("expert", model=ScriptedProvider("42."))
    asker = Agent(
        "asker", model=ScriptedProvider(call("ask_expert", request="?"), "It is 42."), tools=[expert.as_tool()]
    )
    await CrewExecutor(asker, telemetry=seen.telemetry()).execute("Go")
    assert_complete_tree(seen)
    assert seen.parent(seen.one("invoke_agent expert")).name == "execute_tool ask_expert"
    assert seen.one("execute_tool ask_expert").attributes["gen_ai.tool.type"] == "agent"


async def test_tool_error_marks_its_span_without_the_message(seen) -> None:
    """The message is content, the error class is not. An unknown tool has a span too."""

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


async def test_failed_run_ends_its_spans_as_errors(seen) -> None:
    """Chat, agent and root end; chat and root have the error."""
    agent = Agent("a", model=ScriptedProvider(RuntimeError("broken pipe")))

    with pytest.raises(RunError) as raised:
        await CrewExecutor(agent, telemetry=seen.telemetry()).execute("Go")

    assert_complete_tree(seen)
    chat, root = seen.one("chat scripted"), seen.one("invoke_workflow a")
    assert (chat.status.status_code, chat.attributes["error.type"]) == (StatusCode.ERROR, "RuntimeError")
    assert (root.status.status_code, root.attributes["crew.stop_reason"]) == (StatusCode.ERROR, "failed")
    assert "broken pipe" in root.status.description
    assert raised.value.result.trace_id == f"{root.context.trace_id:032x}"


async def test_failed_branch_is_an_error_of_that_branch_only(seen) -> None:
    """The group has the number of successes; the run continues."""
    good, bad = Agent("good", model=ScriptedProvider("Yes.")), Agent("bad", model=ScriptedProvider(RuntimeError("no")))
    group = Parallel("panel", branches=[good, bad])
    await CrewExecutor(Crew("c", agents=[good, bad], groups=[group], entry=group), telemetry=seen.telemetry()).execute(
        "Go"
    )
    assert_complete_tree(seen)
    assert seen.one("invoke_agent bad").status.status_code is StatusCode.ERROR
    assert seen.one("invoke_agent bad").attributes["crew.branch.outcome"] == "failed"
    assert seen.one("invoke_agent good").status.status_code is StatusCode.UNSET
    told = seen.one("crew.parallel panel").attributes
    assert told["crew.parallel.policy"] == "collect"
    assert (told["crew.parallel.branches"], told["crew.parallel.succeeded"]) == (2, 1)
    assert seen.one("invoke_workflow c").attributes["crew.stop_reason"] == "completed"


@pytest.mark.parametrize("way", ["caller", "executor", "aclose", "stream"])
async def test_every_span_ends_when_a_run_is_stopped(seen, way: str) -> None:
    """By a cancelled caller, `cancel`, `aclose` or an abandoned stream."""
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

    assert_complete_tree(seen)
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


async def test_resumed_run_links_to_the_paused_trace(seen) -> None:
    """A pause is an event and not an error; the link comes from the stored run."""

    @tool(approval="always")
    async def pay() -> str:
        """Pay."""
        return "paid"

    agent = Agent("a", model=ScriptedProvider(call("pay"), "Done."), tools=[pay])
    executor = CrewExecutor(agent, telemetry=seen.telemetry())
    paused = await executor.execute("Go")
    first = seen.one("invoke_workflow a")
    assert_complete_tree(seen)
    assert (first.status.status_code, first.attributes["crew.stop_reason"]) == (StatusCode.UNSET, "paused")
    assert [event.name for event in first.events] == ["crew.paused"]

    done = await executor.resume(paused.run_id, {paused.pauses[0].id: True})
    assert_complete_tree(seen)
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


async def test_resumed_branch_is_below_its_group(seen) -> None:
    """A resumed trace has the same shape as the first one."""

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
    assert_complete_tree(seen)
    assert seen.parent(seen.one("invoke_agent one")).name == "crew.parallel panel"
    assert seen.one("crew.parallel panel").attributes["crew.parallel.succeeded"] == 2


async def test_limit_is_on_the_root_span(seen) -> None:
    """Which limit, and that it ended the run."""
    agent = Agent("a", model=ScriptedProvider(lambda request: call("nothing")))
    await CrewExecutor(agent, limits=Limits(rounds=2), telemetry=seen.telemetry()).execute("Go")
    root = seen.one("invoke_workflow a")
    assert root.attributes["crew.stop_reason"] == "limit"
    assert [(e.name, e.attributes["limit"]) for e in root.events] == [("crew.limit_reached", "rounds")]


async def test_hundred_concurrent_runs_are_hundred_trees(
    seen, support: Callable[..., Crew], caplog: pytest.LogCaptureFixture
) -> None:
    """No span is in the trace of another run, and no context is detached in the wrong task."""
    caplog.set_level(logging.DEBUG)
    executor = CrewExecutor(support(2), telemetry=seen.telemetry())

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(executor.execute("Go")) for _ in range(100)]

    assert_complete_tree(seen)
    runs = Counter(f"{span.context.trace_id:032x}" for span in seen.spans)
    assert set(runs) == {task.result().trace_id for task in tasks}
    assert len(set(runs.values())) == 1
    assert "detach" not in caplog.text.lower()


async def test_abandoned_streams_detach_their_context(
    seen, support: Callable[..., Crew], caplog: pytest.LogCaptureFixture
) -> None:
    """Abandoned after the n-th event, for every n: all spans end, and no context error is logged."""
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
    assert_complete_tree(seen)
    assert len(seen.named("invoke_workflow")) == total
    assert "detach" not in caplog.text.lower()


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_abandoned_stream_of_a_server_ends_its_spans(
    protocol: Protocol, seen, caplog: pytest.LogCaptureFixture
) -> None:
    """The connection is closed in the middle of a reply; the key is in no span, although content is captured."""
    async with WireServer(lambda *_: "words " * 200) as server:
        telemetry = seen.telemetry(capture_content=True)
        executor = CrewExecutor(Agent("a", model=provider(server, protocol, "classic")), telemetry=telemetry)

        async with executor.execute_stream(f"Is {KEY} yours?") as events:
            async for event in events:
                if event.kind == "text_delta":
                    break

        await executor.aclose()

    assert_complete_tree(seen)
    assert [span.name.split()[0] for span in seen.spans] == ["invoke_workflow", "invoke_agent", "chat"]
    assert not [span for span in seen.spans if KEY in span.to_json()]
    assert "detach" not in caplog.text.lower()


async def test_summaries_are_compaction_spans_with_a_chat_span(seen) -> None:
    """The usage of a summary counts once, on a chat span below `crew.compact`."""
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
    assert_complete_tree(seen)
    compactions = seen.named("crew.compact")
    assert compactions
    chats = [span for span in seen.named("chat") if seen.parent(span).name == "crew.compact"]
    assert len(chats) >= len(compactions)
    assert sum(s.attributes["gen_ai.usage.input_tokens"] for s in seen.named("chat")) == result.usage.input_tokens
    assert compactions[0].attributes["crew.compact.covers"] >= 2
    assert executor.metrics()["gen_ai.client.token.usage"].total == result.usage.total_tokens


async def test_fallback_shows_both_calls_and_the_usage(seen) -> None:
    """The call of the first model is an error, the backup has the usage, and the agent span has the reason."""
    backup = ScriptedProvider("From the backup.", model="small")
    agent = Agent("a", model=ScriptedProvider(Overloaded("too much work"), model="big"), backup=backup)
    result = await CrewExecutor(agent, telemetry=seen.telemetry()).execute("Go")
    assert_complete_tree(seen)
    big, small = seen.one("chat big"), seen.one("chat small")
    assert (big.status.status_code, big.attributes["error.type"]) == (StatusCode.ERROR, "Overloaded")
    assert small.attributes["gen_ai.usage.input_tokens"] == result.usage.input_tokens
    (told,) = seen.one("invoke_agent a").events
    assert (told.name, told.attributes["backup"]) == ("crew.fallback", "scripted:small")


async def test_usage_adds_up_in_a_run_with_everything(seen) -> None:
    """Branches, retries, fallbacks and summaries: tokens and cost of all spans equal those of the run."""

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
    assert_complete_tree(seen)
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


async def test_late_event_is_traced_from_its_start(seen) -> None:
    """A request starts while another branch commits, before its event is emitted."""

    current: dict[str, int] = {}

    def look(request: ModelRequest) -> str:
        current[request.agent] = trace.get_current_span().get_span_context().span_id
        return "Yes."

    branches = [Agent(name, model=ScriptedProvider(look)) for name in ("one", "two", "three")]
    group = Parallel("panel", branches=branches)
    crew = Crew("c", agents=branches, groups=[group], entry=group)
    await CrewExecutor(crew, store=SlowStore(), telemetry=seen.telemetry(capture_content=True)).execute("Go")
    assert_complete_tree(seen)
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
    """An unknown event."""

    kind = "from_the_future"


def _watch(seen):
    agent = Agent("a", model=ScriptedProvider("Hello."))
    state = RunState(run_id="r", conversation_id="r", crew="c", agent="a", limits=Limits())
    lookout = ExecutorTelemetry(Crew("c", agents=[agent]), 50, lambda: 0.5, seen.telemetry)
    return lookout.start_run(state, resumes=False)


async def test_time_to_first_chunk_is_measured_on_streams(seen) -> None:
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
