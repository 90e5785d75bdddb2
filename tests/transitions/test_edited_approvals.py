"""`Approve(arguments=…)` and `Refuse`: a person edits a call before it runs, or refuses it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import Field

from crew import Agent, Approve, Crew, CrewExecutor, Parallel, Refuse, ScriptedProvider, call, tool
from crew.agents import GuardedCall, Guardrail, NeedsApproval, Refused, Rewritten
from crew.errors import InvalidInput
from crew.messages import AssistantMessage, ToolMessage
from crew.runs.events import CallEdited, Resumed, ToolsStarted
from crew.store import SQLiteStore
from tests.support.providers import CheckedModels
from tests.support.runs import collect, events_of_type
from tests.support.stores import CheckedStore

NOTE = "[A person changed the arguments of this call before it ran: amount: 80 → 20.]\n"


class Payments:
    """A tool that pays after an approval, and what it paid."""

    def __init__(self) -> None:
        self.paid: list[tuple[int, str]] = []

        @tool(approval=lambda amount, to="shop": amount > 10)
        async def pay(amount: Annotated[int, Field(le=100)], to: str = "shop") -> str:
            """Pay."""
            self.paid.append((amount, to))
            return f"paid {amount}"

        self.tool = pay


def clerk(payments: Payments, model: Any) -> Agent:
    return Agent("clerk", model=model, tools=[payments.tool])


async def paused_run(model: Any, store: Any) -> tuple[CrewExecutor, Payments, str]:
    payments = Payments()
    executor = CrewExecutor(clerk(payments, model), store=store)
    paused = await executor.execute("Pay.", run_id="r")
    return executor, payments, paused.pauses[0].id


@pytest.mark.parametrize(
    "answer",
    [Approve(arguments={"amount": 20}, by="ada"), {"approve": {"arguments": {"amount": 20}, "by": "ada"}}],
    ids=["object", "json"],
)
async def test_edited_arguments_replace_those_of_the_model(
    answer: object, models: CheckedModels, store: CheckedStore
) -> None:
    """The tool runs with them, the reply stays as it is, and the result and an event say what was changed."""
    executor, payments, pause = await paused_run(models.scripted(call("pay", amount=80), "Paid."), store)
    events, result = await collect(executor.resume_stream("r", {pause: answer}))
    assert (payments.paid, result.output) == ([(20, "shop")], "Paid.")
    reply, results = result.transcript[1], result.transcript[2]
    assert isinstance(reply, AssistantMessage)
    assert reply.calls[0].arguments == '{"amount": 80}'
    assert isinstance(results, ToolMessage)
    assert results.results[0].text == f"{NOTE}paid 20"
    (edited,) = events_of_type(events, CallEdited)
    assert (edited.key, edited.tool, edited.arguments, edited.by) == (pause, "pay", {"amount": 20}, "ada")
    assert edited.changes == "amount: 80 → 20"
    assert [started.calls[0].arguments for started in events_of_type(events, ToolsStarted)] == ['{"amount":20}']
    assert edited in store.events
    (resumed,) = events_of_type(store.events, Resumed)
    assert resumed.answers == {pause: {"approve": {"arguments": {"amount": 20}, "by": "ada"}}}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"amount": 200}, "amount: Input should be less than or equal to 100 (got 200)"),
        ({"amount": 20, "note": "x"}, "note: Extra inputs are not permitted"),
        ({}, "amount: Field required"),
        ([20], "must be an object with all arguments of pay"),
        ({"amount": object()}, "not a JSON value"),
    ],
)
async def test_arguments_that_the_tool_does_not_accept_are_refused(
    arguments: Any, text: str, models: CheckedModels, store: CheckedStore
) -> None:
    """The error says what is wrong, nothing is stored, and the pause can still be answered."""
    executor, payments, pause = await paused_run(models.scripted(call("pay", amount=80), "Paid."), store)
    commits = len(store.snapshots)

    with pytest.raises(InvalidInput) as caught:
        await executor.resume("r", {pause: Approve(arguments=arguments)})

    assert text in str(caught.value)
    assert (payments.paid, len(store.snapshots)) == ([], commits)
    assert (await executor.resume("r", {pause: True})).output == "Paid."
    assert payments.paid == [(80, "shop")]


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ({"approve": True}, "'approve' must be an object with the optional keys arguments and by, not True"),
        ({"approve": {"args": {}}}, "'approve' has the unknown key 'args'; accepted: arguments, by"),
        ({"refuse": {"reason": 5}}, "must be a string, not int (5)"),
        ({"approve": {}, "refuse": {}}, "must be True, False"),
        ({"done": "x"}, "must be True, False"),
    ],
)
async def test_answers_of_another_form_are_refused(
    answer: Any, text: str, models: CheckedModels, store: CheckedStore
) -> None:
    """An answer that is neither of the forms is not taken for a refusal."""
    executor, payments, pause = await paused_run(models.scripted(call("pay", amount=80), "Paid."), store)

    with pytest.raises(InvalidInput) as caught:
        await executor.resume("r", {pause: answer})

    assert text in str(caught.value)
    assert not payments.paid


@pytest.mark.parametrize("answer", [Approve(), Approve(arguments={"amount": 80}), {"approve": {}}])
async def test_approval_without_changes_is_a_plain_approval(
    answer: Any, models: CheckedModels, store: CheckedStore
) -> None:
    """The result has no note, and no event says that the call was edited."""
    executor, payments, pause = await paused_run(models.scripted(call("pay", amount=80), "Paid."), store)
    events, result = await collect(executor.resume_stream("r", {pause: answer}))
    assert payments.paid == [(80, "shop")]
    assert not events_of_type(events, CallEdited)
    assert isinstance(results := result.transcript[2], ToolMessage)
    assert results.results[0].text == "paid 80"


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (Refuse(), "Not done: a person declined this call."),
        (Refuse("yes"), "Not done: a person declined this call: yes"),
        ({"refuse": {"reason": "too much", "by": "ada"}}, "Not done: a person declined this call: too much"),
    ],
)
async def test_refuse_tells_the_model_the_reason(
    answer: Any, text: str, models: CheckedModels, store: CheckedStore
) -> None:
    """As an object it can't be mistaken for an approval, whatever its words."""
    executor, payments, pause = await paused_run(models.scripted(call("pay", amount=80), "Ok."), store)
    result = await executor.resume("r", {pause: answer})
    assert isinstance(results := result.transcript[2], ToolMessage)
    assert results.results[0].text == text
    assert not payments.paid


