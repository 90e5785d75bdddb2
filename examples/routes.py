"""A writer and a critic take turns until the critic's reply holds a signal."""

import asyncio

from crew import Agent, Crew, CrewExecutor, Limits, Route, ScriptedProvider

writer = Agent(
    "writer",
    instructions="Write a haiku, better each time.",
    model=ScriptedProvider(lambda request: f"Draft {request.turn + 1}: old pond, frog leaps in, splash."),
    then="critic",  # after a plain reply the work goes to the critic
)
critic = Agent(
    "critic",
    instructions="Judge the haiku. Write [GOOD] when it is good enough.",
    model=ScriptedProvider("More silence, please.", "Fewer frogs.", "[ good ] That is it."),
    then=writer,
    routes=[Route("[GOOD]", to="printer")],  # read without minding case and white space
)
printer = Agent("printer", instructions="Print it.", model=ScriptedProvider("Printed: old pond, splash."))


async def main() -> None:
    crew = Crew("poets", agents=[writer, critic, printer])
    result = await CrewExecutor(crew).execute("A haiku on a frog.")
    print(result.output)
    assert result.output == "Printed: old pond, splash."
    assert result.metrics.by_agent["writer"].requests == 3

    # Without the signal the loop would go on for ever; a limit ends it with the work so far.
    short = await CrewExecutor(crew, limits=Limits(rounds=3)).execute("A haiku on a frog.")
    print(short.stop_reason, "-", short.output)
    assert short.stop_reason == "limit"
    assert short.output.startswith("Draft 2")


asyncio.run(main())
