"""A tool asks the user twice while it runs; the run waits in a file, and another executor continues it."""

import asyncio
import tempfile
from pathlib import Path

from crew import Agent, Context, CrewExecutor, ScriptedProvider, call, tool

balances = {"checking": 120, "savings": 900}
sent: dict[str, str] = {}


@tool(asks=True)
async def transfer(amount: int, to: str, context: Context) -> str:
    """Transfer money to a person.

    Args:
        amount: The amount in euros.
        to: The recipient.
    """
    account = await context.ask_user("From which account?", choices=[*balances])

    if amount > balances[account]:
        answer = await context.ask_user(f"{account} has only {balances[account]}. Overdraw it?", choices=["yes", "no"])

        if answer == "no":
            return "Not done: the user does not want to overdraw the account."

    # The function runs again from its start after each answer: it acts last, and once for each key.
    sent.setdefault(context.idempotency_key, f"{amount} from {account} to {to}")
    return f"Sent {sent[context.idempotency_key]}."


def banker() -> Agent:
    script = ScriptedProvider(call("transfer", amount=200, to="Ben"), "Ben has his money.")
    return Agent("banker", instructions="Help with transfers.", model=script, tools=[transfer])


crew = banker()


async def main() -> None:
    answers = {"From which account?": "checking", "checking has only 120. Overdraw it?": "yes"}

    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "runs.db"

        async with CrewExecutor(banker(), store=store) as executor:
            result = await executor.execute("Send Ben 200.", run_id="transfer-1")

        while result.stop_reason == "paused":
            [pause] = result.pauses
            print(f"{pause.text} ({' or '.join(pause.choices)}) > {answers[pause.text]}")

            async with CrewExecutor(banker(), store=store) as executor:  # as another process would
                result = await executor.resume("transfer-1", {pause.id: answers[pause.text]})

    print(result.output)
    assert result.output == "Ben has his money."
    assert [*sent.values()] == ["200 from checking to Ben"]


if __name__ == "__main__":
    asyncio.run(main())
