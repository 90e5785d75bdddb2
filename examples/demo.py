"""A crew with tools, a handoff, three parallel branches and a join; its history is pruned several times.

`make demo` runs it offline. The history is limited to 12 messages; the run produces many more.
"""

import asyncio
import sys

from crew import Agent, Crew, CrewExecutor, Parallel, ScriptedProvider, call, tool
from crew.cli.terminal import event_line
from crew.runs.event_text import usage_text

LIMIT = 12


@tool(effect="read")
def read_page(page: int) -> str:
    """Read a page of the contract.

    Args:
        page: The page number.
    """
    return f"Page {page}: clause {page * 3} is about {('delivery', 'payment', 'liability')[page % 3]}."


@tool(effect="read")
async def check_clause(clause: int) -> str:
    """Check a clause against the company's rules.

    Args:
        clause: The clause number.
    """
    return f"Clause {clause} is in order."


# Scripted replies replace the models; for real ones write model="openai:gpt-5-mini" or "anthropic:claude-sonnet-4-5".
triage = Agent(
    "triage",
    instructions="Read the contract, then hand it to the panel.",
    model=ScriptedProvider(
        *(call("read_page", page=page) for page in range(1, 7)),
        [call("read_page", page=7), call("read_page", page=8), call("read_page", page=9)],
        call("transfer_to_panel"),
    ),
    tools=[read_page],
    handoffs=["panel"],
)
legal = Agent(
    "legal",
    instructions="Check the legal terms.",
    model=ScriptedProvider(call("check_clause", clause=9), call("check_clause", clause=27), "Legal: no objections."),
    tools=[check_clause],
)
finance = Agent(
    "finance", instructions="Check the payment terms.", model=ScriptedProvider("Finance: payable in 30 days.")
)
delivery = Agent(
    "delivery",
    instructions="Check the delivery dates.",
    model=ScriptedProvider(call("check_clause", clause=3), "Delivery: the dates can be kept."),
    tools=[check_clause],
)
editor = Agent(
    "editor", instructions="Summarize.", model=ScriptedProvider("Sign it: terms, payment and dates are in order.")
)
panel = Parallel("panel", branches=[legal, finance, delivery], then=editor)
crew = Crew("contract", agents=[triage, legal, finance, delivery, editor], groups=[panel])


async def main() -> None:
    """Run the crew and print its events."""
    async with (
        CrewExecutor(crew, max_messages_per_request=LIMIT) as executor,
        executor.execute_stream("Can we sign the contract?") as events,
    ):
        async for event in events:
            if line := event_line(event):
                print(line)

    result = events.result
    metrics = result.metrics
    print(f"\nAnswer: {result.output}")
    print(f"Spent: {usage_text(result.usage)}")
    print(
        f"History: {metrics.messages} of at most {metrics.limit} messages, pruned {metrics.prunings} times (branches "
        f"included). The transcript has all {len(result.transcript)} messages of the crew; each branch has its own."
    )
    assert result.output == "Sign it: terms, payment and dates are in order."
    assert metrics.prunings >= 1
    assert len(result.history) <= LIMIT
    assert result.history[0].role == "user"


if __name__ == "__main__":
    sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    asyncio.run(main())
