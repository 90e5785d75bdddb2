"""Crews as tools of an MCP server, called by the client of the official SDK."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from importlib.metadata import version
from typing import Any

import pytest
from mcp import Client, MCPError
from mcp.types import ElicitResult
from pydantic import BaseModel

from crew import Agent, Context, CrewExecutor, ScriptedProvider, tool
from crew import call as tool_call
from crew.agents import NeedsApproval, guardrail
from crew.mcp_server import CrewTools, crew_tools
from crew.mcp_server.pause_forms import NO_ANSWER, form_answer, form_schema
from crew.runs import Pause
from crew.store import SQLiteStore
from crew.store.memory import MemoryStore
from tests.support.mcp_clients import cancel_when_it_waits
from tests.support.mcp_crew import make_crew

ERAS = pytest.mark.parametrize("mode", ["auto", "legacy"])
"""The protocol of 2026, in which a server returns questions, and the older ones, in which it sends them."""


def person(**form: Any) -> Callable[..., Any]:
    """An elicitation callback of a client whose user fills in each form like this; `action` may be given."""

    async def answer(context: object, params: Any) -> ElicitResult:
        questions.append(params.message)
        return ElicitResult(
            action=form.get("action", "accept"), content={k: v for k, v in form.items() if k != "action"}
        )

    questions: list[str] = []
    answer.questions = questions  # type: ignore[attr-defined]
    return answer


@asynccontextmanager
async def connected(
    store: Any = None, mode: str = "auto", user: Any = None, **options: Any
) -> AsyncIterator[tuple[Client, CrewExecutor]]:
    """A client of a server with one crew, in this process."""
    async with CrewExecutor(make_crew(), store=store or MemoryStore()) as executor:
        tools = CrewTools({"support": executor}, **options)

        async with Client(tools.server(), mode=mode, elicitation_callback=user) as client:
            yield client, executor


async def call(client: Client, text: str, **options: Any) -> tuple[bool, str]:
    """Call the crew: whether the result is an error, and its text."""
    result = await client.call_tool("support", {"input": text}, **options)
    return result.is_error, result.content[0].text  # type: ignore[union-attr]


@ERAS
async def test_each_crew_is_a_tool_and_its_events_are_progress(mode: str) -> None:
    """The client lists the crew, calls it, and sees the events of the run as numbered texts."""
    seen: list[tuple[float, str | None]] = []

    async def progress(number: float, total: float | None, text: str | None) -> None:
        seen.append((number, text))

    async with connected(mode=mode) as (client, _):
        [tool] = (await client.list_tools()).tools
        assert (tool.name, tool.description) == ("support", "Run the crew support. Helps customers.")
        assert tool.input_schema["required"] == ["input"]
        assert await call(client, "Hello", progress_callback=progress) == (False, "You said: Hello")

    assert [number for number, _ in seen] == sorted({number for number, _ in seen})
    assert any("clerk asks" in (text or "") for _, text in seen), seen


@ERAS
async def test_the_user_of_the_client_approves_a_call(mode: str) -> None:
    """A pause is a form; the filled-in form resumes the run, in the same call."""
    user, numbers = person(approve=True), list[float]()

    async def progress(number: float, total: float | None, text: str | None) -> None:
        numbers.append(number)

    async with connected(mode=mode, user=user) as (client, _):
        assert await call(client, "refund", progress_callback=progress) == (False, "Result: refunded 3")

    assert numbers == sorted(set(numbers)), "the progress grows, also after the pause"
    assert user.questions == ["May clerk call refund?\n  order: 3"]


@ERAS
async def test_the_form_shows_the_text_that_a_guardrail_asks_about(mode: str) -> None:
    """The user approves a reply, and sees it before."""

    @guardrail("output")
    def ask(context: Any, text: str) -> NeedsApproval:
        return NeedsApproval("Publish it?")

    user, agent = person(approve=True), Agent("support", model=ScriptedProvider("The draft."), guardrails=[ask])

    async with CrewExecutor(agent) as executor:
        tools = CrewTools({"support": executor})

        async with Client(tools.server(), mode=mode, elicitation_callback=user) as client:
            assert await call(client, "Write.") == (False, "The draft.")

    assert user.questions == ["Publish it?\n\nThe draft."]


@ERAS
@pytest.mark.parametrize(
    ("form", "text"),
    [
        ({"approve": False, "reason": "too late"}, "too late"),
        ({"approve": False}, "declined"),
        ({"action": "decline"}, "declined"),
    ],
)
async def test_the_user_refuses_a_call(mode: str, form: dict[str, Any], text: str) -> None:
    """The model is told, with the reason, and the run goes on."""
    async with connected(mode=mode, user=person(**form)) as (client, _):
        failed, answer = await call(client, "refund")

    assert not failed
    assert text in answer


@ERAS
async def test_a_client_that_cannot_ask_gets_a_clear_refusal(mode: str) -> None:
    """Without elicitation the question is in the error; a run that is not stored is cancelled."""
    async with connected(mode=mode) as (client, executor):
        failed, text = await call(client, "refund")
        [run] = (await executor.store.runs()).runs  # type: ignore[attr-defined]

    assert failed
    assert "May clerk call refund?" in text
    assert "no elicitation" in text
    assert "was cancelled" in text
    assert run.status == "cancelled"


async def test_a_question_that_the_client_cannot_ask_is_reported_with_its_choices() -> None:
    """The person who answers elsewhere has to know them."""

    @tool(asks=True)
    async def choose(context: Context[None]) -> str:
        """Ask for a size."""
        return await context.ask_user("Which size?", choices=["small", "large"])

    model = ScriptedProvider(tool_call("choose"), "Done.")

    async with (
        CrewExecutor(Agent("clerk", model=model, tools=[choose])) as executor,
        Client(CrewTools({"support": executor}).server()) as client,
    ):
        failed, text = await call(client, "Hi")

    assert failed
    assert "- Which size? (one of 'small', 'large')\n" in text


async def test_a_stored_run_stays_paused_and_can_be_resumed(tmp_path: Any) -> None:
    """With a store outside the process the run waits, and the error tells how to answer it."""
    with closing(SQLiteStore(tmp_path / "runs.db")) as store:
        async with connected(store, keeps_runs=True, user=person(action="cancel")) as (client, executor):
            failed, text = await call(client, "refund")
            [run] = (await store.runs()).runs
            assert (failed, run.status) == (True, "paused")
            assert f"executor.resume('{run.run_id}', answers)" in text
            pause = (await executor.store.load(run.run_id)).state.next.calls[0]  # type: ignore[union-attr]
            assert (await executor.resume(run.run_id, {pause.key: True})).output == "Result: refunded 3"


async def test_a_conversation_goes_on_over_calls(tmp_path: Any) -> None:
    """Where runs are stored, a call can name the conversation that it continues."""
    with closing(SQLiteStore(tmp_path / "runs.db")) as store:
        async with connected(store, keeps_runs=True) as (client, executor):
            for text in ("One", "Two"):
                await client.call_tool("support", {"input": text, "conversation": "c1"})

            assert [m.text for m in await executor.transcript("c1") if m.role == "user"] == ["One", "Two"]  # type: ignore[union-attr]


@ERAS
async def test_a_client_that_cancels_cancels_the_run(mode: str) -> None:
    """The run is finished as cancelled, and the server answers the next call."""
    async with connected(mode=mode) as (client, executor):
        await cancel_when_it_waits(client)

        for _ in range(1_000):
            [run] = (await executor.store.runs()).runs  # type: ignore[attr-defined]

            if run.status != "running":
                break

            await asyncio.sleep(0.02)

        assert run.status == "cancelled"
        assert await call(client, "Hello") == (False, "You said: Hello")


async def run_statuses(executor: CrewExecutor) -> list[str]:
    return sorted(run.status for run in (await executor.store.runs()).runs)  # type: ignore[attr-defined]


@pytest.mark.parametrize("keeps_runs", [False, True])
async def test_a_call_that_is_cancelled_while_its_form_is_open(keeps_runs: bool) -> None:
    """Nobody can answer the run any more: it is cancelled, unless it is stored and can be resumed."""
    asked, withdrawn = asyncio.Event(), asyncio.Event()

    async def user(context: object, params: Any) -> Any:
        asked.set()

        try:
            await asyncio.Event().wait()
        finally:
            withdrawn.set()

    async with connected(mode="legacy", user=user, keeps_runs=keeps_runs) as (client, executor):
        calling = asyncio.create_task(call(client, "refund"))
        await asked.wait()
        calling.cancel()
        await asyncio.wait([calling])
        await withdrawn.wait()
        assert await call(client, "Hello") == (False, "You said: Hello")

        async with asyncio.timeout(30):
            while not keeps_runs and "paused" in await run_statuses(executor):
                await asyncio.sleep(0.02)

        assert await run_statuses(executor) == (["completed", "paused"] if keeps_runs else ["cancelled", "completed"])


@pytest.mark.parametrize("keeps_runs", [False, True])
async def test_a_client_that_fails_to_ask_gets_a_clear_refusal(keeps_runs: bool) -> None:
    """A stored run stays paused, and the error tells how to answer it; others are cancelled."""

    async def user(context: object, params: Any) -> ElicitResult:
        raise MCPError(0, "no window is open")

    async with connected(mode="legacy", user=user, keeps_runs=keeps_runs) as (client, executor):
        failed, text = await call(client, "refund")
        assert await run_statuses(executor) == ["paused" if keeps_runs else "cancelled"]

    assert failed
    assert "no window is open" in text
    assert ("answer it with: executor.resume(" if keeps_runs else "was cancelled") in text


@pytest.mark.parametrize("keeps_runs", [False, True])
async def test_runs_whose_clients_never_answer_are_cancelled_in_the_end(
    keeps_runs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest one is dropped when too many wait; a stored run stays paused."""
    monkeypatch.setattr(crew_tools, "MAX_WAITING", 1)

    async with connected(user=person(), keeps_runs=keeps_runs) as (client, executor):
        states = []

        for _ in range(2):
            paused: Any = await client.session.call_tool("support", {"input": "refund"}, allow_input_required=True)
            states.append(paused.request_state)

        dropped = await client.session.call_tool("support", {"input": "refund"}, request_state=states[0])
        assert "not valid" in dropped.content[0].text  # type: ignore[union-attr]
        assert await run_statuses(executor) == (["paused", "paused"] if keeps_runs else ["cancelled", "paused"])


