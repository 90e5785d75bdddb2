"""Triage hands off to billing, billing to the writer; each handoff chooses which messages the next agent sees."""

import asyncio

from pydantic import BaseModel

from crew import Agent, Crew, CrewExecutor, ScriptedProvider, call, handoff, tool


class Ticket(BaseModel):
    """The facts that triage passes to billing."""

    order_id: str


@tool(effect="read")
async def lookup_order(order_id: str) -> str:
    """Look up an order.

    Args:
        order_id: The order number.
    """
    return f"Order {order_id}: paid, left the warehouse on Monday."


writer = Agent(
    "writer",
    instructions="Answer the user in one friendly sentence.",
    model=ScriptedProvider("Your order 17 is on its way!"),
)
billing = Agent(
    "billing",
    instructions="Look up orders, then hand off to the writer.",
    model=ScriptedProvider(call("lookup_order", order_id="17"), call("transfer_to_writer")),
    tools=[lookup_order],
    handoffs=[handoff(writer, history="last")],  # the writer sees only the last tool call and its result
)
triage = Agent(
    "triage",
    instructions="Hand off to the right agent.",
    model=ScriptedProvider(call("transfer_to_billing", order_id="17")),
    handoffs=[handoff(billing, payload=Ticket)],  # the model must pass the order number
)
crew = Crew("support", agents=[triage, billing, writer])


async def main() -> None:
    executor = CrewExecutor(crew)

    async with executor.execute_stream("Where is order 17?") as events:
        async for event in events:
            if event.kind == "handed_off":
                print(f"{event.agent} → {event.target}")

    result = events.result
    print(result.output)
    assert result.output == "Your order 17 is on its way!"
    assert result.agent == "writer"
    assert result.usage.requests == 4


if __name__ == "__main__":
    asyncio.run(main())
