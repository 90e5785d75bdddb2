"""The outcome of branches, groups, summaries and runs is on their spans, in the trace and in the terminal."""

import asyncio
import logging
import re
from typing import Any

import pytest
import structlog
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased
from opentelemetry.trace import SpanKind, StatusCode
from pydantic import BaseModel

from crew import Agent, Crew, CrewExecutor, Parallel, Quorum, RunError, ScriptedProvider, call, tool
from crew.errors import OutputInvalid, Overloaded, StoreError
from crew.history.policies import HeadTail
from crew.interfaces import ModelReply, ModelRequest
from crew.messages import Usage
from crew.store import MemoryStore
from crew.telemetry import Telemetry, Tree
from tests.support.clocks import ManualClock, run_in_virtual_time
from tests.support.stores import SlowStore
from tests.telemetry.test_spans import assert_complete_tree


@tool(approval="always")
async def pay() -> str:
    """Pay."""
    return "paid"


def panel(*branches: Agent, **options) -> Crew:
    """A crew that starts with a group."""
    group = Parallel("panel", branches=branches, **options)
    others = [options["then"]] if "then" in options else []
    return Crew("c", agents=[*branches, *others], groups=[group], entry=group)


def lines_of(tree: Tree) -> dict[str, str]:
    """The lines of the tree, by span name."""
    rows = (re.sub(r"^[│├└─ ]*", "", line).split("  ", 1) for line in str(tree).splitlines())
    return {row[0]: row[1] if len(row) > 1 else "" for row in rows}


# ---------------------------------------------------------------------------------------------- groups


async def test_branch_that_ended_before_a_pause_is_completed(seen) -> None:
    """The other branch is paused; the group continues in the second trace."""
    good = Agent("good", model=ScriptedProvider("Yes."))
    payer = Agent("payer", model=ScriptedProvider(call("pay"), "Paid."), tools=[pay])
    executor = CrewExecutor(panel(good, payer), telemetry=seen.telemetry())
    paused = await executor.execute("Go")
    done = seen.one("invoke_agent good")
    assert done.attributes["crew.branch.outcome"] == "completed"
    assert "crew.stop_reason" not in done.attributes
    assert seen.one("invoke_agent payer").attributes["crew.stop_reason"] == "paused"
    assert_complete_tree(seen)
    await executor.resume(paused.run_id, {paused.pauses[0].id: True})
    assert_complete_tree(seen)
    assert [s.attributes.get("crew.parallel.succeeded") for s in seen.named("crew.parallel")] == [1, 2]


async def test_raising_processor_leaves_no_span_open(seen) -> None:
    """Neither the parents of the branch nor the root."""

    class Raising(SpanProcessor):
        def on_end(self, span: ReadableSpan) -> None:
            if span.name == "invoke_agent good":
                raise RuntimeError("no more room")

    seen.provider.add_span_processor(Raising())
    good = Agent("good", model=ScriptedProvider("Yes."))
    payer = Agent("payer", model=ScriptedProvider(call("pay"), "Paid."), tools=[pay])
    paused = await CrewExecutor(panel(good, payer), telemetry=seen.telemetry()).execute("Go")
    assert paused.stop_reason == "paused"
    assert seen.one("invoke_workflow c").attributes["crew.stop_reason"] == "paused"
    assert_complete_tree(seen)


async def test_failed_group_is_an_error_with_its_cancelled_branches(seen) -> None:
    """With `fail_fast` the healthy branch is cancelled, not failed."""

    @tool
    async def wait() -> str:
        """Wait for ever."""
        await asyncio.Event().wait()
        return ""

    broken = Agent("broken", model=ScriptedProvider(RuntimeError("no luck")))
    healthy = Agent("healthy", model=ScriptedProvider(call("wait"), "Never."), tools=[wait])

    with pytest.raises(RunError):
        await CrewExecutor(panel(healthy, broken, on_error="fail_fast"), telemetry=seen.telemetry()).execute("Go")

    assert_complete_tree(seen)
    group = seen.one("crew.parallel panel")
    assert group.status.status_code is StatusCode.ERROR
    assert group.attributes["crew.parallel.succeeded"] == 0
    outcomes = {
        name: seen.one(f"invoke_agent {name}").attributes["crew.branch.outcome"] for name in ("broken", "healthy")
    }
    assert outcomes == {"broken": "failed", "healthy": "cancelled"}
    assert seen.one("invoke_workflow c").attributes["crew.usage.requests"] == 1


