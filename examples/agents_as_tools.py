"""A planner calls two specialist agents as tools; each returns its answer to the planner."""

import asyncio

from crew import Agent, CrewExecutor, ScriptedProvider, call, tool


@tool(effect="read")
async def timetable(town: str) -> str:
    """List the trains to a town.

    Args:
        town: The destination.
    """
    return f"To {town}: 9:10, 11:40."


trains = Agent(
    "trains",
    instructions="Find trains.",
    model=ScriptedProvider(call("timetable", town="Basel"), "Take the one at 9:10."),
    tools=[timetable],
)
hotels = Agent("hotels", instructions="Find hotels.", model=ScriptedProvider("The Anchor has a free bed."))
planner = Agent(
    "planner",
    instructions="Plan the journey.",
    model=ScriptedProvider(
        [call("ask_trains", request="Which train to Basel?"), call("ask_hotels", request="Which hotel in Basel?")],
        "Take the 9:10 and sleep at the Anchor.",
    ),
    tools=[trains.as_tool(), hotels.as_tool(description="Find a hotel.")],
)


async def main() -> None:
    result = await CrewExecutor(planner).execute("I have to be in Basel tomorrow.")
    print(result.output)

    for branch in result.branches:
        print(f"  {branch.agent}: {branch.output} ({branch.usage.requests} requests)")

    assert result.output == "Take the 9:10 and sleep at the Anchor."
    assert [branch.agent for branch in result.branches] == ["hotels", "trains"], "in the order in which they finished"
    # The planner's history contains only the answers; the specialists' own messages are in result.branches.
    assert len(result.history) == 4
    assert result.usage.requests == 5


if __name__ == "__main__":
    asyncio.run(main())
