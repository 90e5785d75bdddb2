"""The payload of a handoff reaches code: `on_handoff`, and `context.payload` of the agent that received it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, Field

from crew import (
    Agent,
    Context,
    Crew,
    CrewExecutor,
    Limits,
    Parallel,
    ScriptedProvider,
    StopRun,
    ToolRetry,
    call,
    handoff,
    tool,
)
from crew.errors import DefinitionError
from crew.messages import ToolMessage
from crew.runs.events import HandedOff
from crew.store import SQLiteStore
from tests.support.providers import CheckedModels
from tests.support.runs import collect, events_of_type
from tests.support.stores import CheckedStore


class Ticket(BaseModel):
    """What the sender has to know."""

    order: int = Field(gt=0)
    urgent: bool = False


class Calls:
    """`on_handoff` functions, and what they were called with."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.made: list[Any] = []
        self.error = error

    def __call__(self, context: Context[Any], payload: Any) -> str:
        self.made.append((context.agent, context.idempotency_key, payload))

        if self.error is not None and len(self.made) == 1:
            raise self.error

        return "ignored"

    async def later(self, context: Context[Any], payload: Any) -> None:
        self(context, payload)


@tool(effect="read")
def read_payload(context: Context[Any]) -> str:
    """Read the payload."""
    return repr(context.payload)


def results(transcript: Any) -> list[str]:
    return [result.text for message in transcript if isinstance(message, ToolMessage) for result in message.results]


def crew_of(models: CheckedModels, first: list[Any], **options: Any) -> Crew:
    receiver = Agent("billing", model=models.scripted(call("read_payload"), "Paid."), tools=[read_payload])
    sender = Agent("triage", model=models.scripted(*first), handoffs=[handoff(receiver, **options)])
    return Crew("c", agents=[sender, receiver])


@pytest.mark.parametrize("form", ["sync", "async"])
async def test_the_function_gets_the_payload_once_and_control_passes(
    form: str, models: CheckedModels, store: CheckedStore
) -> None:
    """It gets an object of the class and the key of the call; what it returns is ignored."""
    calls = Calls()
    function = calls if form == "sync" else calls.later
    crew = crew_of(models, [call("transfer_to_billing", order=17)], payload=Ticket, on_handoff=function)
    events, result = await collect(CrewExecutor(crew, store=store).execute_stream("Go.", run_id="r"))
    assert calls.made == [("triage", "r:1.0", Ticket(order=17))]
    assert (result.output, result.agent) == ("Paid.", "billing")
    assert results(result.transcript) == ["Control passes to billing.", "Ticket(order=17, urgent=False)"]
    assert [event.target for event in events_of_type(events, HandedOff)] == ["billing"]


async def test_invalid_payloads_do_not_reach_the_function(models: CheckedModels, store: CheckedStore) -> None:
    """The model gets the problem, and the valid call passes control."""
    calls = Calls()
    script = [call("transfer_to_billing", order=0), call("transfer_to_billing", order=1)]
    result = await CrewExecutor(crew_of(models, script, payload=Ticket, on_handoff=calls), store=store).execute(
        "Go.", run_id="r"
    )
    assert [payload for _, _, payload in calls.made] == [Ticket(order=1)]
    assert "order: Input should be greater than 0" in results(result.transcript)[0]


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("no such order"), "transfer_to_billing failed: ValueError: no such order"),
        (ToolRetry("Ask for the order first."), "Ask for the order first."),
    ],
)
async def test_control_stays_if_the_function_fails(
    error: Exception, text: str, models: CheckedModels, store: CheckedStore
) -> None:
    """The sender's model gets the error, and may hand off again."""
    calls = Calls(error)
    script = [call("transfer_to_billing", order=1), call("transfer_to_billing", order=2)]
    crew = crew_of(models, script, payload=Ticket, on_handoff=calls)
    result = await CrewExecutor(crew, store=store).execute("Go.", run_id="r")
    assert results(result.transcript)[0] == text
    assert result.agent == "billing"
    assert results(result.transcript)[-1] == "Ticket(order=2, urgent=False)"