async def test_branch_that_ended_before_its_group_failed(seen) -> None:
    """It is completed, with its time, in the trace, the terminal and the metrics."""
    clock, tree = ManualClock(), Tree()

    def quick(request: ModelRequest) -> str:
        clock.now += 2
        return "Yes."

    async def late() -> str:
        """Fail later."""
        await asyncio.sleep(0)
        clock.now += 5
        return "late"

    done = Agent("done", model=ScriptedProvider(quick))
    broken = Agent("broken", model=ScriptedProvider(call("late"), RuntimeError("two\nlines")), tools=[tool(late)])
    crew = panel(done, broken, on_error=Quorum(2))
    executor = CrewExecutor(crew, clock=clock, monotonic=clock, telemetry=seen.telemetry(), observers=[tree])

    with pytest.raises(RunError, match="1 of 2 branches succeeded"):
        await executor.execute("Go")

    assert_complete_tree(seen)
    span = seen.one("invoke_agent done")
    assert span.attributes["crew.branch.outcome"] == "completed"
    assert (span.end_time - span.start_time) / 1e9 == 2
    assert seen.one("crew.parallel panel").attributes["crew.parallel.succeeded"] == 1
    assert seen.one("invoke_agent broken").attributes["error.type"] == "ProviderError"
    shown = lines_of(tree)
    assert shown["invoke_agent done"] == "2.00 s"
    assert shown["invoke_agent broken"].startswith("7.00 s  failed: ProviderError: ")
    assert shown["invoke_agent broken"].endswith("RuntimeError: two lines")
    durations = executor.metrics()["gen_ai.invoke_agent.duration"].by_labels
    assert durations[("gen_ai.agent.name", "done"),].total == 2


async def test_branch_that_ended_before_an_interruption_is_completed(seen) -> None:
    """The caller is cancelled while the other branch works."""
    begun = asyncio.Event()

    @tool
    async def wait() -> str:
        """Wait for ever."""
        begun.set()
        await asyncio.Event().wait()
        return ""

    crew = panel(
        Agent("done", model=ScriptedProvider("Yes.")),
        Agent("slow", model=ScriptedProvider(call("wait"), "Never."), tools=[wait]),
    )
    task = asyncio.ensure_future(CrewExecutor(crew, telemetry=seen.telemetry()).execute("Go"))
    await begun.wait()
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task

    assert_complete_tree(seen)
    assert seen.one("invoke_agent done").attributes["crew.branch.outcome"] == "completed"
    assert "crew.stop_reason" not in seen.one("invoke_agent done").attributes
    assert seen.one("invoke_agent slow").attributes["crew.stop_reason"] == "interrupted"


def test_group_timeout_is_on_the_group_and_its_open_spans(seen) -> None:
    """The span of the active tool says that it was stopped."""

    @tool
    async def wait() -> str:
        """Wait for ever."""
        await asyncio.Event().wait()
        return ""

    slow = Agent("slow", model=ScriptedProvider(call("wait"), "Never."), tools=[wait])
    crew = panel(slow, Agent("quick", model=ScriptedProvider("Yes.")), timeout=5)
    run_in_virtual_time(CrewExecutor(crew, telemetry=seen.telemetry()).execute("Go"))
    assert_complete_tree(seen)
    assert [event.name for event in seen.one("crew.parallel panel").events] == ["crew.branch_timed_out"]
    assert seen.one("execute_tool wait").attributes["crew.stop_reason"] == "failed"


