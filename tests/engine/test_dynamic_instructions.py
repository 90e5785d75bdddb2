"""Instructions that a function writes: once for each activation, recorded, counted, and reused by a resume."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from crew import Agent, Context, Crew, CrewExecutor, Parallel, Route, RunError, call, tool
from crew.errors import DefinitionError
from crew.interfaces import ModelReply, ModelRequest, OnDelta
from crew.runs.events import AgentPrepared, Asked
from crew.store import SQLiteStore
from tests.support.providers import RecordingProvider


class Texts:
    """Writes one text after the other, and keeps the contexts."""

    def __init__(self, *texts: Any) -> None:
        self.texts, self.contexts = list(texts), list[Context[Any]]()

    async def __call__(self, context: Context[Any]) -> str:
        self.contexts.append(context)
        text = self.texts.pop(0) if len(self.texts) > 1 else self.texts[0]

        if isinstance(text, Exception):
            raise text

        return text  # type: ignore[no-any-return]


@tool(effect="read")
def look(key: str) -> str:
    """Look something up."""
    return "found"


@tool(approval=True)
def pay(amount: int) -> str:
    """Pay."""
    return "paid"


def prepared(events: list[Any]) -> list[AgentPrepared]:
    return [event for event in events if isinstance(event, AgentPrepared)]


async def test_a_function_is_called_once_for_an_activation() -> None:
    """All requests of the activation hold its text; the event states it once, with its tokens."""
    model, texts, events = RecordingProvider(call("look", key="a"), "Done."), Texts("Serve Ada."), list[Any]()
    agent = Agent("clerk", instructions=texts, description="Serves.", model=model, tools=[look])
    executor = CrewExecutor(agent, observers=[events.append])
    result = await executor.execute("Hello", deps=7, metadata={"language": "en"}, run_id="r")
    assert result.output == "Done."
    assert [request.instructions for request in model.requests] == ["Serve Ada."] * 2
    [context] = texts.contexts
    assert (context.deps, context.agent, context.run_id, context.conversation_id) == (7, "clerk", "r", "r")
    assert context.metadata == {"language": "en"}
    [event] = prepared(events)
    assert [*event.texts.values()] == ["Serve Ada."]
    asked = next(event for event in events if isinstance(event, Asked))
    assert asked.manifest is not None
    assert asked.manifest.overhead_tokens == event.overheads[0] > 0


async def test_a_sync_function_may_write_the_text() -> None:
    model = RecordingProvider("Done.")
    agent = Agent("clerk", instructions=lambda context: f"You are {context.agent}.", description="x", model=model)
    await CrewExecutor(agent).execute("Hello")
    assert model.requests[0].instructions == "You are clerk."


async def test_an_agent_with_a_text_is_not_prepared() -> None:
    """It pays nothing: no event and no commit."""
    events = list[Any]()
    await CrewExecutor(
        Agent("a", instructions="Help.", model=RecordingProvider("Done.")), observers=[events.append]
    ).execute("Hello")
    kinds = [event.kind for event in events]
    assert kinds == ["run_started", "agent_started", "asked", "replied", "usage_changed", "run_finished"]


async def test_every_way_to_become_active_calls_the_function() -> None:
    """The start, a handoff, a route, `then`, a branch, and a call of the agent as a tool; each run has its own text."""
    activations = list[tuple[str, str]]()

    def write(context: Context[Any]) -> str:
        activations.append((context.agent, context.run_id))
        return f"{context.agent} in {context.run_id}"

    def agent(name: str, *lines: Any, **options: Any) -> Agent:
        models[name] = RecordingProvider(*lines)
        return Agent(name, instructions=write, description=name, model=models[name], **options)

    models: dict[str, RecordingProvider] = {}
    expert = agent("expert", "I know.")
    left, right, last = agent("left", "l"), agent("right", "r"), agent("last", "The end.")
    second = agent("second", "Go [ON]", routes=[Route("[ON]", to="third")])
    third = agent("third", "Next.", then="panel")
    first = agent(
        "first",
        call("ask_expert", request="?"),
        call("transfer_to_second"),
        tools=[expert.as_tool()],
        handoffs=[second],
    )
    group = Parallel("panel", branches=[left, right], then=last)
    crew = Crew("c", agents=[first, second, third, left, right, last], groups=[group])
    result = await CrewExecutor(crew).execute("Start", run_id="r")
    assert result.output == "The end."
    runs = {"first": "r", "expert": "r/1.0", "second": "r", "third": "r", "left": "r/left", "right": "r/right"}
    assert sorted(activations) == sorted({**runs, "last": "r"}.items())
    sent = {name: model.requests[0].instructions for name, model in models.items()}
    assert sent["expert"] == "expert in r/1.0"
    assert sent["left"] == "left in r/left"
    assert sent["last"] == "last in r"


async def test_a_resume_reuses_the_recorded_text(tmp_path: Path) -> None:
    """Another process does not call the function for an activation that was prepared."""
    store = SQLiteStore(tmp_path / "runs.db")
    first, again = Texts("Serve Ada."), Texts("Another text.")
    model = RecordingProvider(call("pay", amount=5), "Done.")

    def executor(texts: Texts) -> CrewExecutor:
        agent = Agent("clerk", instructions=texts, description="x", model=model, tools=[pay])
        return CrewExecutor(agent, store=store)

    paused = await executor(first).execute("Pay", run_id="r")
    done = await executor(again).resume("r", {paused.pauses[0].id: True})
    assert done.output == "Done."
    assert [request.instructions for request in model.requests] == ["Serve Ada."] * 2
    assert not again.contexts


@pytest.mark.parametrize("bad", [ValueError("no customer"), 7])
async def test_a_function_that_fails_ends_the_run_until_a_resume(bad: Any) -> None:
    """The error names the agent; a resume calls the function again, and nothing is lost."""
    texts, model = Texts(bad, "Serve."), RecordingProvider("Done.")
    executor = CrewExecutor(Agent("clerk", instructions=texts, description="x", model=model))

    with pytest.raises(RunError, match="instructions of 'clerk' failed") as raised:
        await executor.execute("Hello", run_id="r")

    assert raised.value.result is not None
    assert not model.requests
    result = await executor.resume("r")
    assert (result.output, model.requests[0].instructions) == ("Done.", "Serve.")


async def test_a_failing_function_fails_its_branch_alone() -> None:
    """The other branch goes on, and the group decides."""
    bad = Agent("bad", instructions=Texts(ValueError("no")), description="x", model=RecordingProvider("never"))
    good = Agent("good", model=RecordingProvider("fine"))
    crew = Crew("c", agents=[bad, good], groups=[Parallel("g", branches=[bad, good])], entry="g")
    result = await CrewExecutor(crew).execute("Go")
    assert [branch.outcome for branch in result.branches] == ["failed", "completed"]
    assert "ValueError: no" in result.branches[0].error


async def test_a_changed_text_of_equal_length_moves_the_prefix(tmp_path: Path) -> None:
    """The manifest names `instructions` and predicts nothing as cached; an equal text keeps the prefix."""
    texts = Texts("Today is Monday. " * 400, "Today is Monday. " * 400, "Today is Sunday. " * 400)
    events, model = list[Any](), RecordingProvider("One.", "Two.", "Three.")
    agent = Agent("clerk", instructions=texts, description="x", model=model)
    executor = CrewExecutor(agent, store=SQLiteStore(tmp_path / "runs.db"), observers=[events.append])

    for _ in range(3):
        await executor.execute("Hello", conversation="c")

    manifests = [event.manifest for event in events if isinstance(event, Asked)]
    assert [manifest.moved_by for manifest in manifests] == ["first request", "", "instructions"]
    assert [manifest.cached_predicted > 0 for manifest in manifests] == [False, True, False]
    assert manifests[1].prefix_digest == manifests[0].digest
    assert len({manifest.digest for manifest in manifests}) == 3


async def test_changed_static_texts_and_tools_move_the_prefix_too(tmp_path: Path) -> None:
    """A new version of the crew in the next turn of a conversation, with texts of equal length."""
    events, path = list[Any](), tmp_path / "runs.db"

    @tool(name="look")
    def other(key: str) -> str:
        """Look sometimes up."""
        return ""

    for text, used in (("Help A.", look), ("Help B.", look), ("Help B.", other)):
        agent = Agent("clerk", instructions=text, model=RecordingProvider(lambda request: "One."), tools=[used])
        executor = CrewExecutor(agent, store=SQLiteStore(path), observers=[events.append])
        await executor.execute("Hello", conversation="c")

    assert [event.manifest.moved_by for event in events if isinstance(event, Asked)] == [
        "first request",
        "instructions",
        "tools",
    ]


async def test_the_state_holds_only_texts_that_are_in_use() -> None:
    """An agent that becomes active again replaces its text."""
    texts = Texts("One.", "Two.", "Three.")
    loop = Agent(
        "a",
        instructions=texts,
        description="x",
        model=RecordingProvider("On [X]", "On [X]", "Done."),
        routes=[Route("[X]", to="a")],
    )
    result = await CrewExecutor(loop).execute("Go")
    assert [*result.state.preparation.texts.values()] == ["Three."]


async def test_secrets_are_removed_from_the_text() -> None:
    model, secret = RecordingProvider("Done."), "sk-very-secret-1234567890"
    agent = Agent("a", instructions=lambda context: f"Use {secret}.", description="x", model=model)
    result = await CrewExecutor(agent, secrets=[secret]).execute("Go")
    assert secret not in model.requests[0].instructions
    assert secret not in repr(result.state)


async def test_bills_correct_the_overhead_across_turns(tmp_path: Path) -> None:
    """The prediction of the second turn uses what the first bill taught about instructions of this kind."""

    class Billed(RecordingProvider):
        """Bills each request with 3,000 tokens for its instructions, and 10 for each message."""

        async def complete(self, request: ModelRequest, on_delta: OnDelta | None = None) -> ModelReply:
            reply = await super().complete(request, on_delta)
            tokens = 3_000 + 10 * len(request.messages)
            return ModelReply(text=reply.text, usage=type(reply.usage)(requests=1, input_tokens=tokens))

    events = list[Any]()
    agent = Agent("a", instructions=Texts("word " * 2_000), description="x", model=Billed("One.", "Two."))
    executor = CrewExecutor(agent, store=SQLiteStore(tmp_path / "runs.db"), observers=[events.append])

    for _ in range(2):
        await executor.execute("Hello", conversation="c")

    second = [event.manifest for event in events if isinstance(event, Asked)][1]
    assert abs(second.tokens_estimated - 3_030) < 100


def test_a_function_needs_a_description() -> None:
    with pytest.raises(DefinitionError, match="description is required if a function writes the instructions"):
        Agent("a", instructions=lambda context: "x", model=RecordingProvider("y"))


@pytest.mark.parametrize("wrong", [lambda: "x", lambda context, agent: "x"], ids=["none", "two"])
def test_a_function_must_accept_the_context_alone(wrong: Any) -> None:
    """It is refused when the agent is built, as a guardrail is."""
    with pytest.raises(DefinitionError, match=r"instructions must accept one argument, the Context; .*lambda.* does"):
        Agent("a", instructions=wrong, description="d", model=RecordingProvider("y"))


async def test_a_run_that_is_cancelled_while_a_function_runs_can_be_resumed() -> None:
    """The function is stopped, and called again."""
    started, texts = asyncio.Event(), list[str]()

    async def write(context: Context[Any]) -> str:
        texts.append("called")
        started.set()
        await asyncio.sleep(0 if len(texts) > 1 else 60)
        return "Help."

    executor = CrewExecutor(Agent("a", instructions=write, description="x", model=RecordingProvider("Done.")))
    task = asyncio.create_task(executor.execute("Go", run_id="r"))
    await started.wait()
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task

    assert (await executor.resume("r")).output == "Done."