async def test_an_edit_survives_a_crash_during_the_call(tmp_path: Path) -> None:
    """The call in doubt shows the arguments with which it ran; repeated, it runs with them again."""
    paid: list[int] = []

    @tool(approval=True)
    async def pay(amount: int) -> str:
        """Pay."""
        paid.append(amount)

        if len(paid) == 1:
            raise KeyboardInterrupt  # the process ends during the call

        return f"paid {amount}"

    def executor() -> CrewExecutor:
        agent = Agent("clerk", model=ScriptedProvider(call("pay", amount=80), "Paid."), tools=[pay])
        return CrewExecutor(agent, store=SQLiteStore(tmp_path / "runs.db"))

    pause = (await executor().execute("Pay.", run_id="r")).pauses[0].id

    with pytest.raises(KeyboardInterrupt):
        await executor().resume("r", {pause: Approve(arguments={"amount": 20})})

    doubt = await executor().resume("r")
    assert (doubt.pauses[0].reason, doubt.pauses[0].arguments) == ("in_doubt", {"amount": 20})
    assert doubt.in_doubt[0].call.arguments == '{"amount":20}'
    result = await executor().resume("r", {pause: "run again"})
    assert paid == [20, 20]
    assert isinstance(results := result.transcript[2], ToolMessage)
    assert results.results[0].text == f"{NOTE}paid 20"


async def test_calls_of_branches_are_edited_by_their_pause(models: CheckedModels, store: CheckedStore) -> None:
    """Each pause has its own answer, also where two branches call the same tool."""
    payments = Payments()
    agents = [
        Agent(name, model=models.scripted(call("pay", amount=80, to=name), f"{name}."), tools=[payments.tool])
        for name in ("a", "b")
    ]
    executor = CrewExecutor(Crew("c", agents=agents, groups=[Parallel("g", branches=agents)], entry="g"), store=store)
    paused = await executor.execute("Pay.", run_id="r")
    first, second = (pause.id for pause in paused.pauses)
    answers = {first: Approve(arguments={"amount": 1, "to": "x"}), second: Approve(arguments={"amount": 2, "to": "y"})}
    await executor.resume("r", answers)
    assert sorted(payments.paid) == [(1, "x"), (2, "y")]


