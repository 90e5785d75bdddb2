"""Tool loops of hundreds of steps on every protocol: nothing is refused, whatever was pruned."""

import json

import pytest

from crew import CrewExecutor, Limits
from tests.providers.ways import ERAS, PROTOCOLS, provider, run, said, thinking, worker
from tests.wire import Era, Model, Protocol, WireServer, tool_loop


async def try_steps(steps: int, protocol: Protocol, era: Era, *, streamed: bool, thinks: bool) -> None:
    """One run of so many steps; some of them call two tools at once."""
    brain = tool_loop(steps, width=2 if thinks else 1, thinking="Let me see." if thinks else None)

    async with WireServer(brain, model=Model(era=era), keep=3) as server:
        settings = thinking(protocol, era) if thinks else None
        limits = Limits(rounds=steps + 2)
        executor = CrewExecutor(worker(provider(server, protocol, era), settings), limits=limits)
        result = await run(executor, streamed=streamed)

        assert result.output == "done"
        assert not server.stats()["refused"], said(server)
        assert server.count == steps // (2 if thinks else 1) + 1

        if thinks and (protocol == "messages" or (protocol == "responses" and era == "modern")):
            last = json.loads(server.requests[-1].raw)
            wire = json.dumps(last)
            assert ('"signature"' if protocol == "messages" else '"encrypted_content"') in wire, "thinking goes back"

            if protocol == "messages":
                assert last["thinking"]["type"] != "disabled"


@pytest.mark.parametrize("thinks", [False, True], ids=["plainly", "thinking"])
@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_three_hundred_steps_and_nothing_refused(
    protocol: Protocol, era: Era, streamed: bool, thinks: bool
) -> None:
    """Every request of a long tool loop is one that the service accepts, before and after each pruning."""
    await try_steps(300, protocol, era, streamed=streamed, thinks=thinks)


@pytest.mark.soak
@pytest.mark.parametrize("thinks", [False, True], ids=["plainly", "thinking"])
@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_thousand_steps_and_nothing_refused(protocol: Protocol, era: Era, streamed: bool, thinks: bool) -> None:
    """The same, longer."""
    await try_steps(1000, protocol, era, streamed=streamed, thinks=thinks)
