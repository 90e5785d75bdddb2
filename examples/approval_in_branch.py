"""Two branches pause for an approval while a third one finishes; they are answered one at a time, in any order."""

import asyncio

from crew import Agent, Crew, CrewExecutor, Parallel, ScriptedProvider, call, tool

paid: list[str] = []


@tool(approval=lambda to, amount: amount > 100)
async def pay(to: str, amount: int) -> str:
    """Pay a bill.

    Args:
        to: The recipient.
        amount: The amount in euros.
    """
    paid.append(to)
    return f"{amount} paid to {to}."


def clerk(name: str, amount: int) -> Agent:
    script = ScriptedProvider(call("pay", to=name, amount=amount), f"Settled with {name}.")
    return Agent(f"clerk_{name}", instructions="Pay the bill.", model=script, tools=[pay])


clerks = [clerk("anna", 50), clerk("ben", 500), clerk("cleo", 900)]
crew = Crew("bills", agents=clerks, groups=[Parallel("bills", branches=clerks)], entry="bills")


async def main() -> None:
    executor = CrewExecutor(crew)
    result = await executor.execute("Pay the bills.")
    assert result.stop_reason == "paused"
    assert paid == ["anna"], "50 needs no approval; the other payments wait"

    for pause in reversed(result.pauses):
        print(pause.text)
        answer = True if "cleo" in pause.text else "Ben has been paid in cash."
        result = await executor.resume(result.run_id, {pause.id: answer})

    print(result.output)
    assert result.stop_reason == "completed"
    assert paid == ["anna", "cleo"], "the finished branch did not run again"


if __name__ == "__main__":
    asyncio.run(main())
