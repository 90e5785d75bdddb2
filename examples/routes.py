"""A writer and a critic take turns until the critic's reply ends with a signal."""

import asyncio

from crew import Agent, Crew, CrewExecutor, Limits, Route, ScriptedProvider

writer = Agent(
    "writer",
    instructions="Write a haiku, better each time.",
    model=ScriptedProvider(lambda request: f"Version {request.turn + 1}: old pond, frog leaps in, splash."),
    then="critic",  # after each text reply, the critic runs
)
critic = Agent(
    "critic",
    instructions="Judge the haiku. End your reply with [GOOD] when it is good enough.",
    model=ScriptedProvider("More silence, please.", "Fewer frogs.", "That is it. [ good ]"),
    then=writer,
    routes=[Route("[GOOD]", to="printer")],  # case and white space are ignored
)
printer = Agent("printer", instructions="Print it.", model=ScriptedProvider("Printed: old pond, splash."))
crew = Crew("poets", agents=[writer, critic, printer])


async def main() -> None:
    result = await CrewExecutor(crew).execute("A haiku on a frog.")
    print(result.output)
    assert result.output == "Printed: old pond, splash."
    assert result.metrics.by_agent["writer"].requests == 3

    # Without the signal, a limit ends the loop; the result holds the work so far.
    short = await CrewExecutor(crew, limits=Limits(rounds=3)).execute("A haiku on a frog.")
    print(short.stop_reason, "-", short.output)
    assert short.stop_reason == "limit"
    assert short.output.startswith("Version 2")


if __name__ == "__main__":
    asyncio.run(main())
