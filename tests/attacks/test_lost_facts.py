"""A fact is committed before anything that follows from it can fail: no reply is lost, and no effect repeats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, field_validator

from crew import Agent, Crew, CrewExecutor, Parallel, RequestParameters, RunError, ScriptedProvider, call, handoff, tool
from crew.errors import BranchesFailed, ContextOverflow, ContextTooLong, OutputInvalid
from crew.interfaces import HistoryBudget, MessageGroup, ModelReply, ModelRequest, PolicyOptions, PruneDecision
from crew.messages import Message, ToolCall, ToolMessage
from crew.runs.events import Asked, HistoryPruned, Replied, Warned
from crew.runs.failure import Failure
from crew.runs.interfaces import RunStore
from crew.store import SQLiteStore
from tests.support.providers import RecordingProvider
from tests.support.runs import run_and_collect
from tests.support.stores import CheckedStore, JsonStore


class Mailbox:
    """A write tool, and the mails that it sent; its result has so many characters."""

    def __init__(self, chars: int = 4) -> None:
        self.sent: list[str] = []

        @tool(max_output_chars=10**9)
        async def send_mail(to: str) -> str:
            """Send a mail."""
            self.sent.append(to)
            return ("sent" + " word" * (chars // 5))[:chars]

        self.tool = send_mail


class Broken(Exception):
    """The caller's own error."""


@dataclass
class Switch:
    """User code fails while it is on."""

    is_on: bool = True

    def check(self) -> None:
        if self.is_on:
            raise Broken("user code is broken")


@dataclass
class HostilePolicy:
    """Fails once a call has its result."""

    switch: Switch
    name: str = "hostile"
    options: PolicyOptions = field(default_factory=lambda: PolicyOptions(eager=True))

    def prune(self, history: Sequence[MessageGroup], budget: HistoryBudget) -> PruneDecision:
        if any(isinstance(entry.message, ToolMessage) for group in history for entry in group.entries):
            self.switch.check()

        return PruneDecision(kept=tuple(history))


def hostile_filter(switch: Switch) -> Any:
    def choose(messages: tuple[Message, ...]) -> Sequence[Message]:
        switch.check()
        return messages[:1]

    return choose


# ------------------------------------------------------------------------------------------ results that are too large


def shown_result(request: ModelRequest) -> str:
    message = request.messages[2]
    assert isinstance(message, ToolMessage)
    return message.results[0].text


def refuse_long(request: ModelRequest) -> Any:
    return ContextTooLong("too long") if len(shown_result(request)) > 9_000 else "Sent."


@pytest.mark.parametrize("rule", ["window", "max_tokens", "too_long"])
async def test_result_that_cannot_fit_is_cut_and_its_mail_sent_once(rule: str, store: CheckedStore) -> None:
    """The view shows a part of it, the transcript keeps it whole, and nothing is in doubt."""
    mailbox = Mailbox(100_000)
    lines = [refuse_long] * 4 if rule == "too_long" else ["Sent."]
    model = RecordingProvider(call("send_mail", to="bob"), *lines)
    agent = Agent("clerk", model=model, tools=[mailbox.tool], max_input_tokens=4_000 if rule == "window" else None)
    parameters = RequestParameters(max_tokens=4_000 if rule == "max_tokens" else None)
    events, result = await run_and_collect(CrewExecutor(agent, store=store, parameters=parameters), "Write to bob.")
    assert (result.output, mailbox.sent, result.in_doubt) == ("Sent.", ["bob"], ())
    whole = result.transcript[2]
    assert isinstance(whole, ToolMessage)
    assert len(whole.results[0].text) == 100_000
    shown = shown_result(model.requests[-1])
    assert 2_000 <= len(shown) <= 16_000
    assert "of 100000 characters cut" in shown
    manifest = [event.manifest for event in events if isinstance(event, Asked)][-1]
    assert manifest is not None
    assert [(line.disposition, line.reason) for line in manifest.tail] == [("kept", ""), ("cut", rule)]
    assert {event.cut for event in events if isinstance(event, HistoryPruned)} == {(whole.id,)}
    assert not store.violations


