"""Guardrails: an input is refused, a call waits for a person, and a card number never reaches the caller.

The rules of a shop do not depend on what a model decides: functions check what goes in, what is called, and what comes
out. The instructions are written for each customer when the agent becomes active.
"""

import asyncio
import re

from crew import (
    Agent,
    Context,
    CrewExecutor,
    GuardedCall,
    NeedsApproval,
    Refused,
    Rewritten,
    ScriptedProvider,
    call,
    guardrail,
    tool,
)

CARD = re.compile(r"\b(?:\d{4}[ -]?){3}\d{4}\b")


@guardrail("input")
def on_topic(context: Context[str], text: str) -> Refused | None:
    """The clerk answers questions about orders, nothing else."""
    return None if "order" in text.lower() else Refused("I can help with your orders only.")


@guardrail("tool")
def large_refunds(context: Context[str], made: GuardedCall) -> NeedsApproval | None:
    """A person approves each refund of more than 100."""
    amount = made.arguments.get("amount", 0)
    return NeedsApproval(f"Refund {amount} to {context.deps}?") if made.name == "refund" and amount > 100 else None


@guardrail("output")
def hide_cards(context: Context[str], text: str) -> Rewritten | None:
    """No card number leaves the shop."""
    return Rewritten(CARD.sub("[card]", text)) if CARD.search(text) else None


@tool
def refund(order: str, amount: int) -> str:
    """Pay the price of an order back."""
    return f"Paid {amount} for {order} to card 4711 0815 4711 0815."


def instructions(context: Context[str]) -> str:
    """Stable for a customer, so that the prompt cache holds."""
    return f"You serve {context.deps}. Be brief."


async def main() -> None:
    """Three inputs: one is refused, one pauses, and its answer is rewritten."""
    model = ScriptedProvider(call("refund", order="A-7", amount=250), "I paid 250 to your card 4711 0815 4711 0815.")
    clerk = Agent(
        "clerk",
        instructions=instructions,
        description="Answers questions about orders.",
        model=model,
        tools=[refund],
        guardrails=[on_topic, large_refunds, hide_cards],
    )

    async with CrewExecutor(clerk) as executor:
        refused = await executor.execute("Write me a poem.", deps="Ada")
        print(f"refused: {refused.stop_text}")
        assert (refused.stop_reason, refused.usage.requests) == ("stopped", 0)

        paused = await executor.execute("Refund my order A-7.", deps="Ada")
        print(f"waiting: {paused.pauses[0].text}")
        done = await executor.resume(paused.run_id, {paused.pauses[0].id: True}, deps="Ada")
        print(f"answer: {done.output}")
        assert done.output == "I paid 250 to your card [card]."


if __name__ == "__main__":
    asyncio.run(main())
