"""The contract of every RunStore: derive a class and provide a `store`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from crew.errors import RunConflict, RunExists, UnknownRun
from crew.messages import Transcript, UserMessage
from crew.runs import AskModel, Finished, Limits, RunState, RunStore
from crew.runs.events import RunStarted


def state(run_id: str = "r", sequence: int = 1) -> RunState:
    """A small state."""
    message = UserMessage("hi \N{SLIGHTLY SMILING FACE}", id="m", time=1.5)
    return RunState(
        run_id=run_id,
        conversation_id=run_id,
        crew="c",
        agent="a",
        limits=Limits(),
        transcript=Transcript([message]),
        sequence=sequence,
    )


def event(sequence: int = 1) -> RunStarted:
    """A small event."""
    return RunStarted(run_id="r", agent="a", sequence=sequence, messages=(UserMessage("hi"),), tokens=(1,))


class RunStoreContract:
    """The interface has two methods."""

    @pytest.fixture
    def store(self) -> RunStore:
        raise NotImplementedError

    async def test_load_returns_the_newest_commit(self, store: RunStore) -> None:
        """The complete state, and its version."""
        await store.commit("r", 0, [event()], state())
        found = await store.load("r")
        assert found.state == state()
        assert found.version == 1
        await store.commit("r", 1, [event(2)], state(sequence=2))
        found = await store.load("r")
        assert (found.version, found.state.sequence) == (2, 2)

    async def test_run_id_can_be_used_once(self, store: RunStore) -> None:
        """Version 0 creates a run; a second creation is refused and changes nothing."""
        await store.commit("r", 0, [event()], state())

        with pytest.raises(RunExists):
            await store.commit("r", 0, [event()], state(sequence=9))

        assert (await store.load("r")).state.sequence == 1

    async def test_id_of_a_finished_run_stays_used(self, store: RunStore) -> None:
        """Also if the store drops finished runs."""
        await store.commit("r", 0, [event()], state())
        await store.commit("r", 1, [event(2)], replace(state(), next=Finished(stop_reason="completed")))

        with pytest.raises(RunExists):
            await store.commit("r", 0, [event()], state())

    async def test_commit_must_follow_the_newest_version(self, store: RunStore) -> None:
        """A commit on an older or a future version is a conflict and is not stored."""
        await store.commit("r", 0, [event()], state())
        await store.commit("r", 1, [event(2)], state(sequence=2))

        for version in (1, 3):
            with pytest.raises(RunConflict) as caught:
                await store.commit("r", version, [event(3)], state(sequence=3))

            assert (caught.value.expected, caught.value.found) == (version, 2)

        assert (await store.load("r")).state.sequence == 2

    async def test_unknown_run_is_an_error(self, store: RunStore) -> None:
        """For `load` and `commit`."""
        with pytest.raises(UnknownRun):
            await store.load("nobody")

        with pytest.raises(RunConflict):
            await store.commit("nobody", 4, [event()], state("nobody"))

    async def test_runs_are_independent(self, store: RunStore) -> None:
        """Two ids, two runs."""
        await store.commit("a", 0, [event()], state("a"))
        await store.commit("b", 0, [event()], state("b"))
        await store.commit("a", 1, [], state("a", sequence=5))
        assert (await store.load("b")).state == state("b")
        assert isinstance((await store.load("a")).state.next, AskModel)