async def test_calls_that_the_server_cannot_serve_are_errors() -> None:
    """Unknown crews are an error of the protocol; wrong arguments and failed runs are error results."""
    async with connected() as (client, _):
        with pytest.raises(MCPError, match="Available: support"):
            await client.call_tool("nobody", {"input": "Hi"})

        for arguments, text in [
            ({}, "input is required"),
            ({"input": 3}, "input must be a text"),
            ({"input": "Hi", "conversation": "c"}, "Unknown argument 'conversation'. Accepted: input"),
            ({"input": ""}, "blank"),
        ]:
            result = await client.call_tool("support", arguments)
            assert result.is_error
            assert text in result.content[0].text  # type: ignore[union-attr]

        stale = await client.session.call_tool("support", {"input": "Hi"}, request_state="guessed")
        assert stale.is_error
        assert "not valid" in stale.content[0].text  # type: ignore[union-attr]


async def test_a_failed_run_and_a_limit_are_error_results() -> None:
    """The text says what happened."""

    def broken(request: object) -> str:
        raise ValueError("no more lines")

    executors = {"broken": CrewExecutor(Agent("broken", model=ScriptedProvider(broken)))}

    async with Client(CrewTools(executors).server()) as client:
        result = await client.call_tool("broken", {"input": "Hi"})

    assert result.is_error
    assert "no more lines" in result.content[0].text  # type: ignore[union-attr]


