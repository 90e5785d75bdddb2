"""Masks and cuts that are due close together change the start of a request once."""

from __future__ import annotations

from itertools import pairwise

import pytest

from crew import Agent, CrewExecutor, Limits, ScriptedProvider, call, simulate, tool
from crew.history import MaskToolResults, Rolling, chain
from crew.interfaces import ModelRequest, Policy
from crew.messages import OMITTED, AssistantMessage, Manifest, ToolMessage
from crew.simulator import Recording
from tests.support.recorded_crews import load_transcript

STEPS = 90


@tool(effect="read")
def read(part: int) -> str:
    """Read a part."""
    return f"Part {part}: " + "the words of this part of the report. " * 8


async def run(history: Policy | None = None, own: Policy | None = None) -> tuple[list[Manifest], list[int]]:
    """The manifests of a run, and the number of readable results in each of its requests."""
    readable: list[int] = []

    def line(request: ModelRequest) -> object:
        results = [r for m in request.messages if isinstance(m, ToolMessage) for r in m.results]
        readable.append(sum(result.text != OMITTED for result in results))
        return call("read", part=request.turn) if request.turn < STEPS else "Done."

    agent = Agent("reader", model=ScriptedProvider(line), tools=[read], history=own)
    executor = CrewExecutor(agent, history=history or "unbounded", limits=Limits(rounds=None))
    result = await executor.execute("Read it all.")
    messages = [message for message in result.transcript if isinstance(message, AssistantMessage)]
    return [message.manifest for message in messages if message.manifest], readable


def breaks(manifests: list[Manifest]) -> list[int]:
    """The numbers of the requests whose start changed."""
    return [manifest.turn for manifest in manifests[1:] if manifest.moved_by]


def test_masks_do_not_make_a_pruned_run_more_expensive() -> None:
    """In a run of 55 requests with 50 messages at most, masks and cuts break the prefix three times, as cuts alone
    do; before, six times, and the run cost a tenth more than without masks."""
    coding = load_transcript("coding").messages
    recording = Recording(messages=(*coding[:110], coding[-1]))
    policies = {"rolling": Rolling(), "masked": chain(MaskToolResults(keep_recent=10), Rolling())}
    rolling, masked = simulate(recording, policies, fixed_tokens=1_500).rows
    assert len(masked.billed) == len(rolling.billed) == 56
    assert masked.prefix_breaks == rolling.prefix_breaks == 3
    assert masked.cost <= 0.95 * rolling.cost
    assert masked.valid == 56


@pytest.mark.parametrize(("keep_recent", "limit"), [(12, 50), (6, 26), (4, 18), (7, 30), (10, 100)])
async def test_no_batch_of_masks_comes_right_before_or_after_a_cut(keep_recent: int, limit: int) -> None:
    """Two changes of the prefix are at least three requests apart, for a policy of the executor and of an agent."""
    policy = chain(MaskToolResults(keep_recent=keep_recent), Rolling(limit=limit))

    for own in (False, True):
        manifests, readable = await run(None if own else policy, policy if own else None)
        assert breaks(manifests)
        assert min(after - before for before, after in pairwise(breaks(manifests))) >= 3
        assert max(readable) < 3 * keep_recent
        assert min(readable[STEPS // 2 :]) >= min(keep_recent, limit // 4)


async def test_a_cut_masks_all_but_the_newest_results() -> None:
    """The start of the request changes anyway, so masks cost nothing more."""
    manifests, readable = await run(chain(MaskToolResults(keep_recent=6), Rolling(limit=60, prune_to=40)))
    cuts = [manifest.turn for manifest in manifests if manifest.removed]
    assert len(cuts) > 3
    assert {readable[turn] for turn in cuts} == {6}


async def test_explicit_max_readable_does_not_wait_for_a_cut() -> None:
    """A number that is set explicitly holds in every request."""
    _, readable = await run(chain(MaskToolResults(keep_recent=10, max_readable=15), Rolling(limit=50)))
    assert max(readable) == 15


async def test_nothing_is_masked_with_a_cut_if_masking_is_off() -> None:
    """`keep_recent=0` keeps all results readable."""
    _, readable = await run(chain(MaskToolResults(keep_recent=0), Rolling(limit=30)))
    assert max(readable) == 14
