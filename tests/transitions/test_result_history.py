"""`history=result.history` passes on the messages that wait for a summary, as `history=result` does."""

import pickle
from typing import Any

import pytest

from crew import CrewExecutor, LastNMessages, Limits, RequestParameters, WholeHistory
from crew.history.policies import Checkpoint, Summarize
from crew.messages import AssistantMessage, UserMessage
from crew.runs import RunResult
from tests.support.messages import represented_ids, summaries_in, total_size
from tests.support.providers import ReplyingProvider
from tests.support.runs import solo
from tests.support.stores import CheckedStore

WORDS = "There is a good deal to say about this, and it takes some words to say it well enough."


async def converse(model: ReplyingProvider, turns: int, *, pass_result: bool, **options: Any) -> list[RunResult]:
    """The results of a conversation that continues from each result, or from its history only."""
    executor = CrewExecutor(solo(model), **options)
    results: list[RunResult] = []
    given: Any = None

    for turn in range(turns):
        result = await executor.execute(f"Question {turn}. {WORDS}", history=given, run_id=f"turn-{turn}")
        given = result if pass_result else result.history
        results.append(result)

    return results


def failing_first(failures: int) -> ReplyingProvider:
    """A model whose first summaries fail."""
    model = ReplyingProvider(lambda r: f"Answer. {WORDS}")
    model.summary = lambda r: RuntimeError("down") if len(model.summaries) <= failures else "What was said."
    return model


@pytest.mark.parametrize(
    "policy", [Summarize(limit=16), Checkpoint(trigger_at=20, keep_recent=4)], ids=lambda p: p.name
)
async def test_result_history_keeps_messages_that_wait_for_a_summary(policy: Any, store: CheckedStore) -> None:
    """Two summaries fail; later ones cover all messages from the start, and come as they do with `history=result`."""
    model, other = failing_first(2), failing_first(2)
    results = await converse(model, 30, pass_result=False, history=policy, store=store)
    await converse(other, 30, pass_result=True, history=policy)
    assert [request.purpose for request in model.requests] == [request.purpose for request in other.requests]
    assert [total_size(r.messages) for r in model.replies] == [total_size(r.messages) for r in other.replies]
    everything = [message for result in results for message in result.transcript]
    last = results[-1].history
    assert represented_ids([*last, *last.waiting], everything) >= {message.id for message in everything}


async def test_result_history_passes_evicted_messages_to_a_compression() -> None:
    """A run ends at a limit before its compression; the next one covers the messages that its bound evicted."""
    model = ReplyingProvider()
    kinds: tuple[Any, ...] = (UserMessage, AssistantMessage)
    before = [kinds[n % 2](f"Message {n}. {WORDS}", id=f"m{n}") for n in range(60)]
    parameters = RequestParameters(compression_strategy=LastNMessages(6))
    stopped = CrewExecutor(solo(model), limits=Limits(rounds=0))
    first = await stopped.execute("And now?", history=before, parameters=parameters)
    assert (first.stop_reason, len(first.history.waiting)) == ("limit", 36)
    result = await CrewExecutor(solo(model)).execute("Well?", history=first.history, parameters=parameters)
    shown = represented_ids(model.replies[0].messages, result.transcript)
    assert shown >= {message.id for message in before}
    assert not result.history.waiting


async def test_waiting_messages_cause_no_summary_without_a_policy_for_it() -> None:
    """They go with the history to an executor that makes no summaries, and from there to the next run."""
    model = failing_first(100)
    result = (await converse(model, 20, pass_result=False, history=Summarize(limit=12)))[-1]
    waiting = {message.id for message in result.history.waiting}
    plain = ReplyingProvider()
    again = await CrewExecutor(solo(plain)).execute("And now?", history=result.history)
    assert len(waiting) >= 10
    assert not plain.summaries
    assert {message.id for message in again.history.waiting} == waiting


async def test_result_history_is_a_tuple_of_messages() -> None:
    """It equals a plain tuple. A list or a slice has the messages only; a pickled copy has the waiting ones too."""
    result = (await converse(failing_first(100), 12, pass_result=False, history=Summarize(limit=12)))[-1]
    copy = pickle.loads(pickle.dumps(result.history))
    assert result.history == tuple(result.history)
    assert type(result.history[1:]) is tuple
    assert (copy, copy.waiting) == (result.history, result.history.waiting)
    assert result.history.waiting
    assert not {message.id for message in result.history.waiting} & {message.id for message in result.history}


async def test_all_messages_covered_leaves_none_waiting() -> None:
    """A complete compression leaves nothing to pass on."""
    kinds: tuple[Any, ...] = (UserMessage, AssistantMessage)
    before = [kinds[n % 2](f"Message {n}. {WORDS}") for n in range(60)]
    parameters = RequestParameters(compression_strategy=WholeHistory())
    result = await CrewExecutor(solo(ReplyingProvider())).execute("Now?", history=before, parameters=parameters)
    assert len(summaries_in(result.history)) == 2
    assert result.history.waiting == ()
