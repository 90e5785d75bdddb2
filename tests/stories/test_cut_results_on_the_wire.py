"""Results that are too large for the window, on the bytes that a strict server received."""

from __future__ import annotations

import re

import pytest

from crew import Agent, CrewExecutor, tool
from tests.support.remote_providers import PROTOCOLS, provider
from tests.wire import Model, Protocol, WireServer, tool_loop


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_cut_result_is_accepted_and_its_bytes_hold_still(protocol: Protocol) -> None:
    """A model whose window was not known refuses the whole result; the cut one is sent the same way from then on."""
    ran: list[int] = []

    @tool(name="step", max_output_chars=10**9)
    async def large_step(n: int) -> str:
        """Take one step."""
        ran.append(n)
        return f"step {n} " + "It left a note behind. " * (9_000 if n == 1 else 1)

    async with WireServer(tool_loop(3), model=Model(era="modern", window=20_000)) as server:
        agent = Agent("worker", model=provider(server, protocol), tools=[large_step], max_input_tokens=200_000)
        result = await CrewExecutor(agent).execute("Go.")
        assert {request.rule for request in server.refused} == {"window"}
        sent = [request.raw for request in server.requests if request not in server.refused]

    assert (result.output, ran) == ("done", [1, 2, 3])
    shown = re.findall(rb"step 1 It left.*?characters cut.*?note behind\. ", b"\n".join(sent))
    assert len(shown) == 3
    assert len(set(shown)) == 1
    assert 2_000 <= len(shown[0]) < 100_000
