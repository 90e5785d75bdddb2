"""A planner asks two specialists as if they were tools: they are called, work by themselves, and return."""

import asyncio

from crew import Agent, CrewExecutor, ScriptedProvider, call, tool


@tool(effect="read")
async def timetable(town: str) -> str:
    """When trains leave.

    Args:
        town: Where to.
    """
    return f"To {town}: 9:10, 11:40."


trains = Agent(
    "trains",
    instructions="You know every train.",
    model=ScriptedProvider(call("timetable", town="Basel"), "Take the one at 9:10."),
    tools=[timetable],
)
hotels = Agent("hotels", instructions="You know every hotel.", model=ScriptedProvider("The Anchor has a room."))
planner = Agent(
    "planner",
    instructions="Plan the journey.",
    model=ScriptedProvider(
        [call("ask_trains", request="Which train to Basel?"), call("ask_hotels", request="A room in Basel?")],
        "Take the 9:10 and sleep at the Anchor.",
    ),
    tools=[trains.as_tool(), hotels.as_tool(description="Finds a bed.")],
)


async def main() -> None:
    result = await CrewExecutor(planner).execute("I have to be in Basel tomorrow.")
    print(result.output)

    for branch in result.branches:
        print(f"  {branch.agent}: {branch.output} ({branch.usage.requests} requests)")

    assert result.output == "Take the 9:10 and sleep at the Anchor."
    assert [branch.agent for branch in result.branches] == ["hotels", "trains"], "in the order in which they ended"
    # The planner's history holds two answers; how the specialists came to them stays with them.
    assert len(result.history) == 4
    assert result.usage.requests == 5


asyncio.run(main())