async def test_cut_holds_still_over_the_next_requests() -> None:
    """The cut is stored in the view: the next requests start with the same bytes, also in another process."""
    mailbox, store = Mailbox(60_000), JsonStore()

    @tool(approval=True)
    async def ask() -> str:
        """Ask."""
        return "yes"

    model = RecordingProvider(call("send_mail", to="bob"), call("ask"), call("ask"), "Done.")
    agent = Agent("clerk", model=model, tools=[mailbox.tool, ask], max_input_tokens=8_000)
    result = await CrewExecutor(agent, store=store).execute("Write to bob.", run_id="r")

    while result.stop_reason == "paused":
        result = await CrewExecutor(agent, store=store).resume("r", {result.pauses[0].id: True})

    shown = [request.messages for request in model.requests]
    assert shown[1] == shown[2][:3] == shown[3][:3]
    assert len(shown_result(model.requests[1])) < 60_000
    moved = [m.manifest.moved_by for m in result.transcript if m.role == "assistant" and m.manifest]
    assert moved == ["first request", "", "", ""]
    assert mailbox.sent == ["bob"]


async def test_large_results_of_one_reply_are_cut_and_small_ones_stay_whole(store: CheckedStore) -> None:
    """Each long text keeps its beginning and end; the goal, the calls and short results are not changed."""
    small, large = Mailbox(900), Mailbox(90_000)
    first = tool(name="small")(small.tool.function)
    second = tool(name="large", max_output_chars=10**9)(large.tool.function)
    calls = (
        ToolCall(id="1", name="small", arguments='{"to": "a"}'),
        ToolCall(id="2", name="large", arguments='{"to": "b"}'),
    )
    model = RecordingProvider(ModelReply(calls=calls), "Done.")
    agent = Agent("clerk", model=model, tools=[first, second], max_input_tokens=6_000)
    goal = "Write. " * 500
    result = await CrewExecutor(agent, store=store).execute(goal)
    message = model.requests[1].messages[2]
    assert isinstance(message, ToolMessage)
    assert [len(one.text) for one in message.results] == [900, 16_000]
    assert model.requests[1].messages[0].text == goal  # type: ignore[union-attr]
    assert result.output == "Done."
    assert not store.violations


async def test_cut_has_a_limit_then_the_overflow_is_raised(store: CheckedStore) -> None:
    """At least 2,000 characters stay; what does not fit even so is a `ContextOverflow`, after the commit."""
    mailbox = Mailbox(100_000)
    model = RecordingProvider(call("send_mail", to="bob"), "Sent.")
    executor = CrewExecutor(
        Agent("clerk", model=model, tools=[mailbox.tool]), store=store, parameters=RequestParameters(max_tokens=300)
    )

    for attempt in (executor.execute("Write to bob.", run_id="r"), executor.resume("r")):
        with pytest.raises(ContextOverflow) as caught:
            await attempt

        assert caught.value.limit == 300
        assert {name.split()[0] for name, _ in caught.value.items} == {"instructions", "tool", "user", "exchange"}
        result = caught.value.result
        assert (result.stop_reason, result.in_doubt, result.transcript[-1].role) == ("failed", (), "tool")
        failure = store.newest.failure
        assert failure is not None
        rebuilt = failure.as_error()
        assert isinstance(rebuilt, ContextOverflow)
        assert (str(rebuilt), rebuilt.limit, rebuilt.items) == (str(caught.value), 300, caught.value.items)

    assert mailbox.sent == ["bob"]
    assert not store.violations


# ------------------------------------------------------------------------------------------ user code that raises


def hostile_agent(where: str, switch: Switch, mailbox: Mailbox) -> Agent:
    """An agent that sends a mail, and whose view policy or handoff filter fails right after it."""
    mail = ToolCall(id="1", name="send_mail", arguments='{"to": "bob"}')
    calls = (mail, ToolCall(id="2", name="transfer_to_other")) if where == "filter" else (mail,)
    return Agent(
        "clerk",
        model=ScriptedProvider(ModelReply(calls=calls), "Done."),
        tools=[mailbox.tool],
        handoffs=[handoff("other", history=hostile_filter(switch))] if where == "filter" else [],
        history=HostilePolicy(switch) if where == "view" else None,
    )