async def test_the_function_can_end_the_run(models: CheckedModels, store: CheckedStore) -> None:
    """As any tool can."""
    crew = crew_of(models, [call("transfer_to_billing")], on_handoff=Calls(StopRun("Closed.")))
    result = await CrewExecutor(crew, store=store).execute("Go.")
    assert (result.stop_reason, result.stop_text, result.agent) == ("stopped", "Closed.", "triage")


async def test_only_the_handoff_that_happens_calls_its_function(models: CheckedModels, store: CheckedStore) -> None:
    """A second handoff of the reply is refused, and one beyond the limit ends the run: neither calls a function."""
    calls = Calls()
    both = [call("transfer_to_billing", order=1), call("transfer_to_billing", order=2)]
    crew = crew_of(models, [both], payload=Ticket, on_handoff=calls)
    await CrewExecutor(crew, store=store).execute("Go.")
    assert [payload.order for _, _, payload in calls.made] == [1]
    limited = crew_of(models, [call("transfer_to_billing", order=3)], payload=Ticket, on_handoff=calls)
    result = await CrewExecutor(limited, limits=Limits(handoffs=0), store=CheckedStore()).execute("Go.")
    assert (result.stop_reason, len(calls.made)) == ("limit", 1)


async def test_a_function_without_a_payload_gets_none(models: CheckedModels, store: CheckedStore) -> None:
    """`payload=` is optional."""
    calls = Calls()
    result = await CrewExecutor(crew_of(models, [call("transfer_to_billing")], on_handoff=calls), store=store).execute(
        "Go."
    )
    assert [payload for _, _, payload in calls.made] == [None]
    assert results(result.transcript)[-1] == "None"


async def test_the_payload_of_the_last_handoff_counts(models: CheckedModels, store: CheckedStore) -> None:
    """Another handoff replaces it, also in the next turn; one without a payload removes it."""
    receiver = Agent(
        "billing",
        model=models.scripted(call("read_payload"), call("transfer_to_triage"), call("read_payload"), "Paid."),
        tools=[read_payload],
        handoffs=["triage"],
    )
    script = [call("transfer_to_billing", order=1), call("transfer_to_billing", order=2)]
    sender = Agent("triage", model=models.scripted(*script), handoffs=[handoff(receiver, payload=Ticket)])
    executor = CrewExecutor(Crew("c", agents=[sender, receiver]), store=store)
    result = await executor.execute("Go.", run_id="r")
    read = [text for text in results(result.transcript) if text.startswith("Ticket")]
    assert read == ["Ticket(order=1, urgent=False)", "Ticket(order=2, urgent=False)"]


async def test_each_branch_of_a_group_reads_the_payload(models: CheckedModels, store: CheckedStore) -> None:
    """The group received it; an agent that is called as a tool did not."""
    inner = Agent("inner", model=models.scripted(call("read_payload"), "Inner."), tools=[read_payload])
    one = Agent("one", model=models.scripted(call("read_payload"), "One."), tools=[read_payload])
    two = Agent("two", model=models.scripted(call("ask_inner", request="x"), "Two."), tools=[inner.as_tool()])
    group = Parallel("g", branches=[one, two])
    script = models.scripted(call("transfer_to_g", order=5))
    lead = Agent("lead", model=script, handoffs=[handoff(group, payload=Ticket)])
    crew = Crew("c", agents=[lead, one, two, inner], groups=[group])
    result = await CrewExecutor(crew, store=store).execute("Go.", run_id="r")
    by_agent = {branch.agent: branch for branch in result.branches}
    assert results(by_agent["one"].transcript) == ["Ticket(order=5, urgent=False)"]
    assert results(by_agent["two"].branches[0].transcript) == ["None"]


async def test_instructions_can_use_the_payload(models: CheckedModels, store: CheckedStore) -> None:
    """A function that writes the instructions of the receiver reads it too."""
    receiver = Agent(
        "billing",
        instructions=lambda context: f"Help with order {context.payload.order}.",
        description="Bills.",
        model=models.scripted("Paid."),
    )
    script = models.scripted(call("transfer_to_billing", order=7))
    sender = Agent("triage", model=script, handoffs=[handoff(receiver, payload=Ticket)])
    await CrewExecutor(Crew("c", agents=[sender, receiver]), store=store).execute("Go.")
    assert models.requests_of("billing")[0].instructions == "Help with order 7."