async def test_agent_after_a_group_links_to_it(seen) -> None:
    """As after a handoff or a route."""
    editor = Agent("editor", model=ScriptedProvider("The end."))
    crew = panel(Agent("one", model=ScriptedProvider("Yes.")), then=editor)
    await CrewExecutor(crew, telemetry=seen.telemetry()).execute("Go")
    (link,) = seen.one("invoke_agent editor").links
    assert link.context.span_id == seen.one("crew.parallel panel").context.span_id
    assert link.attributes == {"crew.link": "route"}


async def test_failed_request_is_one_span_and_one_measurement(seen) -> None:
    """A request that fails while another branch commits still has exactly one span."""

    backup = ScriptedProvider("From the backup.", model="small")
    branches = [
        Agent(name, model=ScriptedProvider(Overloaded("too much"), model="big"), backup=backup) for name in "abc"
    ]
    events: list = []
    executor = CrewExecutor(panel(*branches), store=SlowStore(), telemetry=seen.telemetry(), observers=[events.append])
    await executor.execute("Go")
    assert_complete_tree(seen)
    asked = [event for event in events if event.kind == "asked"]
    assert len(seen.named("chat")) == len(asked) == 6
    assert [s.status.status_code for s in seen.named("chat big")] == [StatusCode.ERROR] * 3
    assert executor.metrics()["gen_ai.client.operation.duration"].count == 6


# ---------------------------------------------------------------------------------------------- summaries


def summarizing_executor(summary, **options) -> CrewExecutor:
    """An executor whose agent looks up so many orders that a summary is made."""
    script = [call("look", order_id=str(number)) for number in range(12)]

    @tool
    async def look(order_id: str) -> str:
        """Look an order up."""
        return f"order {order_id} is on its way, says the warehouse, and it will be there soon " * 4

    model = ScriptedProvider(*script, "Done.", summary=summary)
    policy = HeadTail(max_messages=12, preserve_last_n=4, summarize_on_trim=True)
    return CrewExecutor(Agent("a", model=model, tools=[look]), history=policy, **options)


async def test_summarizer_runs_inside_its_chat_span(seen) -> None:
    """Spans of the provider are children of the chat span below `crew.compact`, also in the terminal."""
    clock, tree, current = ManualClock(), Tree(), []

    def summary(request: ModelRequest) -> str:
        current.append(trace.get_current_span().get_span_context().span_id)
        clock.now += 3
        return "They looked at orders."

    executor = summarizing_executor(
        summary, telemetry=seen.telemetry(capture_content=True), clock=clock, monotonic=clock, observers=[tree]
    )
    result = await executor.execute("Go")
    assert_complete_tree(seen)
    chats = [span for span in seen.named("chat") if seen.parent(span).name == "crew.compact"]
    assert [span.context.span_id for span in chats] == current
    told = chats[0].attributes
    assert (chats[0].name, chats[0].kind) == ("chat scripted", SpanKind.CLIENT)
    assert told["gen_ai.provider.name"] == "scripted"
    assert told["gen_ai.conversation.id"] == result.conversation_id
    assert "They looked at orders." in told["gen_ai.output.messages"]
    assert told["gen_ai.input.messages"].startswith("[")
    assert executor.metrics()["gen_ai.client.operation.duration"].count == result.usage.requests
    assert re.search(r"crew.compact  3.00 s\n.*└─ chat scripted  3.00 s  .* tokens", str(tree))


async def test_failed_summary_is_a_failed_chat_span(seen) -> None:
    """With the class of the error; the run continues."""
    tree = Tree()
    executor = summarizing_executor(Overloaded("too much"), telemetry=seen.telemetry(), observers=[tree])
    result = await executor.execute("Go")
    assert_complete_tree(seen)
    chats = [span for span in seen.named("chat") if seen.parent(span).name == "crew.compact"]
    assert chats
    assert {(s.status.status_code, s.attributes["error.type"]) for s in chats} == {(StatusCode.ERROR, "Overloaded")}
    assert "failed: " in lines_of(tree)["crew.compact"]
    assert result.output == "Done."