def hostile_executor(place: str, where: str, switch: Switch, mailbox: Mailbox, store: RunStore) -> CrewExecutor:
    clerk, other = hostile_agent(where, switch, mailbox), Agent("other", model=ScriptedProvider("Done."))
    agents, groups, entry = [clerk, other], [], "clerk"

    if place == "branch":
        groups, entry = [Parallel("g", branches=["clerk"], on_error="fail_fast")], "g"
    elif place == "called agent":
        agents.append(
            Agent("boss", model=ScriptedProvider(call("ask_clerk", request="Write."), "Done."), tools=[clerk.as_tool()])
        )
        entry = "boss"

    agents = [agent for agent in agents if agent is not other or where == "filter"]
    history = HostilePolicy(switch) if where == "policy" else "rolling"
    return CrewExecutor(Crew("c", agents=agents, groups=groups, entry=entry), history=history, store=store)


@pytest.mark.parametrize("durable", [False, True], ids=["json", "sqlite"])
@pytest.mark.parametrize("where", ["policy", "view", "filter"])
@pytest.mark.parametrize("place", ["root", "branch"])
async def test_user_code_that_fails_after_a_write_does_not_repeat_it(
    place: str, where: str, durable: bool, tmp_path: Path
) -> None:
    """The result is committed, the caller's error is raised, and a resume in another executor goes on after it."""
    switch, mailbox = Switch(), Mailbox()
    stores: list[RunStore] = [SQLiteStore(tmp_path / "runs.db") for _ in range(2)] if durable else [CheckedStore()] * 2

    with pytest.raises(RunError) as caught:
        await hostile_executor(place, where, switch, mailbox, stores[0]).execute("Write to bob.", run_id="r")

    errors: list[BaseException | None] = [caught.value]

    while errors[-1] is not None:
        errors.append(errors[-1].__cause__)

    assert isinstance(errors[-2], Broken)
    assert isinstance(caught.value, BranchesFailed) == (place == "branch")
    assert (caught.value.result.stop_reason, caught.value.result.in_doubt) == ("failed", ())
    switch.is_on = False
    result = await hostile_executor(place, where, switch, mailbox, stores[1]).resume("r")
    assert (result.stop_reason, result.in_doubt, mailbox.sent) == ("completed", (), ["bob"])
    transcript = result.transcript if place == "root" else result.branches[0].transcript
    roles = ["user", "assistant", "tool", "assistant"]
    assert [message.role for message in transcript] == roles
    assert not isinstance(stores[1], CheckedStore) or not stores[1].violations


@pytest.mark.parametrize("where", ["view", "filter"])
async def test_called_agent_that_fails_after_a_write_leaves_nothing_in_doubt(where: str, store: CheckedStore) -> None:
    """The calling agent gets the failure as a result; the record of the called agent shows that the mail was sent."""
    mailbox = Mailbox()
    result = await hostile_executor("called agent", where, Switch(), mailbox, store).execute("Write to bob.")
    assert (result.output, result.in_doubt, mailbox.sent) == ("Done.", (), ["bob"])
    assert "(failed)" in str(result.transcript[2])
    assert result.branches[0].transcript[2].results[0].text == "sent"  # type: ignore[union-attr]
    assert not store.violations


async def test_run_that_failed_after_a_write_can_be_cancelled_or_continued(store: CheckedStore) -> None:
    """Also without a resume the model of the next run is shown the result, and the cancelled run has no doubt."""
    mailbox = Mailbox()
    executor = hostile_executor("root", "filter", Switch(), mailbox, store)

    with pytest.raises(RunError) as caught:
        await executor.execute("Write to bob.", run_id="r")

    await executor.cancel("r")
    assert store.newest.in_doubt == ()
    assert [message.role for message in caught.value.result.history] == ["user", "assistant", "tool"]


async def test_failing_policy_keeps_the_bound_and_what_a_summary_must_cover() -> None:
    """The oldest messages leave instead; they wait for the summary that the policy would have asked for."""
    switch, store = Switch(), CheckedStore(4)
    policy = HostilePolicy(switch, options=PolicyOptions(limit=4, summarizes=True))
    mailbox = Mailbox()
    model = ScriptedProvider(*[call("send_mail", to=str(n)) for n in range(3)], "Done.")
    executor = CrewExecutor(Agent("clerk", model=model, tools=[mailbox.tool]), history=policy, store=store)

    with pytest.raises(RunError, match="The history policy 'hostile' failed: Broken") as caught:
        await executor.execute("Write.", run_id="r")

    state = caught.value.result.state
    evicted = [m.id for m in state.transcript if m.id not in {e.message.id for e in state.history.entries}]
    assert evicted
    assert list(state.pending_summary.message_ids) == evicted
    switch.is_on = False
    result = await executor.resume("r")
    assert (result.output, mailbox.sent) == ("Done.", ["0", "1", "2"])
    assert not store.violations


