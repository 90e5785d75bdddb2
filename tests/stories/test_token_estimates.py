"""Token estimates against bills, on the shipped transcripts and a server that bills as the services document it."""

from __future__ import annotations

from functools import cache
from statistics import median, quantiles

import pytest

from crew.history import ESTIMATOR
from crew.messages import AssistantMessage, Manifest
from tests.support.recorded_crews import (
    TRANSCRIPTS,
    RecordedAnswers,
    TranscriptName,
    load_transcript,
    recorded_crew,
    run_recorded,
)
from tests.support.remote_providers import PROTOCOLS, provider, refusal_reasons
from tests.wire import Model, Protocol, WireServer

DOCUMENTED = Model(era="modern")
OTHER_MODEL = Model(era="modern", dense=True, factor=1.2, tool_prompts=(530, 281))
CASES = [*((name, protocol, DOCUMENTED) for name in TRANSCRIPTS for protocol in PROTOCOLS)]
CASES += [(name, "messages", OTHER_MODEL) for name in TRANSCRIPTS]


@cache
def _known() -> dict[tuple[TranscriptName, Protocol, Model], list[Manifest]]:
    return {}


async def manifests(name: TranscriptName, protocol: Protocol, model: Model) -> list[Manifest]:
    """The manifests of a live run without a tokenizer, in the order of the requests of each agent; run once."""
    if (name, protocol, model) in _known():
        return _known()[name, protocol, model]

    recording = load_transcript(name)
    answers = RecordedAnswers(recording)

    async with WireServer(answers, model=model, keep=1) as server:
        crew = recorded_crew(name, answers, provider(server, protocol))
        result = await run_recorded(crew, recording, counter=ESTIMATOR)
        assert not server.stats()["refused"], refusal_reasons(server)

    messages = [*result.transcript, *(message for branch in result.branches for message in branch.transcript)]
    found = [m.manifest for m in messages if isinstance(m, AssistantMessage) and m.manifest is not None]
    assert len(found) == {"coding": 151, "support": 83, "research": 305}[name]
    return _known().setdefault((name, protocol, model), found)


def error(manifest: Manifest) -> float:
    assert manifest.tokens_billed
    return abs(manifest.tokens_estimated / manifest.tokens_billed - 1)


@pytest.mark.parametrize(("name", "protocol", "model"), CASES)
async def test_estimates_after_the_first_round_are_close_to_bills(
    name: TranscriptName, protocol: Protocol, model: Model
) -> None:
    """From an agent's second request on: at most a tenth in the median, and a quarter in 95 of 100 requests."""
    errors = [error(manifest) for manifest in await manifests(name, protocol, model) if manifest.turn >= 1]
    assert median(errors) <= 0.10
    assert quantiles(errors, n=20)[-1] <= 0.25


@pytest.mark.parametrize("protocol", ["chat", "messages"])
async def test_first_bill_corrects_the_estimates_of_other_agents(protocol: Protocol) -> None:
    """A model that counts more than expected for one agent counts more for all: its first bill is wrong by a quarter,
    the first requests of its other agents by at most an eighth."""
    first, *others = await manifests("research", protocol, Model(era="modern", factor=1.35))
    assert error(first) > 0.2
    assert max(map(error, others)) <= 0.125


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("name", TRANSCRIPTS)
async def test_first_estimate_is_close_to_the_documented_bill(name: TranscriptName, protocol: Protocol) -> None:
    """Instructions, tools and the text that a service adds for tools are counted as documented: within a tenth."""
    assert error((await manifests(name, protocol, DOCUMENTED))[0]) <= 0.10
