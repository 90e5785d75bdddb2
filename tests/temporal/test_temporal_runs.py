"""Runs on a real Temporal server behave as in one process: results, pauses, failures, limits, conversations."""

import asyncio
from typing import Any

import pytest
from temporalio.client import Client, WorkflowExecutionStatus

from crew import (
    Agent,
    Context,
    Crew,
    CrewExecutor,
    Limits,
    Parallel,
    RunResult,
    ScriptedProvider,
    call,
    tool,
)
from crew.agents import GuardedCall, NeedsApproval, Rewritten, guardrail
from crew.errors import ConversationPaused, InvalidInput, RunActive, RunError, RunExists, UnknownPause
from crew.interfaces import ModelReply, ModelRequest, ModelSettings, OnDelta
from crew.runs.interfaces import RunInfo, RunReader
from crew.store import SQLiteStore
from crew.temporal import CrewWorker, TemporalExecutor
from crew.tools.tool_exceptions import StopRun
from crew.tools.toolset import toolset

pytestmark = pytest.mark.servers


@tool(effect="read")
async def look(n: int) -> str:
    """Look at something."""
    return f"saw {n}"


@tool(approval=True)
def refund(amount: int) -> str:
    """Pay money back."""
    return f"paid {amount}"


@tool(approval=lambda amount: amount > 100)
def transfer(amount: int) -> str:
    """Transfer an amount."""
    return f"transferred {amount}"


@tool(effect="read")
def whoami(context: Context[str]) -> str:
    """The deps of the run."""
    return context.deps


@tool(timeout=60)
async def hang() -> str:
    """Write for ever."""
    await asyncio.sleep(600)
    return "never"


def clerk(*lines: Any, tools: Any = (look, refund, transfer), **options: Any) -> Agent:
    return Agent("clerk", model=ScriptedProvider(*lines), tools=[*tools], **options)


def facts(result: RunResult) -> Any:
    """What must not depend on where a run is driven."""
    return (
        result.output,
        result.stop_reason,
        [(type(m).__name__, m.id, getattr(m, "text", ""), getattr(m, "results", ())) for m in result.transcript],
        [m.id for m in result.history],
        result.usage,
        [(b.run_id, b.outcome, b.output, [m.id for m in b.transcript]) for b in result.branches],
        [(p.id, p.reason, p.text) for p in result.pauses],
        result.agent,
    )


class Both:
    """Runs one crew on Temporal and in this process."""

    def __init__(self, client: Client, store_file: str, crew: Crew | Agent, **options: Any) -> None:
        self.worker = CrewWorker(client, crew, store=store_file, **options)
        self.remote = TemporalExecutor(client, crew, store=store_file, **options)
        self.local = CrewExecutor(crew, **options)

    async def __aenter__(self) -> "Both":
        await self.worker.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.worker.__aexit__(*error)
        await self.remote.aclose()
        await self.local.aclose()

    async def execute(self, text: str, run_id: str, **options: Any) -> RunResult:
        """The result on Temporal, which is the same in this process."""
        remote, local = await asyncio.gather(
            self.remote.execute(text, run_id=run_id, **options), self.local.execute(text, run_id=run_id, **options)
        )
        assert facts(remote) == facts(local)
        return remote


async def test_tools_pauses_and_answers_are_those_of_one_process(client: Client, store_file: str) -> None:
    """A run with tools and an approval has the same transcript, events, pauses and usage."""
    crew = clerk([call("look", n=1), call("look", n=2)], call("refund", amount=80), "It is paid.")

    async with Both(client, store_file, crew) as both:
        paused = await both.execute("Refund me.", "pauses")
        assert paused.stop_reason == "paused"
        state = await both.remote.state("pauses")
        assert (state["status"], state["next"], len(state["pauses"])) == ("paused", "call_tools", 1)

        with pytest.raises(UnknownPause):
            await both.remote.resume("pauses", {"other": True})

        answers = {paused.pauses[0].id: True}
        done = await both.remote.resume("pauses", answers)
        assert facts(done) == facts(await both.local.resume("pauses", answers))
        assert done.output == "It is paid."