@pytest.mark.parametrize(
    ("answer", "stop"), [(Approve(by="ada"), "completed"), (Refuse("Not today."), "stopped"), (Refuse(), "stopped")]
)
async def test_approve_and_refuse_answer_a_guardrail_too(
    answer: Any, stop: str, models: CheckedModels, store: CheckedStore
) -> None:
    """It has no call: arguments are refused, and the reason is the words of the refusal."""

    async def check(context: Any, text: str) -> Any:
        return NeedsApproval("Send it?")

    guard = Guardrail(function=check, name="check", on="input")
    executor = CrewExecutor(Agent("a", model=models.scripted("Sent."), guardrails=[guard]), store=store)
    paused = await executor.execute("Go.", run_id="r")

    with pytest.raises(InvalidInput, match="no call whose arguments could be changed"):
        await executor.resume("r", {paused.pauses[0].id: Approve(arguments={})})

    result = await executor.resume("r", {paused.pauses[0].id: answer})
    assert result.stop_reason == stop
    assert ("Not today." in result.stop_text) is (answer == Refuse("Not today."))


def tool_guard(name: str, decide: Any, seen: list[tuple[str, int]]) -> Guardrail:
    """A guardrail of calls that decides by the amount, and notes what it checked."""

    async def check(context: Any, made: GuardedCall) -> Any:
        seen.append((name, made.arguments["amount"]))
        return decide(made.arguments["amount"])

    return Guardrail(function=check, name=name, on="tool")


async def result_of_edited_call(
    models: CheckedModels, store: CheckedStore, *guardrails: Guardrail
) -> tuple[Payments, str]:
    """Edit the amount of a call from 80 to 20, and approve what is asked after that."""
    payments = Payments()
    model = models.scripted(call("pay", amount=80), "Done.")
    agent = Agent("clerk", model=model, tools=[payments.tool], guardrails=guardrails)
    executor = CrewExecutor(agent, store=store)
    paused = await executor.execute("Pay.", run_id="r")
    result = await executor.resume("r", {paused.pauses[0].id: Approve(arguments={"amount": 20})})

    if result.pauses:
        assert result.pauses[0].arguments == {"amount": 20}
        result = await executor.resume("r", {result.pauses[0].id: True})

    return payments, result.tool_results[0].text


@pytest.mark.parametrize(
    ("decide", "paid", "text"),
    [
        (lambda amount: Refused("too little") if amount < 50 else None, [], f"{NOTE}Not done: too little"),
        (
            lambda amount: Rewritten({"amount": 30}) if amount < 50 else None,
            [(30, "shop")],
            NOTE.replace("A person", "A person and the guardrail limit").replace("→ 20", "→ 30") + "paid 30",
        ),
        (lambda amount: NeedsApproval("So little?") if amount < 50 else None, [(20, "shop")], f"{NOTE}paid 20"),
        (lambda amount: None, [(20, "shop")], f"{NOTE}paid 20"),
    ],
    ids=["refused", "rewritten", "held", "passed"],
)
async def test_guardrails_check_edited_arguments_again(
    decide: Any, paid: list[Any], text: str, models: CheckedModels, store: CheckedStore
) -> None:
    """They passed those of the model, not those of the person; the tool's own approval is not asked for twice."""
    seen: list[tuple[str, int]] = []
    payments, result = await result_of_edited_call(models, store, tool_guard("limit", decide, seen))
    assert seen == [("limit", 80), ("limit", 20)]
    assert (payments.paid, result) == (paid, text)


async def test_the_guardrail_that_asked_does_not_check_the_edited_arguments(
    models: CheckedModels, store: CheckedStore
) -> None:
    """The person answered its question; guardrails before and after it check them."""
    seen: list[tuple[str, int]] = []
    guardrails = [
        tool_guard("before", lambda amount: None, seen),
        tool_guard("asks", lambda amount: NeedsApproval("Pay?"), seen),
        tool_guard("after", lambda amount: None, seen),
    ]
    payments, _ = await result_of_edited_call(models, store, *guardrails)
    assert seen == [("before", 80), ("asks", 80), ("before", 20), ("after", 20)]
    assert payments.paid == [(20, "shop")]


async def test_unchanged_arguments_are_not_checked_again(models: CheckedModels, store: CheckedStore) -> None:
    """Approving what the guardrails passed needs no further check."""
    seen: list[tuple[str, int]] = []
    agent = Agent(
        "clerk",
        model=models.scripted(call("pay", amount=80), "Done."),
        tools=[Payments().tool],
        guardrails=[tool_guard("limit", lambda amount: None, seen)],
    )
    executor = CrewExecutor(agent, store=store)
    paused = await executor.execute("Pay.", run_id="r")
    await executor.resume("r", {paused.pauses[0].id: Approve(arguments={"amount": 80})})
    assert seen == [("limit", 80)]