# ---------------------------------------------------------------------------------------------- parts of a run


async def test_root_span_has_the_totals_of_every_outcome(seen) -> None:
    """Of a paused, a failed and a resumed run."""
    bill = Usage(requests=1, input_tokens=100, output_tokens=5, cost=0.5)
    script = [
        ModelReply(calls=(call("pay"),), usage=bill),
        RuntimeError("broken"),
        ModelReply(text="Done.", usage=bill),
    ]
    executor = CrewExecutor(
        Agent("a", model=ScriptedProvider(*script), tools=[pay]),
        telemetry=seen.telemetry(),
        max_messages_per_request=10,
    )
    paused = await executor.execute("Go", history=[{"role": "user", "content": f"{n}"} for n in range(12)])

    with pytest.raises(RunError) as failed:
        await executor.resume(paused.run_id, {paused.pauses[0].id: True})

    told = [root.attributes for root in seen.named("invoke_workflow")]
    assert [root["crew.stop_reason"] for root in told] == ["paused", "failed"]
    assert [root["crew.usage.input_tokens"] for root in told] == [100, 100]
    assert [root["crew.usage.cost_usd"] for root in told] == [0.5, 0.5]
    assert all("crew.cost.usd" not in root for root in told)
    prunings = failed.value.result.metrics.prunings
    assert prunings > 0
    assert [root["crew.history.prunings"] for root in told] == [paused.metrics.prunings, prunings]


class Order(BaseModel):
    """The output type."""

    number: int


async def test_invalid_answer_is_billed_and_not_quoted(seen) -> None:
    """Its text is not in the error, hence not in spans and logs."""
    model = ScriptedProvider("The patient MEIER", "The patient MEIER again", '{"number": 17}')
    executor = CrewExecutor(Agent("a", model=model, output=Order), telemetry=seen.telemetry())

    with pytest.raises(OutputInvalid, match="does not match Order after one correction") as failed:
        await executor.execute("Go")

    result = failed.value.result
    assert (result.usage.requests, len(seen.named("chat"))) == (2, 2)
    assert sum(s.attributes["gen_ai.usage.input_tokens"] for s in seen.named("chat")) == result.usage.input_tokens
    assert [m.text for m in result.transcript if m.role == "assistant"] == [
        "The patient MEIER",
        "The patient MEIER again",
    ]
    assert "MEIER" not in str(failed.value) + "".join(span.to_json() for span in seen.spans)
    assert (await executor.resume(result.run_id)).output == Order(number=17)


async def test_instant_spans_have_a_duration(seen) -> None:
    """Prunings, handoffs and refused calls: backends treat a duration of zero as an error."""
    target = Agent("target", model=ScriptedProvider("Done."))
    script = [call("unknown", number=number) for number in range(40)]
    agent = Agent("a", model=ScriptedProvider(*script, call("transfer_to_target")), handoffs=[target])
    crew = Crew("c", agents=[agent, target])
    await CrewExecutor(crew, max_messages_per_request=10, telemetry=seen.telemetry()).execute("Go")
    assert_complete_tree(seen)
    assert len(seen.named("crew.history.prune")) > 5
    assert not [span.name for span in seen.spans if span.start_time == span.end_time]


