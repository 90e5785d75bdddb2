"""`@tool(asks=True)`: a running tool asks a person, is unwound, and runs again with the recorded answers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from crew import Agent, Context, Crew, CrewExecutor, Limits, Parallel, ScriptedProvider, call, tool
from crew.errors import DefinitionError, InvalidInput, UnknownPause
from crew.messages import ToolMessage
from crew.runs.events import QuestionAsked
from crew.store import SQLiteStore
from tests.support.clocks import run_in_virtual_time
from tests.support.providers import CheckedModels
from tests.support.runs import collect, events_of_type
from tests.support.stores import CheckedStore

ACCOUNTS = ["checking", "savings"]


class Transfers:
    """A tool that asks twice, in a sync and an async form; `log` has each start and each effect."""

    def __init__(self, *, sync: bool = False, **options: Any) -> None:
        self.log: list[Any] = []

        def transfer_sync(amount: int, context: Context[Any]) -> str:
            """Transfer."""
            self.log.append(("started", context.idempotency_key))
            account = context.ask_user("Which account?", choices=ACCOUNTS)
            note = context.ask_user(f"A note for {account}?")
            self.log.append((amount, account, note))
            return f"{amount} from {account}: {note}"

        async def transfer(amount: int, context: Context[Any]) -> str:
            """Transfer."""
            self.log.append(("started", context.idempotency_key))
            account = await context.ask_user("Which account?", choices=ACCOUNTS)
            note = await context.ask_user(f"A note for {account}?")
            self.log.append((amount, account, note))
            return f"{amount} from {account}: {note}"

        self.tool = tool(name="transfer", asks=True, **options)(transfer_sync if sync else transfer)


def result_text(result: Any) -> str:
    return next(m.results[0].text for m in reversed(result.transcript) if isinstance(m, ToolMessage))


@pytest.mark.parametrize("sync", [True, False])
async def test_a_tool_asks_and_runs_again_with_the_answers(
    sync: bool, models: CheckedModels, store: CheckedStore
) -> None:
    """Each question is a pause; the function starts again for each answer, with the same idempotency key."""
    transfers = Transfers(sync=sync)
    agent = Agent("clerk", model=models.scripted(call("transfer", amount=5), "Done."), tools=[transfers.tool])
    executor = CrewExecutor(agent, store=store)
    events, first = await collect(executor.execute_stream("Go.", run_id="r"))
    (pause,) = first.pauses
    assert (pause.id, pause.reason, pause.text, pause.choices) == (
        "r:1.0.ask1",
        "question",
        "Which account?",
        ("checking", "savings"),
    )
    assert pause.call is not None
    assert pause.call.name == "transfer"
    (asked,) = events_of_type(events, QuestionAsked)
    assert (asked.tool, asked.question.text, asked.key) == ("transfer", "Which account?", "r:1.0")
    second = await executor.resume("r", {pause.id: "savings"})
    assert (second.pauses[0].id, second.pauses[0].text) == ("r:1.0.ask2", "A note for savings?")
    result = await executor.resume("r", {"r:1.0.ask2": "for rent"})
    assert (result.output, result_text(result)) == ("Done.", "5 from savings: for rent")
    assert transfers.log == [("started", "r:1.0")] * 3 + [(5, "savings", "for rent")]
    assert result.metrics.by_tool["transfer"].calls == 1


async def test_an_answer_counts_once(models: CheckedModels, store: CheckedStore) -> None:
    """The answer to one question, sent twice, does not answer the next one."""
    transfers = Transfers()
    agent = Agent("clerk", model=models.scripted(call("transfer", amount=5), "Done."), tools=[transfers.tool])
    executor = CrewExecutor(agent, store=store)
    paused = await executor.execute("Go.", run_id="r")
    await executor.resume("r", {paused.pauses[0].id: "savings"})

    with pytest.raises(UnknownPause) as caught:
        await executor.resume("r", {paused.pauses[0].id: "savings"})

    assert caught.value.pending == ("r:1.0.ask2",)


@pytest.mark.parametrize("answer", ["giro", "", 5, True])
async def test_an_answer_must_be_one_of_the_choices(answer: Any, models: CheckedModels, store: CheckedStore) -> None:
    """Nothing is stored, and the question can still be answered."""
    agent = Agent("clerk", model=models.scripted(call("transfer", amount=5), "Done."), tools=[Transfers().tool])
    executor = CrewExecutor(agent, store=store)
    paused = await executor.execute("Go.", run_id="r")
    commits = len(store.snapshots)

    with pytest.raises(InvalidInput):
        await executor.resume("r", {paused.pauses[0].id: answer})

    assert len(store.snapshots) == commits
    assert (await executor.resume("r", {paused.pauses[0].id: "savings"})).stop_reason == "paused"


async def test_parallel_calls_ask_at_the_same_time(models: CheckedModels, store: CheckedStore) -> None:
    """Both pauses are pending; an answer to one lets that call go on, and the other one waits."""
    transfers = Transfers()
    calls = [call("transfer", amount=1), call("transfer", amount=2)]
    agent = Agent("clerk", model=models.scripted(calls, "Done."), tools=[transfers.tool])
    executor = CrewExecutor(agent, store=store)
    paused = await executor.execute("Go.", run_id="r")
    assert [pause.id for pause in paused.pauses] == ["r:1.0.ask1", "r:1.1.ask1"]
    paused = await executor.resume("r", {"r:1.1.ask1": "savings"})
    assert [pause.id for pause in paused.pauses] == ["r:1.0.ask1", "r:1.1.ask2"]
    paused = await executor.resume("r", {"r:1.0.ask1": "checking", "r:1.1.ask2": "b"})
    result = await executor.resume("r", {"r:1.0.ask2": "a"})
    assert result.output == "Done."
    assert [entry for entry in transfers.log if entry[0] != "started"] == [(2, "savings", "b"), (1, "checking", "a")]


async def test_branches_and_called_agents_ask(models: CheckedModels, store: CheckedStore) -> None:
    """The pause has the path of the run that asks."""
    transfers = Transfers()
    clerk = Agent("clerk", model=models.scripted(call("transfer", amount=1), "Clerk."), tools=[transfers.tool])
    boss = Agent("boss", model=models.scripted(call("ask_clerk", request="Go."), "Boss."), tools=[clerk.as_tool()])
    other = Agent("other", model=models.scripted(call("transfer", amount=2), "Other."), tools=[transfers.tool])
    group = Parallel("g", branches=[boss, other])
    executor = CrewExecutor(Crew("c", agents=[boss, clerk, other], groups=[group], entry="g"), store=store)
    result = await executor.execute("Go.", run_id="r")
    assert [pause.id for pause in result.pauses] == ["r/boss/2.0:1.0.ask1", "r/other:2.0.ask1"]

    while result.stop_reason == "paused":
        result = await executor.resume("r", {pause.id: "savings" for pause in result.pauses})

    assert result.output == "[Results of g]\n## boss\nBoss.\n\n## other\nOther."
    assert sorted(entry for entry in transfers.log if entry[0] != "started") == [
        (1, "savings", "savings"),
        (2, "savings", "savings"),
    ]


def test_time_does_not_run_while_a_question_waits(models: CheckedModels, store: CheckedStore) -> None:
    """Neither the time-out of the tool, nor that of the group, nor the limit of the run counts the wait."""

    @tool(asks=True, timeout=5)
    async def slow(context: Context[Any]) -> str:
        """Ask."""
        await asyncio.sleep(4)
        return await context.ask_user("Go on?")

    agent = Agent("a", model=models.scripted(call("slow"), "Done."), tools=[slow])
    group = Parallel("g", branches=[agent], timeout=9)
    crew = Crew("c", agents=[agent], groups=[group], entry="g")
    executor = CrewExecutor(crew, store=store, limits=Limits(seconds=9))

    async def story() -> Any:
        paused = await executor.execute("Go.", run_id="r")
        await asyncio.sleep(1_000)
        return await executor.resume("r", {paused.pauses[0].id: "yes"})

    result = run_in_virtual_time(story())
    assert result.output == "[Results of g]\n## a\nDone."


async def test_a_changed_question_is_an_error(models: CheckedModels, store: CheckedStore) -> None:
    """The answer to another question must not be used: the model gets an error that names both questions."""
    asked = iter(["First?", "Second?"])

    @tool(asks=True, effect="read")
    async def ask(context: Context[Any]) -> str:
        """Ask."""
        try:
            return await context.ask_user(next(asked))
        except Exception:
            return "swallowed"  # the error counts all the same

    executor = CrewExecutor(Agent("a", model=models.scripted(call("ask"), "Ok."), tools=[ask]), store=store)
    paused = await executor.execute("Go.", run_id="r")
    result = await executor.resume("r", {paused.pauses[0].id: "yes"})
    text = result_text(result)
    assert "ask asked 'First?' as question 1 before, and 'Second?' now" in text
    assert "the same questions in the same order" in text


async def test_a_tool_cannot_swallow_its_question(models: CheckedModels, store: CheckedStore) -> None:
    """What a tool catches, returns in `finally` or wraps in a group does not end the call."""

    @tool(asks=True)
    async def ask(how: str, context: Context[Any]) -> str:
        """Ask."""
        if how == "catch":
            try:
                return await context.ask_user("Which?")
            except BaseException:
                return "caught"

        async with asyncio.TaskGroup() as group:
            one = group.create_task(answer(context))

        return one.result()

    async def answer(context: Context[Any]) -> str:
        return await context.ask_user("Which?")

    agent = Agent("a", model=models.scripted([call("ask", how="catch"), call("ask", how="group")], "Ok."), tools=[ask])
    executor = CrewExecutor(agent, store=store)
    paused = await executor.execute("Go.", run_id="r")
    assert [pause.text for pause in paused.pauses] == ["Which?", "Which?"]
    result = await executor.resume("r", {pause.id: "this" for pause in paused.pauses})
    assert [r.text for m in result.transcript if isinstance(m, ToolMessage) for r in m.results] == ["this", "this"]


async def test_approval_comes_before_the_question_and_is_not_repeated(
    models: CheckedModels, store: CheckedStore
) -> None:
    """The call was approved with these arguments; an answer does not change them."""
    transfers = Transfers(approval=True)
    agent = Agent("clerk", model=models.scripted(call("transfer", amount=5), "Done."), tools=[transfers.tool])
    executor = CrewExecutor(agent, store=store)
    paused = await executor.execute("Go.", run_id="r")
    reasons = []

    while paused.stop_reason == "paused":
        (pause,) = paused.pauses
        reasons.append(pause.reason)
        paused = await executor.resume("r", {pause.id: True if pause.reason == "approval" else "savings"})

    assert reasons == ["approval", "question", "question"]


async def test_cancel_ends_a_question(models: CheckedModels, store: CheckedStore) -> None:
    """The call was unwound: it is not in doubt."""
    agent = Agent("clerk", model=models.scripted(call("transfer", amount=5), "Done."), tools=[Transfers().tool])
    executor = CrewExecutor(agent, store=store)
    await executor.execute("Go.", run_id="r")
    await executor.cancel("r")
    state = store.newest
    assert (state.next.kind, state.in_doubt) == ("finished", ())


async def test_secrets_in_a_question_are_removed_and_the_replay_matches(tmp_path: Path) -> None:
    """The recorded question has no secret, and is compared without it."""

    @tool(asks=True)
    async def ask(context: Context[Any]) -> str:
        """Ask."""
        return await context.ask_user("Is hunter2-hunter2 your password?")

    def executor() -> CrewExecutor:
        agent = Agent("a", model=ScriptedProvider(call("ask"), "Ok."), tools=[ask])
        return CrewExecutor(agent, store=SQLiteStore(tmp_path / "r.db"), secrets=["hunter2-hunter2"])

    paused = await executor().execute("Go.", run_id="r")
    assert "hunter2" not in paused.pauses[0].text
    assert (await executor().resume("r", {paused.pauses[0].id: "no"})).output == "Ok."


def test_a_tool_that_asks_needs_the_context() -> None:
    """Without it there is nothing to ask with."""
    with pytest.raises(DefinitionError, match="asks=True needs a parameter that is annotated with Context"):
        tool(asks=True)(lambda: "x")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("",), "must be a text of 1 to 10,000 characters"),
        (("Which?", "ab"), "choices must be a list of texts"),
        (("Which?", ["a", "a"]), "choices must differ from each other"),
        (("Which?", ["a", ""]), "choices must be texts that are not blank"),
    ],
)
async def test_invalid_questions_are_an_error_of_the_tool(arguments: Any, text: str, models: CheckedModels) -> None:
    """The run goes on: the model gets the error."""

    @tool(asks=True)
    async def ask(context: Context[Any]) -> str:
        """Ask."""
        return await context.ask_user(*arguments)

    result = await CrewExecutor(Agent("a", model=models.scripted(call("ask"), "Ok."), tools=[ask])).execute("Go.")
    assert text in result_text(result)


async def test_ask_user_without_asks_is_explained(models: CheckedModels) -> None:
    """A tool that may be run again must say so."""

    @tool
    async def ask(context: Context[Any]) -> str:
        """Ask."""
        return await context.ask_user("Which?")

    result = await CrewExecutor(Agent("a", model=models.scripted(call("ask"), "Ok."), tools=[ask])).execute("Go.")
    assert "declared with @tool(asks=True)" in result_text(result)
