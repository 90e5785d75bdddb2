"""A support crew for `make serve`: tools, a handoff, parallel checks, an approval, and enough messages to be pruned.

Scripted replies replace the models, so that it needs no key. `crew serve examples/support.py` serves it over HTTP.
"""

import asyncio
import re

from crew import Agent, Crew, CrewExecutor, Parallel, ScriptedProvider, call, tool
from crew.interfaces import ModelRequest
from crew.messages import UserMessage
from crew.providers.scripted import ScriptLine

LIMIT = 14
TOPICS = ("delivery", "invoice", "warranty", "return", "payment")


@tool(effect="read")
async def lookup_order(order: int) -> str:
    """Find an order.

    Args:
        order: The number of the order.
    """
    await asyncio.sleep(0.05)
    return f"Order {order}: one coffee grinder, 80 euros, delivered on 3 May, paid by card."


@tool(effect="read")
async def search_tickets(topic: str) -> str:
    """Search the customer's earlier tickets.

    Args:
        topic: What the tickets are about.
    """
    await asyncio.sleep(0.05)
    return f"Two tickets about {topic}: the customer was polite, and each was closed within a day."


@tool(effect="read")
async def check_policy(rule: str) -> str:
    """Look up a rule of the shop.

    Args:
        rule: The name of the rule.
    """
    await asyncio.sleep(0.05)
    return f"The rule for {rule}: money is paid back within 30 days, without questions below 100 euros."


@tool(approval=True)
async def refund(order: int, euros: int) -> str:
    """Pay money back.

    Args:
        order: The number of the order.
        euros: The amount.
    """
    return f"{euros} euros were paid back for order {order}."


def order_number(request: ModelRequest) -> int:
    """The number in the customer's newest message that names one; 17 if there is none."""
    texts = (message.text for message in reversed(request.messages) if isinstance(message, UserMessage))
    return next((int(found[1]) for text in texts if (found := re.search(r"order (\d{1,6})", text))), 17)


def find_order(request: ModelRequest) -> ScriptLine:
    return call("lookup_order", order=order_number(request))


def pay_back(request: ModelRequest) -> ScriptLine:
    return call("refund", order=order_number(request), euros=80)


def answer(request: ModelRequest) -> ScriptLine:
    """The last line answers every further turn of a conversation."""
    return (
        f"Hello,\n\nyour order {order_number(request)} was delivered on 3 May, so the money is paid back in full.\n"
        "You will see 80 euros on your card within three days.\n\nKind regards,\nyour support crew"
    )


def follow_up(request: ModelRequest) -> ScriptLine:
    return f"Is there anything else that I can do for order {order_number(request)}?"


triage = Agent(
    "triage",
    instructions="Find the order and the customer's earlier tickets, then hand over to the checks.",
    model=ScriptedProvider(
        find_order, *(call("search_tickets", topic=topic) for topic in TOPICS), call("transfer_to_checks"), follow_up
    ),
    tools=[lookup_order, search_tickets],
    handoffs=["checks"],
)
legal = Agent(
    "legal",
    instructions="Check the shop's rules.",
    model=ScriptedProvider(
        call("check_policy", rule="refunds"), lambda request: "Legal: the customer is entitled to it."
    ),
    tools=[check_policy],
)
finance = Agent(
    "finance",
    instructions="Check the payment.",
    model=ScriptedProvider(find_order, lambda request: "Finance: 80 euros were paid by card."),
    tools=[lookup_order],
)
writer = Agent(
    "writer",
    instructions="Pay the money back, then answer the customer.",
    model=ScriptedProvider(pay_back, answer),
    tools=[refund],
)
checks = Parallel("checks", branches=[legal, finance], then=writer)
crew = Crew("support", agents=[triage, legal, finance, writer], groups=[checks])


async def main() -> None:
    """Run the crew twice at the same time; each run waits for an approval."""
    async with CrewExecutor(crew, max_messages_per_request=LIMIT) as executor:
        results = await asyncio.gather(*(executor.execute(f"Please pay order {n} back.") for n in (3, 4)))

        for result in results:
            assert result.stop_reason == "paused"
            [pause] = result.pauses
            print(pause.text)
            done = await executor.resume(result.run_id, {pause.id: True})
            print(f"\n{done.output}\n")
            assert f"order {pause.arguments['order']}" in done.output
            assert done.metrics.prunings >= 1
            assert len(done.history) <= LIMIT


if __name__ == "__main__":
    asyncio.run(main())