async def test_the_payload_survives_a_resume_and_a_crash_in_the_function(tmp_path: Path) -> None:
    """A call of the function in doubt pauses the run; the answer decides whether control passes."""
    calls = Calls(KeyboardInterrupt())

    @tool(approval=True)
    def pay(context: Context[Any]) -> str:
        """Pay."""
        return f"paid {context.payload.order}"

    def executor() -> CrewExecutor:
        receiver = Agent("billing", model=ScriptedProvider(call("pay"), "Paid."), tools=[pay])
        script = ScriptedProvider(call("transfer_to_billing", order=9))
        sender = Agent("triage", model=script, handoffs=[handoff(receiver, payload=Ticket, on_handoff=calls)])
        return CrewExecutor(Crew("c", agents=[sender, receiver]), store=SQLiteStore(tmp_path / "r.db"))

    with pytest.raises(KeyboardInterrupt):
        await executor().execute("Go.", run_id="r")

    doubt = await executor().resume("r")
    assert [(pause.id, pause.reason) for pause in doubt.pauses] == [("r:1.0", "in_doubt")]
    held = await executor().resume("r", {"r:1.0": "run again"})
    assert (held.agent, held.pauses[0].reason, len(calls.made)) == ("billing", "approval", 2)
    result = await executor().resume("r", {held.pauses[0].id: True})
    assert results(result.transcript)[-1] == "paid 9"


async def test_control_stays_if_a_call_in_doubt_is_skipped(models: CheckedModels, store: CheckedStore) -> None:
    """It is not known whether the function took effect: the sender decides."""
    crew = crew_of(
        models,
        [call("transfer_to_billing", order=1), "I keep it."],
        payload=Ticket,
        on_handoff=Calls(KeyboardInterrupt()),
    )

    with pytest.raises(KeyboardInterrupt):
        await CrewExecutor(crew, store=store).execute("Go.", run_id="r")

    executor = CrewExecutor(crew, store=store)
    doubt = await executor.resume("r")
    result = await executor.resume("r", {doubt.pauses[0].id: "skip"})
    assert (result.output, result.agent) == ("I keep it.", "triage")
    assert [one.call.name for one in result.in_doubt] == ["transfer_to_billing"]


async def test_a_payload_that_no_longer_matches_its_class_is_explained(tmp_path: Path) -> None:
    """The class changed while the run waited: reading the payload is an error, and other tools still work."""

    @tool(approval=True, effect="read")
    def read(context: Context[Any]) -> str:
        """Read."""
        return repr(context.payload)

    class Other(BaseModel):
        """Has another field."""

        customer: str

    def executor(kind: type[BaseModel]) -> CrewExecutor:
        receiver = Agent("billing", model=ScriptedProvider(call("read"), "Ok."), tools=[read])
        script = ScriptedProvider(call("transfer_to_billing", order=9))
        sender = Agent("triage", model=script, handoffs=[handoff(receiver, payload=kind)])
        return CrewExecutor(Crew("c", agents=[sender, receiver]), store=SQLiteStore(tmp_path / "r.db"))

    paused = await executor(Ticket).execute("Go.", run_id="r")
    result = await executor(Other).resume("r", {paused.pauses[0].id: True})
    assert (
        "The payload that triage passed to billing does not match Other: customer: Field"
        in results(result.transcript)[-1]
    )


@pytest.mark.parametrize("bad", ["save", Ticket, 5])
def test_on_handoff_must_be_a_function(bad: Any) -> None:
    """A class or a name is refused when the handoff is built."""
    with pytest.raises(DefinitionError, match="on_handoff must be a function of context and payload"):
        handoff("billing", on_handoff=bad)


def test_on_handoff_must_accept_context_and_payload() -> None:
    """Another number of arguments is refused when the handoff is built."""
    with pytest.raises(DefinitionError, match="on_handoff must accept two arguments, context and payload"):
        handoff("billing", on_handoff=lambda payload: None)  # type: ignore[arg-type, misc]