async def test_the_workflow_itself_refuses_wrong_answers(client: Client, store_file: str) -> None:
    """Its validator runs before an update is accepted: nothing is recorded in the history."""
    async with Both(client, store_file, clerk(call("refund", amount=80), "Paid.")) as both:
        paused = await both.remote.execute("Refund me.", run_id="refused")
        runs: Any = both.remote._active_runs
        handle = client.get_workflow_handle("crew:refused")
        before = (await handle.describe()).history_length

        with pytest.raises(InvalidInput):
            await runs._answer("refused", _resumed("refused", {paused.pauses[0].id: 3}))

        assert (await handle.describe()).history_length == before


def _resumed(run_id: str, answers: dict[str, Any]) -> Any:
    from crew.runs.events import Resumed

    return Resumed(run_id=run_id, answers=answers)


async def test_streams_deliver_the_stored_events_in_order(client: Client, store_file: str) -> None:
    """Every event of the store's log arrives once, numbered without gaps; a second reader can follow the log too."""
    async with Both(client, store_file, clerk(call("look", n=1), "Done.")) as both:
        async with both.remote.execute_stream("Go.", run_id="stream") as events:
            seen = [event async for event in events]

        local = [event async for event in both.local.execute_stream("Go.", run_id="stream")]
        kinds = [event.kind for event in local if event.kind != "text_delta"]
        assert [event.kind for event in seen] == kinds
        assert [event.sequence for event in seen] == [*range(1, len(seen) + 1)]
        stored = await SQLiteStore(store_file).events("stream")
        assert [one.event.sequence for one in stored] == [event.sequence for event in seen]
        assert events.result.output == "Done."


async def test_approval_functions_run_in_activities(client: Client, store_file: str) -> None:
    """A function of the arguments decides about the approval, as in one process."""
    async with Both(
        client, store_file, clerk(call("transfer", amount=50), call("transfer", amount=500), "Ok.")
    ) as both:
        paused = await both.execute("Transfer.", "functions")
        assert [pause.call.arguments for pause in paused.pauses if pause.call] == ['{"amount": 500}']


def panel() -> Crew:
    legal = Agent("legal", model=ScriptedProvider(call("look", n=1), "Legal agrees."), tools=[look])
    finance = Agent("finance", model=ScriptedProvider(call("look", n=2), "Finance agrees."), tools=[look])
    editor = Agent("editor", model=ScriptedProvider("Both agree."))
    triage = Agent("triage", model=ScriptedProvider(call("transfer_to_panel")), handoffs=["panel"])
    group = Parallel("panel", branches=[legal, finance], then=editor)
    return Crew("team", agents=[triage, legal, finance, editor], groups=[group])


async def test_handoffs_and_parallel_branches_are_those_of_one_process(client: Client, store_file: str) -> None:
    """Branches run as concurrent activities, and join as in one process."""
    async with Both(client, store_file, panel()) as both:
        done = await both.execute("Check it.", "branches")
        assert done.output == "Both agree."
        history = await client.get_workflow_handle("crew:branches").fetch_history()
        ids = [e.activity_task_scheduled_event_attributes.activity_id for e in history.events if e.event_type == 10]
        assert {id.partition(":")[0] for id in ids} >= {"branches", "branches/legal", "branches/finance"}
        assert any(id.endswith(".0") for id in ids if id.startswith("branches/legal:"))


class Failing(ScriptedProvider):
    """Fails the first requests."""

    failures = 1

    async def complete(self, request: ModelRequest, on_delta: OnDelta | None = None) -> ModelReply:
        if type(self).failures:
            type(self).failures -= 1
            raise ValueError("out of order")

        return await super().complete(request, on_delta)


async def test_a_failed_run_raises_and_can_be_resumed(client: Client, store_file: str) -> None:
    """The workflow fails, the caller gets a `RunError` with the result so far, and a resume tries again."""
    Failing.failures = 1

    async with Both(client, store_file, Agent("clerk", model=Failing("Works."))) as both:
        with pytest.raises(RunError) as raised:
            await both.remote.execute("Go.", run_id="failing")

        assert "out of order" in str(raised.value)
        assert raised.value.result.stop_reason == "failed"
        described = await client.get_workflow_handle("crew:failing").describe()
        assert described.status == WorkflowExecutionStatus.FAILED
        assert (await SQLiteStore(store_file).runs(status="failed")).runs[0].run_id == "failing"
        assert (await both.remote.resume("failing")).output == "Works."