APPROVAL: dict[str, Any] = {"approve": True}


@pytest.mark.parametrize(
    ("reason", "form", "answer"),
    [
        ("approval", APPROVAL, True),
        ("approval", {"approve": False, "reason": "too late"}, "too late"),
        ("consent", APPROVAL, True),
        ("consent", {"approve": False, "reason": "never"}, False),
        ("in_doubt", {"decision": "skip"}, "skip"),
        ("in_doubt", {"decision": "done", "result": "paid"}, {"done": "paid"}),
        ("input", {"answer": "tomorrow"}, "tomorrow"),
        ("question", {"answer": "blue"}, "blue"),
        ("question", {"answer": ""}, NO_ANSWER),
        ("in_doubt", {"result": "paid"}, NO_ANSWER),
    ],
)
def test_every_pause_is_a_form_and_every_form_an_answer(reason: Any, form: dict[str, Any], answer: object) -> None:
    """The fields of the form are those that its answer is made of."""
    pause = Pause(id="p", reason=reason, run_id="r", agent="a", text="?", choices=("blue", "red"))
    schema = form_schema(pause)
    assert set(form) <= set(schema["properties"])
    assert form_answer(pause, ElicitResult(action="accept", content=form)) == answer

    if reason == "question":
        assert schema["properties"]["answer"]["enum"] == ["blue", "red"]


async def test_structured_output_is_structured_content() -> None:
    """The value of the output type is passed on, and also as JSON text; an invalid answer is an error."""

    class Price(BaseModel):
        euros: int

    for text, failed in (('{"euros": 3}', False), ("expensive", True)):
        agent = Agent("pricer", model=ScriptedProvider(*[text] * 9), output=Price)

        async with Client(CrewTools({"pricer": CrewExecutor(agent)}).server()) as client:
            result = await client.call_tool("pricer", {"input": "Hi"})

        assert (result.is_error, result.structured_content) == (failed, None if failed else {"euros": 3})


async def test_the_server_names_its_version() -> None:
    """Clients show it, and write it to their logs."""
    async with connected() as (client, _):
        info = client.server_info
        assert (info.name, info.version) == ("crew", version("crew-executor"))
