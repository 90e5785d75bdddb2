"""Long tool loops in a small window on every protocol: pruning never causes a refused request."""

import json
from dataclasses import replace

import pytest

from crew import CrewExecutor, Limits
from crew.interfaces import ModelSettings
from tests.support.remote_providers import (
    ERAS,
    PROTOCOLS,
    provider,
    refusal_reasons,
    report_step,
    run,
    thinking,
    worker,
)
from tests.wire import Era, Model, Protocol, WireServer, tool_loop

WINDOW = 8_000
OUTPUT = 500


async def try_steps(steps: int, protocol: Protocol, era: Era, *, streamed: bool, thinks: bool) -> None:
    """One run of so many steps; some of them call two tools at once."""
    responder = tool_loop(steps, width=2 if thinks else 1, thinking="Let me see." if thinks else None)

    # What the model may write is part of its window, and so is what it may think.
    settings = replace(thinking(protocol, era) if thinks else ModelSettings(), max_output_tokens=OUTPUT)
    room = WINDOW - OUTPUT - (settings.thinking_tokens or 0)

    async with WireServer(responder, model=Model(era=era, window=WINDOW), keep=3) as server:
        made = worker(provider(server, protocol, era), settings, max_input_tokens=room)
        agent = replace(made, tools=[report_step])
        result = await run(CrewExecutor(agent, limits=Limits(rounds=steps + 2)), streamed=streamed)

        assert result.output == "done"
        assert result.metrics.by_policy["window"] > steps // 50, "the window is what cuts"
        assert not server.stats()["refused"], refusal_reasons(server)
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
async def test_no_request_of_300_steps_is_refused(protocol: Protocol, era: Era, streamed: bool, thinks: bool) -> None:
    """The service accepts every request, before and after each pruning."""
    await try_steps(300, protocol, era, streamed=streamed, thinks=thinks)


@pytest.mark.soak
@pytest.mark.parametrize("thinks", [False, True], ids=["plainly", "thinking"])
@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_no_request_of_1000_steps_is_refused(protocol: Protocol, era: Era, streamed: bool, thinks: bool) -> None:
    """As with 300 steps."""
    await try_steps(1000, protocol, era, streamed=streamed, thinks=thinks)
