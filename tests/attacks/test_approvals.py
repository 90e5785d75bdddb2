"""Approvals are for one call: an answer can't be used for another call, and effects are not confused."""

from __future__ import annotations

from typing import Any

import pytest

from crew import Agent, Context, CrewExecutor, ScriptedProvider, call, tool
from crew.errors import InvalidInput, UnknownPause
from crew.interfaces import ModelReply, ModelRequest
from crew.messages import ToolCall
from tests.support.stores import CheckedStore


def pay_call(to: str, amount: int) -> ModelReply:
    """A call from a server that numbers call ids per reply, so that they repeat."""
    return ModelReply(calls=(ToolCall(id="call_0", name="pay", arguments=f'{{"to": "{to}", "amount": {amount}}}'),))


async def test_old_approval_is_refused_for_another_call_with_its_id(store: CheckedStore) -> None:
    """The provider's call ids repeat after pruning; pause ids do not."""
    paid: list[tuple[str, int]] = []

    @tool(approval="always")
    async def pay(to: str, amount: int) -> str:
        """Pay."""
        paid.append((to, amount))
        return "paid"

    @tool(effect="read")
    async def look() -> str:
        """Look."""
        return "nothing"

    def reply(request: ModelRequest) -> Any:
        if request.turn in (0, 12):
            return pay_call(*(("bob", 5) if request.turn == 0 else ("mallory", 1_000_000)))

        return ModelReply(calls=(ToolCall(id="call_0", name="look"),)) if request.turn < 12 else "Done."

    executor = CrewExecutor(
        Agent("clerk", model=ScriptedProvider(reply), tools=[pay, look]), store=store, max_messages_per_request=6
    )
    first = await executor.execute("Pay bob 5.", run_id="r")
    old = first.pauses[0].id
    second = await executor.resume("r", {old: True})
    assert (second.stop_reason, paid) == ("paused", [("bob", 5)])
    assert second.pauses[0].id != old

    with pytest.raises(UnknownPause, match="no pending pause"):
        await executor.resume("r", {old: True})

    assert paid == [("bob", 5)]
    done = await executor.resume("r", {second.pauses[0].id: False})
    assert (done.output, paid) == ("Done.", [("bob", 5)])


@pytest.mark.parametrize("answer", ["yes", "Y", "OK!", "run again"])
async def test_text_that_looks_like_an_approval_is_refused(answer: str) -> None:
    """A text is the reason of a refusal; one that looks like a yes is not taken for either."""

    @tool(approval="always")
    async def pay() -> str:
        """Pay."""
        return "paid"

    executor = CrewExecutor(Agent("clerk", model=ScriptedProvider(call("pay"), "Done."), tools=[pay]))
    paused = await executor.execute("Pay.", run_id="r")

    with pytest.raises(InvalidInput, match="ambiguous: pass True"):
        await executor.resume("r", {paused.pauses[0].id: answer})

    assert (await executor.resume("r", {paused.pauses[0].id: True})).output == "Done."


async def test_input_pauses_have_different_ids(store: CheckedStore) -> None:
    """An answer to an earlier question is not accepted for a later one."""
    agent = Agent("a", model=ScriptedProvider("Which account?", "Which amount?", "Done."), wait_for_signal=True)
    executor = CrewExecutor(agent, store=store)
    first = await executor.execute("Pay.", run_id="r")
    second = await executor.resume("r", {first.pauses[0].id: "17"})

    with pytest.raises(UnknownPause):
        await executor.resume("r", {first.pauses[0].id: "17"})

    assert second.pauses[0].id != first.pauses[0].id


async def test_idempotency_keys_differ_between_runs_calls_and_agents() -> None:
    """A service that drops repeated keys drops no payment, although the provider's call ids are all the same."""
    keys: list[str] = []

    @tool
    async def pay(context: Context[None], to: str, amount: int) -> str:
        """Pay."""
        keys.append(context.idempotency_key)
        return context.call_id

    def script() -> ScriptedProvider:
        return ScriptedProvider(pay_call("bob", 5), pay_call("bob", 5), "Paid.")

    clerk = Agent("clerk", model=script(), tools=[pay])
    boss = Agent(
        "boss",
        model=ScriptedProvider(
            ModelReply(
                calls=tuple(ToolCall(id="same", name="ask_clerk", arguments='{"request": "Pay."}') for _ in "ab")
            ),
            "Done.",
        ),
        tools=[clerk.as_tool()],
    )
    executor = CrewExecutor(clerk)
    await executor.execute("Pay bob 5.")
    await executor.execute("Pay bob 5.")
    await CrewExecutor(boss).execute("Have it paid.", run_id="r")
    assert len(keys) == len(set(keys)) == 8
    assert sorted(keys[4:]) == ["r/1.0:1.0", "r/1.0:3.0", "r/1.1:1.0", "r/1.1:3.0"]