async def test_a_run_that_fails_again_can_be_resumed_again(client: Client, store_file: str) -> None:
    """Each attempt performs the step anew, and its events are stored as in one process."""
    kinds: list[list[str]] = []

    async with Both(client, store_file, Agent("clerk", model=Failing("Works."))) as both:
        for executor in (both.local, both.remote):
            Failing.failures = 3

            with pytest.raises(RunError):
                await executor.execute("Go.", run_id="twice")

            for _ in range(2):
                with pytest.raises(RunError):
                    await executor.resume("twice")

            assert (await executor.resume("twice")).output == "Works."
            assert isinstance(executor.store, RunReader)
            kinds.append([stored.event.kind for stored in await executor.store.events("twice")])

    assert kinds[0] == kinds[1]
    assert kinds[1].count("resumed") == kinds[1].count("run_failed") == 3


@pytest.mark.parametrize("is_resumed", [False, True])
async def test_cancelled_stream_of_a_paused_run_ends_the_workflow(
    client: Client, store_file: str, is_resumed: bool
) -> None:
    """The workflow is cancelled, not only the stored run: also by a stream of `resume_stream` that was not read."""
    run_id = f"cancelled-stream-{is_resumed}"

    async with Both(client, store_file, clerk(call("refund", amount=80), "Paid.")) as both:
        stream = both.remote.execute_stream("Refund me.", run_id=run_id)
        assert [event.kind async for event in stream][-1] == "paused"

        if is_resumed:
            stream = both.remote.resume_stream(run_id, {stream.result.pauses[0].id: True})

        await asyncio.wait_for(stream.cancel(), 180)
        assert (stream.result.stop_reason, stream.result.pauses) == ("cancelled", ())
        described = await client.get_workflow_handle(f"crew:{run_id}").describe()
        assert described.status not in (None, WorkflowExecutionStatus.RUNNING)


async def test_cancel_ends_the_workflow_and_reports_writes_in_doubt(client: Client, store_file: str) -> None:
    """Cancellation of the workflow is recorded as in one process, and stored."""
    async with Both(client, store_file, clerk(call("hang"), "Never.", tools=[hang])) as both:
        task = asyncio.create_task(both.remote.execute("Go.", run_id="cancelled"))

        while not any(e.event.kind == "asked" for e in await _events(store_file, "cancelled")):
            await asyncio.sleep(0.05)

        await both.remote.cancel("cancelled")
        result = await task
        assert result.stop_reason == "cancelled"
        described = await client.get_workflow_handle("crew:cancelled").describe()
        assert described.status == WorkflowExecutionStatus.CANCELED


async def _events(store_file: str, run_id: str) -> Any:
    try:
        return await SQLiteStore(store_file).events(run_id)
    except Exception:
        return ()


async def test_the_time_limit_ends_a_run(client: Client, store_file: str) -> None:
    """`Limits.seconds` counts the time of the workflow."""
    crew = clerk(call("hang"), "Never.", tools=[hang])

    async with Both(client, store_file, crew, limits=Limits(seconds=1.5)) as both:
        result = await both.remote.execute("Go.", run_id="limited")
        assert (result.stop_reason, result.limit and result.limit.name) == ("limit", "seconds")


async def test_conversations_continue_and_refuse_as_in_one_process(client: Client, store_file: str) -> None:
    """Each turn continues the stored conversation; a paused turn refuses the next one, or is cancelled for it."""
    crew = clerk("One.", "Two.", call("refund", amount=80), "Three.")

    async with Both(client, store_file, crew) as both:
        first = await both.remote.execute("First.", conversation="c", run_id="c1")
        second = await both.remote.execute("Second.", conversation="c", run_id="c2")
        assert (first.output, second.output) == ("One.", "Two.")
        paused = await both.remote.execute("Third.", conversation="c", run_id="c3")
        assert paused.stop_reason == "paused"

        with pytest.raises(ConversationPaused):
            await both.remote.execute("Fourth.", conversation="c")

        after = await both.remote.execute("Fourth.", conversation="c", on_paused="cancel")
        assert after.output == "Three."
        assert [run.status for run in (await both.remote.conversation("c")).runs] == [
            "completed",
            "completed",
            "cancelled",
            "completed",
        ]


