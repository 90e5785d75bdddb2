"""The replay of a live run under its own policy and prices costs what the service billed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from crew import simulate
from crew.history import HeadTail, MaskToolResults, Rolling, Truncate, Unbounded, chain
from crew.interfaces import Policy
from crew.messages import AssistantMessage
from crew.simulator import Prices, Recording, read_recording
from tests.support.recorded_crews import (
    RecordedAnswers,
    TranscriptName,
    load_transcript,
    recorded_crew,
    run_recorded,
)
from tests.support.remote_providers import provider
from tests.wire import Model, Protocol, WireServer

PRICES: dict[Protocol, Prices] = {
    "chat": Prices(input=1.25, output=10, cache_read=0.125, cache_write=1.25, cache_step=128),
    "messages": Prices(),
}
DENSE = Model(era="modern", dense=True, factor=1.2)
MASKED = chain(MaskToolResults(keep_recent=10), Rolling(limit=100))
CASES: list[tuple[TranscriptName, Policy]] = [
    ("coding", Rolling()),
    ("coding", Unbounded()),
    ("coding", MASKED),
    ("coding", Truncate(threshold=0.04, target=0.02)),
    ("support", Rolling(limit=25)),
    ("support", HeadTail(max_messages=40, preserve_last_n=10)),
    ("research", Rolling(limit=25)),
]


async def live_run(name: TranscriptName, protocol: Protocol, policy: Any) -> tuple[Recording, float]:
    """The recording of a live run, and what the server billed for it."""
    transcript = load_transcript(name)
    answers = RecordedAnswers(transcript)

    async with WireServer(answers, model=DENSE, keep=1) as server:
        crew = recorded_crew(name, answers, provider(server, protocol))
        result = await run_recorded(crew, transcript, history=policy)
        return read_recording(result), float(server.account.total)


@pytest.mark.parametrize("protocol", PRICES)
@pytest.mark.parametrize(("name", "policy"), CASES, ids=lambda case: getattr(case, "name", case))
async def test_replay_under_its_own_policy_costs_what_was_billed(
    name: TranscriptName, policy: Policy, protocol: Protocol
) -> None:
    """Within 2 %, from the recording alone: it holds the bills of instructions, tools, messages and replies."""
    recording, billed = await live_run(name, protocol, policy)
    row = simulate(recording, {"same": policy}, PRICES[protocol]).rows[0]
    assert row.cost == pytest.approx(billed, rel=0.02)
    assert sum(bill.input_tokens for bill in row.billed) == pytest.approx(_billed_tokens(recording), rel=0.001)


def _billed_tokens(recording: Recording) -> int:
    messages = [*recording.messages, *(message for branch in recording.branches for message in branch.transcript)]
    manifests = [m.manifest for m in messages if isinstance(m, AssistantMessage) and m.manifest]
    return sum(manifest.tokens_billed or 0 for manifest in manifests)


async def test_replay_under_another_policy_costs_what_a_live_run_does(tmp_path: Path) -> None:
    """Bills of one policy predict those of another, also after the recording was saved; `fixed_tokens` replaces the
    recorded size of instructions and tools."""
    recording, _ = await live_run("coding", "messages", Unbounded())
    _, billed = await live_run("coding", "messages", MASKED)
    recording.save(tmp_path / "run.json")
    row = simulate(tmp_path / "run.json", {"masked": MASKED}).rows[0]
    assert row.cost == pytest.approx(billed, rel=0.03)
    larger = simulate(recording, {"masked": MASKED}, fixed_tokens=5_000).rows[0]
    assert larger.tokens[0] > 5_000 > row.tokens[0]


def test_every_round_of_a_group_is_replayed() -> None:
    """Four rounds of three branches with 25 requests each, and five requests of the other agents."""
    row = simulate(load_transcript("research"), ["rolling"]).rows[0]
    assert len(row.billed) == 4 * 3 * 25 + 5