async def test_arguments_of_agents_and_handoffs_are_opt_in(seen) -> None:
    """Like those of tools, also for a refused call."""

    @tool
    async def look(order_id: str) -> str:
        """Look an order up."""
        return order_id

    helper = Agent("helper", model=ScriptedProvider("Helped."))
    target = Agent("target", model=ScriptedProvider("Done."))
    script = [call("ask_helper", request="Help me."), call("look", wish="?"), call("transfer_to_target")]
    agent = Agent("a", model=ScriptedProvider(*script), tools=[helper.as_tool(), look], handoffs=[target])
    crew = Crew("c", agents=[agent, target])
    await CrewExecutor(crew, telemetry=seen.telemetry(capture_content=True)).execute("Go")
    told = [span.attributes["gen_ai.tool.call.arguments"] for span in seen.named("execute_tool")]
    assert told == ['{"request": "Help me."}', '{"wish": "?"}', "{}"]


async def test_resumed_run_is_measured_from_its_resume() -> None:
    """Its time, the times of its agents, and its use of limits."""
    clock = ManualClock()

    @tool(approval="always")
    async def work() -> str:
        """Work for a while."""
        clock.now += 30
        return "done"

    agent = Agent("a", model=ScriptedProvider(call("work"), "Done."), tools=[work])
    executor = CrewExecutor(agent, clock=clock, monotonic=clock)
    paused = await executor.execute("Go")
    clock.now += 3_600
    await executor.resume(paused.run_id, {paused.pauses[0].id: True})
    figures = executor.metrics()
    assert figures["gen_ai.invoke_workflow.duration"].maximum == pytest.approx(30, abs=1)
    agents = figures["gen_ai.invoke_agent.duration"]
    assert (agents.count, agents.maximum) == (2, pytest.approx(30, abs=1))


async def test_unsampled_run_has_unsampled_children(seen) -> None:
    """A span of a tool does not start a new trace."""
    provider = TracerProvider(sampler=ParentBased(ALWAYS_OFF), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(seen.exporter))
    recorded: list[bool] = []

    @tool
    async def query() -> str:
        """Ask a database."""
        with provider.get_tracer("db").start_as_current_span("SELECT") as span:
            recorded.append(span.get_span_context().trace_flags.sampled)

        return "rows"

    agent = Agent("a", model=ScriptedProvider(call("query"), "Done."), tools=[query])
    executor = CrewExecutor(agent, telemetry=Telemetry(tracer_provider=provider))
    result = await executor.execute("Go")
    assert (recorded, seen.spans, result.trace_id) == ([False], [], "")


async def test_failed_cancel_of_a_stored_run_ends_its_spans(seen) -> None:
    """The store fails; observers are still notified."""

    class Failing(MemoryStore):
        broken = False

        async def commit(self, run_id, version, events, state) -> None:
            if self.broken:
                raise OSError("disk full")

            await super().commit(run_id, version, events, state)

    store = Failing()
    agent = Agent("a", model=ScriptedProvider(call("pay"), "Done."), tools=[pay])
    executor = CrewExecutor(agent, store=store, telemetry=seen.telemetry())
    paused = await executor.execute("Go")
    store.broken = True

    with pytest.raises(StoreError):
        await executor.cancel(paused.run_id)

    assert len(seen.named("invoke_workflow")) == 2
    assert executor.metrics()["crew.runs.active"].total == 0


@pytest.mark.parametrize("quiet_from", [logging.WARNING, logging.CRITICAL])
async def test_raising_log_handler_leaves_no_span_open(seen, quiet_from: int) -> None:
    """Logs, metrics and spans are closed separately, also if the warning can't be written."""

    class Raising(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.levelno < quiet_from:
                raise OSError("disk full")

    logger, handler = logging.getLogger("crew"), Raising()
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)

    try:
        result = await CrewExecutor(Agent("a", model=ScriptedProvider("Done.")), telemetry=seen.telemetry()).execute(
            "Go"
        )
    finally:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)

    assert result.output == "Done."
    assert len(seen.named("invoke_workflow")) == 1


async def test_observer_that_raises_cancelled_error_is_harmless() -> None:
    """As `future.result()` of a cancelled future does."""

    def watch(event: object) -> None:
        raise asyncio.CancelledError

    agent = Agent("a", model=ScriptedProvider("Done."))
    assert (await CrewExecutor(agent, observers=[watch]).execute("Go")).output == "Done."