async def test_another_executor_does_not_touch_runs_on_temporal(client: Client, store_file: str) -> None:
    """`CrewExecutor.resume` and `cancel` raise `RunActive`; run ids stay unique."""
    crew = clerk(call("refund", amount=80), "Paid.")

    async with Both(client, store_file, crew) as both:
        paused = await both.remote.execute("Refund me.", run_id="owned")
        other = CrewExecutor(crew, store=store_file)

        with pytest.raises(RunActive):
            await other.resume("owned", {paused.pauses[0].id: True})

        with pytest.raises(RunActive):
            await other.cancel("owned")

        with pytest.raises(RunExists):
            await both.remote.execute("Again.", run_id="owned")

        assert (await both.remote.execute("Again.", run_id="owned2")).stop_reason == "paused"
        await other.aclose()


async def test_deps_come_from_the_factory_of_the_workers(client: Client, store_file: str) -> None:
    """`execute(deps=…)` is refused; the factory gets the ids and the metadata of the run."""

    async def build(info: RunInfo) -> str:
        return f"{info.run_id} for {info.metadata['user']}"

    async with Both(client, store_file, clerk(call("whoami"), "Done.", tools=[whoami]), deps=build) as both:
        with pytest.raises(InvalidInput, match="factory"):
            await both.remote.execute("Who?", deps="me")

        done = await both.execute("Who?", "deps", metadata={"user": "Ada"})
        assert done.transcript[2].results[0].text == "deps for Ada"  # type: ignore[union-attr]


async def test_features_of_agents_and_tools_are_those_of_one_process(client: Client, store_file: str) -> None:
    """Instructions that a function writes, toolsets, guardrails, questions of tools and overrides for one run: all user
    code runs in activities."""

    def instructions(context: Context[None]) -> str:
        return f"You work for {context.metadata['user']}."

    @guardrail("input")
    async def polite(context: Context[None], text: str) -> Rewritten:
        return Rewritten(f"Please: {text}")

    @guardrail("tool")
    def small_amounts(context: Context[None], made: GuardedCall) -> NeedsApproval | None:
        return NeedsApproval("Is this amount right?") if made.arguments.get("amount", 0) > 100 else None

    @guardrail("output")
    def no_cards(context: Context[None], text: str) -> Rewritten | None:
        return Rewritten(text.replace("4711", "****")) if "4711" in text else None

    @tool(asks=True)
    async def book(context: Context[None]) -> str:
        """Book a trip."""
        return f"booked {await context.ask_user('Where to?')}"

    crew = Agent(
        "clerk",
        instructions=instructions,
        description="Books trips.",
        model=ScriptedProvider(call("look", n=1), call("book"), call("transfer", amount=500), "Card 4711."),
        tools=[toolset("places", [look]), book, transfer],
        guardrails=[polite, small_amounts, no_cards],
    )

    async with Both(client, store_file, crew) as both:
        options: dict[str, Any] = {"metadata": {"user": "Ada"}, "settings": ModelSettings(max_output_tokens=100)}
        result = await both.execute("Book it.", "features", **options)
        assert [pause.reason for pause in result.pauses] == ["question"]

        for answer in ("Rome", True, True):
            answers = {result.pauses[0].id: answer}
            result, local = await asyncio.gather(
                both.remote.resume("features", answers), both.local.resume("features", answers)
            )
            assert facts(result) == facts(local)

            if result.stop_reason == "completed":
                break

        assert result.output == "Card ****."


async def test_a_tool_that_stops_the_run_stops_the_workflow(client: Client, store_file: str) -> None:
    """`StopRun` ends the run with its reason, as in one process."""

    @tool
    async def quit_now() -> str:
        """End everything."""
        raise StopRun("Enough.")

    async with Both(client, store_file, clerk(call("quit_now"), "Never.", tools=[quit_now])) as both:
        result = await both.execute("Go.", "stopped")
        assert (result.stop_reason, result.stop_text) == ("stopped", "Enough.")