async def test_policy_that_fails_on_the_final_answer_does_not_take_it_away(store: CheckedStore) -> None:
    """Nothing is left to try again: the run is completed, with a warning."""

    class Last(HostilePolicy):
        def prune(self, history: Sequence[MessageGroup], budget: HistoryBudget) -> PruneDecision:
            if history[-1].kind == "reply":
                self.switch.check()

            return PruneDecision(kept=tuple(history))

    executor = CrewExecutor(Agent("a", model=ScriptedProvider("42.")), history=Last(Switch()), store=store)
    assert (await executor.execute("Sum?")).output == "42."
    assert any("Broken: user code is broken" in e.text for e in store.events if isinstance(e, Warned))
    assert store.newest.failure is None


async def test_error_of_user_code_is_stored_without_secrets() -> None:
    """The text of the error comes from user code, and is committed with the fact."""
    store = JsonStore()

    def choose(messages: tuple[Message, ...]) -> Sequence[Message]:
        raise Broken("wrong key hunter2-hunter2")

    other = Agent("other", model=ScriptedProvider("Done."))
    agent = Agent("a", model=ScriptedProvider(call("transfer_to_other")), handoffs=[handoff(other, history=choose)])
    executor = CrewExecutor(Crew("c", agents=[agent, other]), store=store, secrets=["hunter2-hunter2"])

    with pytest.raises(RunError):
        await executor.execute("Go.")

    assert store.newest.failure is not None
    assert store.newest.failure.text.startswith("Broken: wrong key")
    assert not any(b"hunter2-hunter2" in data for data in (*store.snapshots, *store.event_batches))


# ------------------------------------------------------------------------------------------ replies


class Strict(BaseModel):
    amount: int

    @field_validator("amount")
    @classmethod
    def check(cls, value: int) -> int:
        raise TypeError("a mistake in the validator")


@pytest.mark.parametrize("part", ["output", "payload"])
async def test_validator_that_raises_does_not_lose_the_reply(part: str, store: CheckedStore) -> None:
    """The reply was paid for: it is recorded, and the model, then the caller, gets the problem."""
    other = Agent("other", model=ScriptedProvider("Done."))

    if part == "output":
        agent = Agent("a", model=ScriptedProvider(lambda r: '{"amount": 1}'), output=Strict)

        with pytest.raises(OutputInvalid, match="a mistake in the validator") as caught:
            await CrewExecutor(agent, store=store).execute("Go.")

        assert caught.value.result.usage.requests == 2
    else:
        model = ScriptedProvider(call("transfer_to_other", amount=1), "I can't.")
        agent = Agent("a", model=model, handoffs=[handoff(other, payload=Strict)])
        result = await CrewExecutor(Crew("c", agents=[agent, other]), store=store).execute("Go.")
        assert result.output == "I can't."

    assert len([event for event in store.events if isinstance(event, Replied)]) == 2
    assert "a mistake in the validator" in str(store.newest.transcript[2])


async def test_token_counter_that_raises_does_not_lose_a_result(store: CheckedStore) -> None:
    """Its count is only a number: the estimate takes its place."""

    class Counter:
        def count(self, text: str) -> int:
            if text.startswith("sent"):
                raise Broken("the counter is broken")

            return len(text) // 4

    mailbox = Mailbox()
    agent = Agent("clerk", model=ScriptedProvider(call("send_mail", to="bob"), "sent it"), tools=[mailbox.tool])
    result = await CrewExecutor(agent, store=store, counter=Counter()).execute("Write to bob.")
    assert (result.output, mailbox.sent) == ("sent it", ["bob"])


def test_failure_as_an_error_of_another_process() -> None:
    """Crew's errors keep their class; of any other error the text is left."""
    assert isinstance(Failure.of(OutputInvalid("no")).as_error(), OutputInvalid)
    other = Failure.of(Broken("no")).as_error()
    assert (type(other), str(other)) == (RunError, "Broken: no")