async def test_log_records_inside_a_tool_have_the_ids(seen) -> None:
    """In an application with structlog and no handler for `crew`, also in a branch."""
    found: list[dict] = []

    @tool
    async def note() -> str:
        """Take a note."""
        found.append(structlog.contextvars.get_contextvars())
        return "noted"

    branch = Agent("noter", model=ScriptedProvider(call("note"), "Done."), tools=[note])
    logger, handlers = logging.getLogger(), logging.getLogger().handlers[:]
    logger.handlers.clear()

    try:
        result = await CrewExecutor(panel(branch), telemetry=seen.telemetry(), observers=[Tree()]).execute("Go")
    finally:
        logger.handlers.extend(handlers)

    span = seen.one("execute_tool note")
    assert found == [
        {
            "run_id": result.run_id,
            "branch": "noter",
            "agent": "noter",
            "tool": "note",
            "trace_id": result.trace_id,
            "span_id": f"{span.context.span_id:016x}",
        }
    ]


async def test_log_line_of_a_failed_tool_names_the_error_class(caplog: pytest.LogCaptureFixture) -> None:
    """Not its message, which is content."""

    @tool
    async def fail() -> str:
        """Fail."""
        raise ValueError("a customer's name")

    agent = Agent("a", model=ScriptedProvider(call("fail"), "Done."), tools=[fail])

    with caplog.at_level(logging.INFO, logger="crew"):
        await CrewExecutor(agent).execute("Go")

    (line,) = [record.getMessage() for record in caplog.records if "tool.returned" in record.getMessage()]
    assert "error_type=ValueError" in line
    assert "customer" not in line


# ---------------------------------------------------------------------------------------------- in the terminal


async def test_text_tree_has_the_times_of_the_spans(seen) -> None:
    """Each branch has its own time; several runs are several trees."""
    clock, tree = ManualClock(), Tree()

    first_is_done = asyncio.Event()

    class Busy(ScriptedProvider):
        async def complete(self, request: ModelRequest, on_delta: Any = None) -> Any:
            if request.agent == "b":
                await first_is_done.wait()

            clock.now += 2 if request.agent == "a" else 5
            return await super().complete(request, on_delta)

    def end_first(event: Any) -> None:
        if event.kind == "replied" and event.agent == "a":
            first_is_done.set()

    crew = panel(Agent("a", model=Busy("Yes.")), Agent("b", model=Busy("Yes.")))
    executor = CrewExecutor(crew, clock=clock, monotonic=clock, telemetry=seen.telemetry(), observers=[tree, end_first])
    await executor.execute("Go")
    shown = lines_of(tree)

    for span in seen.spans:
        if span.name.startswith("invoke_"):
            assert shown[span.name].startswith(f"{(span.end_time - span.start_time) / 1e9:.2f} s"), span.name

    assert shown["invoke_agent a"] != shown["invoke_agent b"]
    await executor.execute("Again")
    assert str(tree).count("invoke_workflow c") == 2
    assert str(tree).count("trace ") == 2


async def test_interrupted_run_shows_its_active_tool() -> None:
    """The tool has its time, and the run is marked as interrupted."""
    tree, begun = Tree(), asyncio.Event()

    @tool
    async def wait() -> str:
        """Wait for ever."""
        begun.set()
        await asyncio.Event().wait()
        return ""

    agent = Agent("a", model=ScriptedProvider(call("wait"), "Never."), tools=[wait])
    task = asyncio.ensure_future(CrewExecutor(agent, observers=[tree]).execute("Go"))
    await begun.wait()
    assert lines_of(tree)["execute_tool wait"] == "in progress"
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task

    shown = lines_of(tree)
    assert "interrupted" in shown["invoke_workflow a"]
    assert "interrupted" in shown["execute_tool wait"]
