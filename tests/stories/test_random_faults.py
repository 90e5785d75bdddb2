"""Many crews on a server that fails a quarter of all requests: every run completes."""

import asyncio
from collections import Counter

import pytest

from crew import Agent, Crew, CrewExecutor, tool
from crew.interfaces import Provider
from crew.providers import Retrying, RetryPolicy
from tests.support.remote_providers import PROTOCOLS, no_sleep, provider, refusal_reasons, run
from tests.wire import Fault, WireServer, chance, tool_loop

AGENTS, STEPS = 3, 5
STORM = {
    Fault("rate_limited", retry_after="0"): 0.10,
    Fault("server_error"): 0.05,
    Fault("overloaded"): 0.05,
    Fault("reset"): 0.03,
    Fault("cut"): 0.03,
}


def crew_on(models: list[Provider], done: Counter[tuple[int, str, int]], number: int) -> Crew:
    """Agents that each take five steps and pass control."""
    agents: list[Agent] = []

    for place, model in enumerate(models):
        name = f"agent{place}"

        @tool(name="step")
        async def step(n: int, name: str = name) -> str:
            """Go one step on."""
            done[number, name, n] += 1
            return f"step {n}"

        then = f"agent{place + 1}" if place + 1 < len(models) else None
        agents.append(Agent(name, instructions="Work.", model=model, tools=[step], then=then))

    return Crew("party", agents=agents)


async def run_crews(crews: int, streamed: bool) -> None:
    """So many concurrent crews on one server; their executors share the providers."""
    done: Counter[tuple[int, str, int]] = Counter()

    async with WireServer(tool_loop(STEPS), faults=chance(STORM, seed=7)) as server:
        policy = RetryPolicy(attempts=15, timeout=120.0)
        models = [
            Retrying(provider(server, protocol, "classic"), policy=policy, sleep=no_sleep) for protocol in PROTOCOLS
        ]

        async def one(number: int) -> str:
            result = await run(CrewExecutor(crew_on(list(models), done, number)), streamed=streamed)
            return str(result.output)

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(number)) for number in range(crews)]

        assert [task.result() for task in tasks] == ["done"] * crews
        assert not server.refused, refusal_reasons(server)
        assert len(server.faulted) > crews

    assert set(done.values()) == {1}
    assert len(done) == crews * AGENTS * STEPS


@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
async def test_twenty_crews_with_random_faults(streamed: bool) -> None:
    """All finish, and each effect of a tool happens once."""
    await run_crews(20, streamed)


@pytest.mark.soak
@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
async def test_three_hundred_crews_with_random_faults(streamed: bool) -> None:
    """The same, larger."""
    await run_crews(300, streamed)
