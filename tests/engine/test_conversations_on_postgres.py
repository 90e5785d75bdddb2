"""Conversations in PostgreSQL: the tests of the other stores, and turns of several processes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import count

import pytest

from crew import Agent, CrewExecutor, RunResult, ScriptedProvider
from crew.errors import ConversationBusy, RunActive, RunConflict
from crew.store import PostgresStore

# These tests run here again, on PostgreSQL.
from tests.engine.test_conversations import (  # noqa: F401
    test_conversation_belongs_to_one_crew,
    test_conversations_are_separate,
    test_missing_last_agent_is_replaced_by_the_entry_with_a_warning,
    test_next_turn_starts_with_the_agent_that_answered_last,
    test_paused_turn_can_be_cancelled_by_the_next_one,
    test_paused_turn_refuses_the_next_one_with_its_pauses,
    test_plain_run_can_be_continued_as_a_conversation,
    test_recall_finds_messages_that_are_not_loaded,
    test_second_turn_at_the_same_time_is_refused,
    test_stream_and_sync_continue_conversations_too,
    test_threads_wait_for_each_other,
    test_turn_after_a_failed_one_continues_its_committed_messages,
    test_turn_after_an_interrupted_one_continues_its_committed_messages,
    test_turn_continues_the_stored_conversation,
    test_turn_that_lost_a_race_is_not_stored,
    test_waiting_turns_follow_each_other_in_order,
)
from tests.support.postgres import Postgres, PostgresUnavailable, running_postgres, running_proxy
from tests.support.servers import server_missing

pytestmark = pytest.mark.servers

NUMBERS = count()


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    """A running server on a free port."""
    try:
        with running_postgres() as running:
            yield running
    except PostgresUnavailable as reason:
        server_missing("postgres", str(reason))


@pytest.fixture
def schema() -> str:
    return f"test_{next(NUMBERS)}"


@pytest.fixture
def store(server: Postgres, schema: str) -> Iterator[PostgresStore]:
    made = PostgresStore(server.url(), schema=schema)
    yield made
    made.close()


def chat(store: PostgresStore) -> CrewExecutor:
    return CrewExecutor(Agent("a", model=ScriptedProvider(lambda request: "Yes.")), store=store)


async def test_turns_of_many_processes_follow_each_other(server: Postgres, schema: str, store: PostgresStore) -> None:
    """Started at the same time: some are refused, and those that are stored have no gap and no fork."""
    stores = [store, *(PostgresStore(server.url(), schema=schema) for _ in range(6))]

    for number in range(5):
        turns = (chat(one).execute(f"Question {number}.", conversation="c") for one in stores)
        outcomes = await asyncio.gather(*turns, return_exceptions=True)
        # A turn whose owner has not taken its lease yet counts as interrupted: the next one closes it.
        assert {type(one) for one in outcomes} <= {RunResult, ConversationBusy, RunActive, RunConflict}

    runs = [info.run_id for info in await store.conversation("c")]
    states = [(await store.run(run_id)).state for run_id in runs]
    assert [one.parent_run for one in states] == ["", *runs[:-1]]
    assert [one.turn for one in states] == [*range(1, len(runs) + 1)]
    assert tuple(states[-1].transcript) == await store.transcript("c")

    for one in stores[1:]:
        one.close()


async def test_turn_reads_and_writes_a_constant_number_of_bytes(server: Postgres, schema: str) -> None:
    """However long the conversation is: only the messages that its history refers to are loaded."""
    async with running_proxy(server.port) as proxy:
        store = PostgresStore(server.url(proxy.port), schema=schema, pool_size=1)
        executor = CrewExecutor(
            Agent("a", model=ScriptedProvider(lambda request: "Yes. " * 20)), store=store, max_messages_per_request=6
        )
        sizes: list[int] = []

        for number in range(60):
            before = proxy.bytes
            await executor.execute(f"Question {number}.", conversation="c")
            sizes.append(proxy.bytes - before)

        assert sum(sizes[50:]) < 1.15 * sum(sizes[15:25])
        assert len(await store.transcript("c")) == 120
        await asyncio.to_thread(store.close)
