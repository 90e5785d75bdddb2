"""Guardrails on input, calls and output: they pass, rewrite, refuse or ask a person, and a resume repeats none."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from crew import Agent, Context, Crew, CrewExecutor, Limits, Parallel, RunError, call, handoff, tool
from crew.agents import GuardedCall, NeedsApproval, Refused, Rewritten, guardrail
from crew.errors import CrewChanged, DefinitionError, NoOutput
from crew.interfaces import ModelReply, ModelRequest, OnDelta
from crew.messages import AssistantMessage, ToolCall, ToolMessage, UserMessage
from crew.runs.events import GuardrailChecked, Paused, Replied, TextDelta, ToolsStarted, Warned
from crew.runs.state import MAX_CHECKED_CHARS
from crew.store import SQLiteStore
from crew.store.rows import message_text
from tests.support.providers import RecordingProvider

Check = Callable[[Context[Any], Any], Any]


@tool(effect="read")
def look(key: str) -> str:
    """Look something up."""
    return f"value of {key}"


def verdict(on: Any, *given: Any, name: str = "check", **options: Any) -> Any:
    """A guardrail that gives these verdicts in order, the last again and again; it keeps what it was asked."""
    seen: list[Any] = []
    left = list(given)

    @guardrail(on, name=name, **options)
    async def check(context: Context[Any], value: Any) -> Any:
        seen.append(value)
        made = left.pop(0) if len(left) > 1 else left[0]

        if isinstance(made, Exception):
            raise made

        return made

    SEEN[id(check)] = seen
    return check


SEEN: dict[int, list[Any]] = {}


def checked(events: list[Any]) -> list[tuple[str, str]]:
    return [(event.on, event.outcome) for event in events if isinstance(event, GuardrailChecked)]


def results(result: Any) -> list[str]:
    messages = [message for message in result.transcript if isinstance(message, ToolMessage)]
    return [one.text for message in messages for one in message.results]


# ------------------------------------------------------------------------------------------ what a person sees


@pytest.mark.parametrize("store", ["memory", "file"])
@pytest.mark.parametrize(
    ("where", "text"),
    [("input", "Hello"), ("beside", "Hello"), ("output", "Draft."), ("join", "[Results of g]\n## a\nDraft.")],
)
async def test_a_pause_of_a_guardrail_has_the_text_in_question(
    where: str, text: str, store: str, tmp_path: Path
) -> None:
    """The events have not: a reply is not published before it is accepted."""
    stage: Any = "input" if where in ("input", "beside") else "output"
    check = verdict(stage, NeedsApproval("May it pass?"), parallel=where == "beside")
    agent = Agent("a", model=RecordingProvider("Draft."), guardrails=[check] if where != "join" else [])
    group = Parallel("g", branches=[agent])
    crew = Crew("c", entry=group, guardrails=[check]) if where == "join" else agent
    events: list[Any] = []
    file = tmp_path / "runs.db" if store == "file" else None

    async with CrewExecutor(crew, store=file, observers=[events.append]) as executor:
        result = await executor.execute("Hello", conversation="c")
        found = await executor.conversation("c")

    [pause] = result.pauses
    assert (pause.text, pause.checked, pause.full_text) == ("May it pass?", text, f"May it pass?\n\n{text}")
    assert found.pauses == result.pauses
    [paused] = [event for event in events if isinstance(event, Paused)]
    assert (paused.pauses[0].text, paused.pauses[0].checked) == ("May it pass?", "")


async def test_a_pause_within_a_fan_out_has_the_item() -> None:
    """Not the goal, which all branches share."""
    check = verdict("input", NeedsApproval("May it pass?"))
    worker = Agent("worker", model=RecordingProvider(), guardrails=[check])
    group = Parallel.map("g", worker, items=lambda result: ["x", "y"])
    paused = await CrewExecutor(Crew("c", entry=group)).execute("Go")
    assert [pause.checked for pause in paused.pauses] == ["x", "y"]


async def test_the_text_of_a_pause_is_bounded() -> None:
    """Its middle is cut."""
    check = verdict("output", NeedsApproval("May it pass?"))
    reply = "begin" + "." * 100_000 + "end"
    paused = await CrewExecutor(Agent("a", model=RecordingProvider(reply), guardrails=[check])).execute("Go")
    checked = paused.pauses[0].checked
    assert len(checked) == MAX_CHECKED_CHARS
    assert checked.startswith("begin")
    assert checked.endswith("end")


# ------------------------------------------------------------------------------------------ input


async def test_an_input_that_passes_goes_to_the_model() -> None:
    events, check, model = list[Any](), verdict("input", None), RecordingProvider("Done.")
    result = await CrewExecutor(Agent("a", model=model, guardrails=[check]), observers=[events.append]).execute("Hello")
    assert (result.output, SEEN[id(check)], checked(events)) == ("Done.", ["Hello"], [("input", "passed")])


async def test_a_rewritten_input_is_what_the_model_and_the_transcript_hold() -> None:
    """The next guardrail checks the new text too."""
    first, second = verdict("input", Rewritten("Hello ***"), name="one"), verdict("input", None, name="two")
    model = RecordingProvider("Done.")
    result = await CrewExecutor(Agent("a", model=model, guardrails=[first, second])).execute("Hello 4711")
    assert [message.text for message in model.shown[0]] == ["Hello ***"]
    assert SEEN[id(second)] == ["Hello ***"]
    assert not any("4711" in message_text(message) for message in [*result.transcript, *result.history])


async def test_a_refused_input_ends_the_run_with_the_words() -> None:
    """No model is asked. The transcript keeps the input, the history of the next turn does not have it."""
    check, model = verdict("input", Refused("Not about this."), None), RecordingProvider("Done.")
    executor = CrewExecutor(Agent("a", model=model, guardrails=[check]))
    result = await executor.execute("Bad", run_id="r")
    assert (result.stop_reason, result.stop_text, result.output) == ("stopped", "Not about this.", "")
    assert [message.text for message in result.transcript if isinstance(message, UserMessage)] == ["Bad"]
    assert not model.requests
    again = await executor.execute("Good", history=result)
    assert again.output == "Done."
    assert [message.text for message in model.shown[0]] == ["Good"]


async def test_a_refused_input_is_the_reason_for_a_missing_output() -> None:
    """No tool has to have ended the run."""
    check = verdict("input", Refused("No."))
    result = await CrewExecutor(Agent("a", model=RecordingProvider(), output=int, guardrails=[check])).execute("Bad")

    with pytest.raises(NoOutput, match=r"or a guardrail refused its input; see result\.stop_text"):
        _ = result.output


@pytest.mark.parametrize(("answer", "stop"), [(True, "completed"), (False, "stopped"), ("not today", "stopped")])
async def test_an_input_may_wait_for_a_person(tmp_path: Path, answer: Any, stop: str) -> None:
    """Another process resumes the run, and the guardrail is not asked again."""
    store, model = SQLiteStore(tmp_path / "runs.db"), RecordingProvider("Done.")
    first, second = verdict("input", NeedsApproval("Send it?")), verdict("input", Exception("not again"))

    def executor(check: Any) -> CrewExecutor:
        return CrewExecutor(Agent("a", model=model, guardrails=[check]), store=store)

    paused = await executor(first).execute("Hello", run_id="r")
    [pause] = paused.pauses
    assert (pause.reason, pause.text, pause.id) == ("consent", "Send it?", "r:0.check.guardrail")
    assert (await executor(second).resume("r")).stop_reason == "paused"
    done = await executor(second).resume("r", {pause.id: answer})
    assert done.stop_reason == stop
    assert done.stop_text == {True: "", False: "A person refused it."}.get(answer, f"A person refused it: {answer}")


async def test_guardrails_of_the_crew_check_the_input_of_a_group() -> None:
    check = verdict("input", Refused("No."), parallel=True)
    left = Agent("left", model=RecordingProvider("l"))
    crew = Crew("c", agents=[left], groups=[Parallel("g", branches=[left])], entry="g", guardrails=[check])
    result = await CrewExecutor(crew).execute("Go")
    assert (result.stop_reason, result.stop_text, result.branches) == ("stopped", "No.", ())


async def test_an_agent_checks_the_goal_wherever_it_becomes_active() -> None:
    """After a handoff the run ends; a branch and an agent called as a tool fail with the words."""
    check = verdict("input", Refused("Not for me."))
    target = Agent("target", model=RecordingProvider("never"), guardrails=[check])
    first = Agent("first", model=RecordingProvider(call("transfer_to_target")), handoffs=[target])
    result = await CrewExecutor(Crew("c", agents=[first, target])).execute("Go")
    assert (result.stop_reason, result.stop_text) == ("stopped", "Not for me.")

    other = Agent("other", model=RecordingProvider("fine"))
    group = Parallel("g", branches=[target, other])
    joined = await CrewExecutor(Crew("c", agents=[target, other], groups=[group], entry="g")).execute("Go")
    assert [branch.outcome for branch in joined.branches] == ["failed", "completed"]
    assert "Not for me." in joined.branches[0].error

    boss = Agent("boss", model=RecordingProvider(call("ask_target", request="Do"), "Well."), tools=[target.as_tool()])
    called = await CrewExecutor(boss).execute("Go")
    assert called.output == "Well."
    assert results(called) == ["(failed) the input was refused by check: Not for me."]
    assert SEEN[id(check)] == ["Go", "Go", "Do"]


@pytest.mark.parametrize("parallel", [False, True], ids=["before", "beside"])
async def test_an_agent_of_a_fan_out_checks_its_item(parallel: bool) -> None:
    """Also after a handoff and in a group within the branch; an agent that is called as a tool checks its request."""
    check, helper = verdict("input", None, parallel=parallel), verdict("input", None, name="helper_check")

    def reply(request: ModelRequest) -> Any:
        return "Done." if isinstance(request.messages[-1], ToolMessage) else call("ask_helper", request="Help.")

    expert = Agent("expert", model=RecordingProvider(lambda request: "Ok."), guardrails=[check])
    panel = Parallel("panel", branches=[expert])
    tools = [Agent("helper", model=RecordingProvider(lambda request: "Hm."), guardrails=[helper]).as_tool()]
    worker = Agent("worker", model=RecordingProvider(reply), tools=tools, guardrails=[check], then=panel)
    group = Parallel.map("g", worker, items=lambda result: ["x", {"file": "y"}])
    await CrewExecutor(Crew("c", entry=group)).execute("Go")
    assert sorted(SEEN[id(check)], reverse=True) == ['{"file":"y"}', '{"file":"y"}', "x", "x"]
    assert SEEN[id(helper)] == ["Help.", "Help."]


async def test_a_refused_item_fails_its_branch_alone() -> None:
    """The other items go on."""

    @guardrail("input")
    def not_secret(context: Context[Any], text: str) -> Refused | None:
        return Refused("It is secret.") if "secret" in text else None

    worker = Agent("worker", model=RecordingProvider(lambda request: "Done."), guardrails=[not_secret])
    group = Parallel.map("g", worker, items=lambda result: ["a secret", "a file"])
    result = await CrewExecutor(Crew("c", entry=group)).execute("Go")
    assert [branch.outcome for branch in result.branches] == ["failed", "completed"]


async def test_the_request_of_a_called_agent_may_be_rewritten() -> None:
    check, model = verdict("input", Rewritten("Do it well")), RecordingProvider("ok")
    target = Agent("target", model=model, guardrails=[check])
    boss = Agent("boss", model=RecordingProvider(call("ask_target", request="Do"), "Well."), tools=[target.as_tool()])
    assert (await CrewExecutor(boss).execute("Go")).output == "Well."
    assert [message.text for message in model.shown[0]] == ["Do it well"]


async def test_a_rewrite_after_a_handoff_is_an_error() -> None:
    """The goal is part of the conversation then: other agents have seen it."""
    check = verdict("input", Rewritten("x"))
    target = Agent("target", model=RecordingProvider("never"), guardrails=[check])
    first = Agent("first", model=RecordingProvider(call("transfer_to_target")), handoffs=[target])

    with pytest.raises(RunError, match="can't rewrite an input after the run has started"):
        await CrewExecutor(Crew("c", agents=[first, target])).execute("Go")


# ------------------------------------------------------------------------------------------ beside the first request


async def test_no_tool_and_no_text_appears_before_a_parallel_guardrail_has_passed() -> None:
    """The model is asked at once, and its reply waits for the verdict."""
    order, asked, passes = list[str](), asyncio.Event(), asyncio.Event()

    @guardrail("input", parallel=True)
    async def slow(context: Context[Any], text: str) -> None:
        await asked.wait()
        await asyncio.sleep(0.02)
        order.append("passed")
        passes.set()

    class Model(RecordingProvider):
        async def complete(self, request: ModelRequest, on_delta: OnDelta | None = None) -> ModelReply:
            order.append("asked")
            reply = await super().complete(request, on_delta)
            asked.set()
            return reply

    model = Model(call("look", key="a"), "Done.")
    executor = CrewExecutor(Agent("a", model=model, tools=[look], guardrails=[slow]))

    async with executor.execute_stream("Hello") as events:
        async for event in events:
            if isinstance(event, TextDelta | ToolsStarted | Replied | GuardrailChecked):
                order.append(event.kind)

    assert order.index("asked") < order.index("passed") < order.index("guardrail_checked")
    first = min(order.index(kind) for kind in ("text_delta", "tools_started", "replied") if kind in order)
    assert order.index("guardrail_checked") < first


async def test_the_reply_to_a_refused_input_is_billed_and_discarded() -> None:
    """If it is there before the verdict."""
    events, replied = list[Any](), asyncio.Event()

    class Model(RecordingProvider):
        async def complete(self, request: ModelRequest, on_delta: OnDelta | None = None) -> ModelReply:
            reply = await super().complete(request, on_delta)
            replied.set()
            return reply

    @guardrail("input", parallel=True)
    async def check(context: Context[Any], text: str) -> Refused:
        await replied.wait()

        for _ in range(50):  # turns of the loop, in which the reply arrives
            await asyncio.sleep(0)

        return Refused("No.")

    agent = Agent("a", model=Model(call("look", key="secret")), tools=[look], guardrails=[check])
    result = await CrewExecutor(agent, observers=[events.append]).execute("Hello")
    assert (result.stop_reason, result.stop_text, result.usage.requests) == ("stopped", "No.", 1)
    assert result.usage.input_tokens > 0
    assert not [event for event in events if isinstance(event, ToolsStarted | Replied)]


@pytest.mark.parametrize(
    ("decision", "stop"), [(Refused("No."), "stopped"), (NeedsApproval("Go on?"), "paused")], ids=["refused", "held"]
)
async def test_an_input_that_does_not_pass_cancels_the_request(decision: Any, stop: str) -> None:
    """Neither the model nor another guardrail is waited for."""
    asked, ended = asyncio.Event(), list[str]()

    async def never_end(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(name)

    class Model(RecordingProvider):
        async def complete(self, request: ModelRequest, on_delta: OnDelta | None = None) -> ModelReply:
            asked.set()
            await never_end("model")
            raise AssertionError("not reached")

    @guardrail("input", parallel=True, timeout=600)
    async def other(context: Context[Any], text: str) -> None:
        await never_end("other")

    @guardrail("input", parallel=True)
    async def check(context: Context[Any], text: str) -> Any:
        await asked.wait()
        return decision

    executor = CrewExecutor(Agent("a", model=Model(), guardrails=[other, check]))

    async with asyncio.timeout(30):
        result = await executor.execute("Hello")

    assert (result.stop_reason, result.usage.requests, sorted(ended)) == (stop, 0, ["model", "other"])


async def test_a_run_is_cancelled_while_a_refused_request_is_being_stopped() -> None:
    """The cancellation is not lost with the refusal: no agent that follows is asked."""
    asked, stopping, may_stop = asyncio.Event(), asyncio.Event(), asyncio.Event()

    class Model(RecordingProvider):
        async def complete(self, request: ModelRequest, on_delta: OnDelta | None = None) -> ModelReply:
            asked.set()

            try:
                await asyncio.Event().wait()
            finally:
                stopping.set()
                await may_stop.wait()  # as a connection that closes slowly

            raise AssertionError("not reached")

    @guardrail("input", parallel=True)
    async def check(context: Context[Any], text: str) -> Any:
        await asked.wait()
        return Refused("No.")

    follower = RecordingProvider("Done.")
    refused, after = Agent("refused", model=Model(), guardrails=[check]), Agent("after", model=follower)
    group = Parallel("group", branches=[refused], then=after)
    executor = CrewExecutor(Crew("crew", agents=[refused, after], groups=[group], entry="group"))

    async with asyncio.timeout(30):
        running = asyncio.create_task(executor.execute("Hello", run_id="r"))
        await stopping.wait()
        cancelling = asyncio.create_task(executor.cancel("r"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        may_stop.set()
        await cancelling
        assert (await running).stop_reason == "cancelled"

    assert not follower.requests


async def test_a_parallel_guardrail_may_ask_a_person_and_the_model_is_asked_again() -> None:
    model, check = (
        RecordingProvider("One.", lambda request: "Two."),
        verdict("input", NeedsApproval("Ok?"), parallel=True),
    )
    executor = CrewExecutor(Agent("a", model=model, guardrails=[check]))
    paused = await executor.execute("Hello")
    done = await executor.resume(paused.run_id, {paused.pauses[0].id: True})
    assert (done.stop_reason, done.usage.requests, len(SEEN[id(check)])) == ("completed", 2, 1)


async def test_a_parallel_guardrail_is_not_repeated_after_it_has_passed() -> None:
    check = verdict("input", None, parallel=True)
    model = RecordingProvider(call("look", key="a"), "Done.")
    result = await CrewExecutor(Agent("a", model=model, tools=[look], guardrails=[check])).execute("Hello")
    assert (result.output, len(SEEN[id(check)])) == ("Done.", 1)


# ------------------------------------------------------------------------------------------ calls


async def test_a_call_is_checked_before_it_starts() -> None:
    """A refusal is an error result with the words; other calls run."""
    events = list[Any]()

    @guardrail("tool")
    def only_a(context: Context[Any], made: GuardedCall) -> Any:
        return None if made.arguments["key"] == "a" else Refused(f"{made.name} may not read it.")

    model = RecordingProvider([call("look", key="a"), call("look", key="b")], "Done.")
    agent = Agent("x", model=model, tools=[look], guardrails=[only_a])
    result = await CrewExecutor(agent, observers=[events.append]).execute("Go")
    assert results(result) == ["value of a", "Not done: look may not read it."]
    assert sorted(checked(events)) == [("tool", "passed"), ("tool", "refused")]


async def test_a_call_with_invalid_rewritten_arguments_names_the_guardrail() -> None:
    """The model did not write them, so that it is not asked to correct them."""
    model = RecordingProvider(call("look", key="a"), "Done.")
    agent = Agent("a", model=model, tools=[look], guardrails=[verdict("tool", Rewritten({"kee": "b"}))])
    [text] = results(await CrewExecutor(agent).execute("Go"))
    assert text.startswith("Not done: The guardrail check changed the arguments to invalid ones: key: Field required")


async def test_the_arguments_of_a_call_may_be_rewritten() -> None:
    """The model gets a note; the assistant message stays as it is."""
    check = verdict("tool", Rewritten({"key": "b"}))
    model = RecordingProvider(call("look", key="a"), "Done.")
    result = await CrewExecutor(Agent("x", model=model, tools=[look], guardrails=[check])).execute("Go")
    assert results(result) == [
        '[The guardrail check changed the arguments of this call before it ran: key: "a" → "b".]\nvalue of b'
    ]


async def test_a_call_may_wait_for_a_person(tmp_path: Path) -> None:
    """Another process resumes it; neither the guardrail nor the approval of the tool asks again."""
    store, model = SQLiteStore(tmp_path / "runs.db"), RecordingProvider(call("look", key="a"), "Done.")
    check = verdict("tool", NeedsApproval("May it read a?"))

    def executor() -> CrewExecutor:
        return CrewExecutor(Agent("x", model=model, tools=[look], guardrails=[check]), store=store)

    paused = await executor().execute("Go")
    [pause] = paused.pauses
    assert (pause.reason, pause.text) == ("approval", 'May it read a?\n  key: "a"')
    done = await executor().resume(paused.run_id, {pause.id: True})
    assert (results(done), len(SEEN[id(check)])) == (["value of a"], 1)


async def test_calls_of_agents_are_checked_too() -> None:
    """The agent starts only after the guardrails passed."""
    helper = Agent("helper", model=RecordingProvider(lambda request: "helped"))
    check = verdict("tool", Refused("Alone."), Rewritten({"request": "Better"}), NeedsApproval("Ask it?"), None)
    lines = [call("ask_helper", request="1"), call("ask_helper", request="2"), call("ask_helper", request="3"), "Done."]
    boss = Agent("boss", model=RecordingProvider(*lines), tools=[helper.as_tool()])
    executor = CrewExecutor(Crew("c", agents=[boss], guardrails=[check]))
    paused = await executor.execute("Go")
    assert results(paused)[0] == "Not done: Alone."
    assert [branch.transcript[0].text for branch in paused.branches] == ["Better"]
    done = await executor.resume(paused.run_id, {paused.pauses[0].id: True})
    assert (done.output, results(done)[2]) == ("Done.", "helped")


# ------------------------------------------------------------------------------------------ output


async def test_an_output_that_is_refused_is_asked_for_again() -> None:
    check, model = verdict("output", Refused("Too rude."), None), RecordingProvider("Go away.", "Please wait.")
    result = await CrewExecutor(Agent("a", model=model, guardrails=[check])).execute("Hello")
    assert result.output == "Please wait."
    assert model.shown[1][-1].text == "[Your reply was refused: Too rude.\nReply again.]"


async def test_an_output_that_is_refused_twice_fails_the_run() -> None:
    """As one that does not match the output type; a resume asks once more."""
    check, model = verdict("output", Refused("No."), Refused("No."), None), RecordingProvider("1", "2", "3")
    executor = CrewExecutor(Agent("a", model=model, guardrails=[check]))

    with pytest.raises(RunError, match="refused by check after one correction: No"):
        await executor.execute("Hello", run_id="r")

    assert (await executor.resume("r")).output == "3"


async def test_a_rewritten_output_replaces_the_reply() -> None:
    """For the caller, and for the next turn."""
    check, model = verdict("output", Rewritten("Card ***"), None), RecordingProvider("Card 4711", "ok")
    executor = CrewExecutor(Agent("a", model=model, guardrails=[check]))
    result = await executor.execute("Hello")
    assert result.output == "Card ***"
    await executor.execute("And?", history=result)
    assert [message.text for message in model.shown[1]] == ["Hello", "Card ***", "And?"]


async def test_an_output_may_wait_for_a_person(tmp_path: Path) -> None:
    """A refusal by the person is a refusal of the guardrail: the model writes another reply."""
    store, model = SQLiteStore(tmp_path / "runs.db"), RecordingProvider("Draft.", "Final.")

    def executor() -> CrewExecutor:
        return CrewExecutor(Agent("a", model=model, guardrails=[check]), store=store)

    check = verdict("output", NeedsApproval("Publish it?"), None)
    paused = await executor().execute("Write")
    assert (paused.stop_reason, paused.output, paused.pauses[0].text) == ("paused", "", "Publish it?")
    done = await executor().resume(paused.run_id, {paused.pauses[0].id: "shorter"})
    assert done.output == "Final."
    assert "A person refused it: shorter" in model.shown[1][-1].text


async def test_streamed_text_is_held_back_until_the_output_passes() -> None:
    """Neither a delta nor another event holds a reply that is refused; a rewritten one appears in its new form."""
    check = verdict("output", Refused("No."), Rewritten("Clean."))
    executor = CrewExecutor(Agent("a", model=RecordingProvider("Dirty one.", "Dirty two."), guardrails=[check]))
    seen = list[Any]()

    async with executor.execute_stream("Hello") as events:
        async for event in events:
            seen.append(event)

    assert [event.text for event in seen if isinstance(event, TextDelta)] == ["Clean."]
    assert "Dirty" not in "".join(repr(e) for e in seen if e.kind != "usage_changed")
    assert [event.withheld for event in seen if isinstance(event, Replied)] == [True, True]


async def test_guardrails_of_the_crew_check_the_output_of_the_run_alone() -> None:
    """Not that of an agent in the middle, a branch, or an agent that is called as a tool; also what a group joined."""
    check = verdict("output", None, Rewritten("joined"))
    last = Agent("last", model=RecordingProvider("end"))
    first = Agent("first", model=RecordingProvider("middle"), then=last)
    result = await CrewExecutor(Crew("c", agents=[first, last], guardrails=[check])).execute("Go")
    assert (result.output, SEEN[id(check)]) == ("end", ["end"])

    left = Agent("left", model=RecordingProvider("l"))
    crew = Crew("c", agents=[left], groups=[Parallel("g", branches=[left])], entry="g", guardrails=[check])
    assert (await CrewExecutor(crew).execute("Go")).output == "joined"


async def test_a_run_that_ends_at_a_limit_shows_nothing_unchecked() -> None:
    check = verdict("output", None)
    spoken = ModelReply(text="thinking aloud", calls=(ToolCall(id="1", name="look", arguments='{"key": "a"}'),))
    model = RecordingProvider(spoken)
    agent = Agent("a", model=model, tools=[look], guardrails=[check])
    result = await CrewExecutor(agent, limits=Limits(rounds=1)).execute("Go")
    assert "thinking aloud" in [message.text for message in result.transcript if isinstance(message, AssistantMessage)]
    assert (result.stop_reason, result.output) == ("limit", "")


async def test_branches_check_their_output() -> None:
    check = verdict("output", Refused("Short."), None)
    left = Agent("left", model=RecordingProvider("l", "longer"), guardrails=[check])
    crew = Crew("c", agents=[left], groups=[Parallel("g", branches=[left])], entry="g")
    result = await CrewExecutor(crew).execute("Go")
    assert result.branches[0].output == "longer"


async def test_a_stored_conversation_goes_on_after_a_refused_turn(tmp_path: Path) -> None:
    """The refused turn is in the transcript of the conversation, and in no later request."""
    check, model = verdict("input", None, Refused("No."), None), RecordingProvider(lambda request: "ok")
    executor = CrewExecutor(Agent("a", model=model, guardrails=[check]), store=SQLiteStore(tmp_path / "runs.db"))
    stops = [(await executor.execute(text, conversation="c")).stop_reason for text in ("one", "two", "three")]
    assert stops == ["completed", "stopped", "completed"]
    assert [message.text for message in model.shown[-1]] == ["one", "ok", "three"]
    texts = [m.text for m in await executor.transcript("c") if isinstance(m, UserMessage | AssistantMessage)]
    assert texts == ["one", "ok", "two", "three", "ok"]


async def test_a_handoff_is_not_checked_as_a_call() -> None:
    """Also one with a function that runs before control passes."""
    check, passed = verdict("tool", Refused("No.")), list[object]()
    target = Agent("target", model=RecordingProvider("Done."))
    way = handoff(target, on_handoff=lambda *given: passed.append(given))
    first = Agent("first", model=RecordingProvider(call("transfer_to_target")), handoffs=[way])
    result = await CrewExecutor(Crew("c", agents=[first, target], guardrails=[check])).execute("Go")
    assert (result.output, len(passed), SEEN[id(check)]) == ("Done.", 1, [])


# ------------------------------------------------------------------------------------------ failures


@pytest.mark.parametrize("on", ["input", "output"])
async def test_a_guardrail_that_fails_ends_the_run_until_a_resume(on: str) -> None:
    """What was not checked does not pass; a resume checks again, and asks no model twice."""
    check, model = verdict(on, ConnectionError("down"), None), RecordingProvider("Done.")
    executor = CrewExecutor(Agent("a", model=model, guardrails=[check]))

    with pytest.raises(RunError, match="The guardrail 'check' failed: ConnectionError: down"):
        await executor.execute("Hello", run_id="r")

    assert (await executor.resume("r")).output == "Done."
    assert len(model.requests) == 1


async def test_a_guardrail_that_fails_refuses_a_call() -> None:
    check = verdict("tool", ConnectionError("down"))
    model = RecordingProvider(call("look", key="a"), "Done.")
    result = await CrewExecutor(Agent("a", model=model, tools=[look], guardrails=[check])).execute("Go")
    assert results(result) == ["Not done: The guardrail 'check' failed: ConnectionError: down"]


async def test_a_guardrail_may_be_skipped_if_it_fails() -> None:
    """With a warning."""
    events, check = list[Any](), verdict("input", ConnectionError("down"), on_error="pass")
    agent = Agent("a", model=RecordingProvider("Done."), guardrails=[check])
    assert (await CrewExecutor(agent, observers=[events.append]).execute("Hello")).output == "Done."
    assert any("the check was skipped" in event.text for event in events if isinstance(event, Warned))


async def test_a_check_that_takes_too_long_does_not_pass() -> None:
    @guardrail("input", timeout=0.02)
    async def slow(context: Context[Any], text: str) -> None:
        await asyncio.sleep(30)

    with pytest.raises(RunError, match=r"it took more than 0\.02 s"):
        await CrewExecutor(Agent("a", model=RecordingProvider("x"), guardrails=[slow])).execute("Hello")


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        (True, "it must return None, "),
        ("no", "it must return None, "),
        (Refused(""), "the text of its decision"),
        (Rewritten({"a": 1}), r"Rewritten\(…\) must have a text, not {'a': 1}"),
    ],
)
async def test_a_wrong_verdict_does_not_pass(wrong: Any, problem: str) -> None:
    check = verdict("input", wrong)

    with pytest.raises(RunError, match=f"The guardrail 'check' failed: TypeError: {problem}"):
        await CrewExecutor(Agent("a", model=RecordingProvider("x"), guardrails=[check])).execute("Hello")


async def test_a_run_that_waits_for_a_guardrail_needs_it_on_resume(tmp_path: Path) -> None:
    store, check = SQLiteStore(tmp_path / "runs.db"), verdict("input", NeedsApproval("?"))
    agent = Agent("a", model=RecordingProvider("x"), guardrails=[check])
    paused = await CrewExecutor(agent, store=store).execute("Hello", run_id="r")
    without = CrewExecutor(Agent("a", model=RecordingProvider("x")), store=store)

    with pytest.raises(CrewChanged, match="the guardrail 'check'"):
        await without.resume("r", {paused.pauses[0].id: True})


async def test_a_run_that_is_cancelled_during_a_check_keeps_its_input() -> None:
    started = asyncio.Event()

    @guardrail("input")
    async def slow(context: Context[Any], text: str) -> None:
        started.set()
        await asyncio.sleep(30)

    executor = CrewExecutor(Agent("a", model=RecordingProvider("x"), guardrails=[slow]))
    task = asyncio.create_task(executor.execute("Hello", run_id="r"))
    await started.wait()
    await executor.cancel("r")
    result = await task
    assert (result.stop_reason, [message.text for message in result.history]) == ("cancelled", ["Hello"])


def test_wrong_guardrails_are_refused() -> None:
    """When they are defined."""
    model = RecordingProvider("x")

    with pytest.raises(DefinitionError, match=r"guardrails\[0\] must be a guardrail"):
        Agent("a", model=model, guardrails=[lambda context, text: None])  # type: ignore[list-item]

    with pytest.raises(DefinitionError, match=r"what it checks is missing; write @guardrail\(\"input\"\)"):
        guardrail(lambda context, text: None)  # type: ignore[arg-type]

    with pytest.raises(DefinitionError, match=r"two arguments, such as def check\(context, text\)"):
        guardrail("input", name="check")(lambda text: None)

    with pytest.raises(DefinitionError, match="parallel=True is for input, not for output"):
        verdict("output", None, parallel=True)

    with pytest.raises(DefinitionError, match="two guardrails are named 'check'"):
        Agent("a", model=model, guardrails=[verdict("input", None), verdict("output", None)])

    agent = Agent("a", model=model, guardrails=[verdict("input", None)])

    with pytest.raises(DefinitionError, match="the crew and the agent 'a' have different guardrails named 'check'"):
        Crew("c", agents=[agent], guardrails=[verdict("input", None)])
