"""The contract of every RunReader: derive a class and provide a `store` that is a RunStore too."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from crew import Agent, Crew, CrewExecutor, Parallel, RunError, RunResult, ScriptedProvider, call, tool
from crew.errors import InvalidInput, StoreError, UnknownRun
from crew.interfaces import ModelReply, ModelRequest
from crew.runs.events import Replied, RunStarted
from crew.runs.interfaces import Cursor, EventFollower, RunReader
from tests.support.providers import HangingProvider


@tool(effect="read")
async def look(place: str) -> str:
    """Look."""
    return f"found the blue bicycle in {place}"


def answer(request: ModelRequest) -> Any:
    return call("look", place="Utrecht") if request.messages[-1].role == "user" else f"Answer {request.turn}."


def executor(store: Any) -> CrewExecutor:
    return CrewExecutor(Agent("a", model=ScriptedProvider(answer), tools=[look]), store=store)


async def conversation(store: Any, turns: int, name: str = "r") -> list[RunResult]:
    """The results of a conversation, whose runs are r0, r1, …"""
    results: list[RunResult] = []
    crew = executor(store)

    for turn in range(turns):
        before = results[-1] if results else None
        results.append(await crew.execute(f"Question {turn}.", history=before, run_id=f"{name}{turn}"))

    return results


class RunReaderContract:
    """What a user reads is what happened, also of finished runs."""

    @pytest.fixture
    def store(self) -> Any:
        raise NotImplementedError

    async def test_store_is_a_reader(self, store: Any) -> None:
        """The Protocol is checked with `isinstance`."""
        assert isinstance(store, RunReader)

    async def test_finished_run_can_be_read(self, store: Any) -> None:
        """Its facts and its newest state, with the whole transcript."""
        [result] = await conversation(store, 1)
        record = await store.run("r0")
        assert record.state == result.state
        info = record.info
        assert (info.run_id, info.conversation_id, info.crew, info.agent) == ("r0", "r0", "a", "a")
        assert (info.status, info.messages) == ("completed", 4)
        assert info.created <= info.updated
        assert await store.info("r0") == info

    async def test_unknown_ids_are_refused(self, store: Any) -> None:
        """With `UnknownRun`; a conversation without runs is empty."""
        for read in (store.info, store.run, store.events, store.transcript, store.forget):
            with pytest.raises(UnknownRun, match="no run 'nothing', and no conversation with this id"):
                await read("nothing")

        assert await store.conversation("nothing") == ()

    async def test_runs_are_listed_newest_first_and_in_pages(self, store: Any) -> None:
        """By crew, status and conversation; each run is on one page."""
        await conversation(store, 3)
        await conversation(store, 2, "other")
        asks = CrewExecutor(Agent("b", model=ScriptedProvider("Which?"), wait_for_signal=True), store=store)
        await asks.execute("Go.", run_id="paused")
        assert [info.run_id for info in (await store.runs()).runs] == ["paused", "other1", "other0", "r2", "r1", "r0"]
        assert [info.run_id for info in (await store.runs(crew="b")).runs] == ["paused"]
        assert [info.run_id for info in (await store.runs(status="paused")).runs] == ["paused"]
        assert [info.run_id for info in (await store.runs(conversation="r0")).runs] == ["r2", "r1", "r0"]
        since = (await store.run("other1")).info.updated
        assert [info.run_id for info in (await store.runs(since=since)).runs] == ["paused", "other1"]
        pages, cursor = [], None

        while True:
            page = await store.runs(limit=4, cursor=cursor)
            pages.append([info.run_id for info in page.runs])
            cursor = page.cursor

            if cursor is None:
                break

        assert pages == [["paused", "other1", "other0", "r2"], ["r1", "r0"]]

    @pytest.mark.parametrize("wrong", [{"status": "done"}, {"limit": 0}, {"limit": -1}, {"cursor": "zzz"}])
    async def test_wrong_arguments_of_a_page_are_refused(self, store: Any, wrong: dict[str, Any]) -> None:
        """They can't match anything."""
        with pytest.raises(InvalidInput):
            await store.runs(**wrong)

    async def test_conversation_lists_its_runs_oldest_first(self, store: Any) -> None:
        """And its transcript is that of the newest run."""
        results = await conversation(store, 3)
        assert [info.run_id for info in await store.conversation("r0")] == ["r0", "r1", "r2"]
        assert await store.transcript("r2") == tuple(results[-1].transcript)
        assert await store.transcript("r1") == tuple(results[1].transcript)

    async def test_events_are_complete_and_ordered(self, store: Any) -> None:
        """The messages in them are whole, and each cursor is greater than the one before."""
        seen: list[Any] = []
        crew = CrewExecutor(
            Agent("a", model=ScriptedProvider(answer), tools=[look]), store=store, observers=[seen.append]
        )
        await crew.execute("Question.", run_id="r")
        stored = await store.events("r")
        assert [one.event for one in stored] == [event for event in seen if event.kind != "text_delta"]
        cursors = [one.cursor for one in stored]
        assert cursors == sorted(set(cursors))
        assert [one.event.message.text for one in stored if isinstance(one.event, Replied)] == ["", "Answer 1."]
        assert [one.event.messages[0].text for one in stored if isinstance(one.event, RunStarted)] == ["Question."]

    async def test_reader_misses_no_event_over_a_resume(self, store: Any) -> None:
        """Whatever cursor it holds: the events after it follow, none twice."""
        agent = Agent("a", model=ScriptedProvider("Which?", "And?", "Done."), wait_for_signal=True)
        crew = CrewExecutor(agent, store=store)
        paused = await crew.execute("Go.", run_id="r")
        before = await store.events("r")
        paused = await crew.resume("r", {paused.pauses[0].id: "This."})
        await CrewExecutor(agent, store=store).resume("r", {paused.pauses[0].id: "That."})
        whole = await store.events("r")
        assert whole[: len(before)] == before

        for position, one in enumerate(whole):
            assert await store.events("r", after=one.cursor) == whole[position + 1 :]

        assert await store.events("r", after=before[-1].cursor, limit=2) == whole[len(before) : len(before) + 2]
        assert Cursor.parse(str(whole[-1].cursor)) == whole[-1].cursor

    @pytest.mark.parametrize("number", [2**31, 2**31 - 1, 10**15 - 1])
    async def test_a_cursor_may_be_after_all_events(self, store: Any, number: int) -> None:
        """Clients send cursors: one that no event has yet is valid, whatever its numbers."""
        await conversation(store, 1)
        stored = await store.events("r0")
        first = stored[0].cursor.version
        later = tuple(one for one in stored if one.cursor.version > first)
        assert later
        assert await store.events("r0", after=Cursor(first, number)) == later
        assert await store.events("r0", after=Cursor(number, number)) == ()

        if isinstance(store, EventFollower):
            assert await store.wait_for_events("r0", Cursor(first, number), timeout=20)
            assert not await store.wait_for_events("r0", Cursor(number, 0), timeout=0.01)

    async def test_failure_is_stored_and_the_run_can_be_resumed(self, store: Any) -> None:
        """The last events follow the newest commit; the status is `failed` until the run is resumed."""
        seen: list[Any] = []
        script = ScriptedProvider(ValueError("down"))
        crew = CrewExecutor(Agent("a", model=script), store=store, observers=[seen.append])

        with pytest.raises(RunError):
            await crew.execute("Go.", run_id="r")

        assert [one.event for one in await store.events("r")] == seen
        assert (await store.run("r")).info.status == "failed"
        script.lines = ("Done.",)
        await crew.resume("r")
        assert [one.event for one in await store.events("r")] == seen
        cursors = [one.cursor for one in await store.events("r")]
        assert cursors == sorted(set(cursors))
        assert (await store.run("r")).info.status == "completed"

    async def test_branches_are_read_with_their_run(self, store: Any) -> None:
        """Their transcripts, and the messages in their events."""
        branches = [Agent(name, model=ScriptedProvider(answer), tools=[look]) for name in ("x", "y")]
        crew = Crew("c", agents=branches, groups=[Parallel("g", branches=branches)], entry="g")
        result = await CrewExecutor(crew, store=store).execute("Question.", run_id="r")
        assert (await store.run("r")).state == result.state
        replies = [one.event.message.text for one in await store.events("r") if isinstance(one.event, Replied)]
        assert sorted(replies) == ["", "", "Answer 1.", "Answer 1."]

    async def test_search_finds_all_words_in_any_message(self, store: Any) -> None:
        """Parts of words, without case; questions, answers, calls and results; newest first."""
        await conversation(store, 2)
        found = await store.search("BICYC blue")
        assert [(one.run_id, one.position, one.message.role) for one in found] == [("r1", 6, "tool"), ("r0", 2, "tool")]
        assert [one.run_id for one in await store.search("question 1")] == ["r1"]
        assert {one.message.role for one in await store.search("utrecht")} == {"assistant", "tool"}
        assert await store.search("bicycle red") == ()
        assert await store.search("  ") == ()
        assert [one.run_id for one in await store.search("1.")] == ["r1", "r0"]
        assert len(await store.search("utrecht", limit=1)) == 1
        await executor(store).execute("A new question with a zebra.", run_id="new")
        assert [one.run_id for one in await store.search("zebra")] == ["new"]

    async def test_search_finds_the_newest_message_first(self, store: Any) -> None:
        """Whatever the ids of the runs, also if a conversation was continued after another run began."""
        for run_id, name in (("m", "y"), ("z", "b"), ("k", "c"), ("a", "y")):
            await executor(store).execute("A zebra.", run_id=run_id, conversation=name)

        assert [one.run_id for one in await store.search("zebra")] == ["a", "k", "z", "m"]
        assert [one.run_id for one in await store.search("zebra", limit=2)] == ["a", "k"]
        assert [one.run_id for one in await store.search("a")][-1] == "m"

    @pytest.mark.parametrize("limit", [0, -1])
    async def test_limit_below_one_is_refused(self, store: Any, limit: int) -> None:
        """It can't match anything; -1 is not "all"."""
        await conversation(store, 1)

        for read in (store.search("question", limit=limit), store.events("r0", limit=limit)):
            with pytest.raises(InvalidInput, match=f"limit must be at least 1, not {limit}"):
                await read

    async def test_forgotten_run_is_gone(self, store: Any) -> None:
        """From every answer; other runs stay."""
        await conversation(store, 1)
        await executor(store).execute("Remember the word marmalade.", run_id="s")
        assert len(await store.search("marmalade")) == 1
        assert await store.forget("s") == 1
        assert await store.search("marmalade") == ()
        assert [info.run_id for info in (await store.runs()).runs] == ["r0"]

        with pytest.raises(UnknownRun):
            await store.events("s")

        assert len(await store.transcript("r0")) == 4

    async def test_id_of_a_forgotten_run_is_free(self, store: Any) -> None:
        """Of one that finished, and of one that waits for an answer."""
        asks = CrewExecutor(Agent("b", model=ScriptedProvider("Which?"), wait_for_signal=True), store=store)

        for _ in range(2):
            await conversation(store, 1)
            assert (await asks.execute("Go.", run_id="paused")).stop_reason == "paused"
            assert await store.forget("r0") == await store.forget("paused") == 1

        assert (await store.runs()).runs == ()

    async def test_run_that_is_continued_can_not_be_forgotten_alone(self, store: Any) -> None:
        """Its messages belong to the later run too; the last one and the whole conversation can."""
        await conversation(store, 3)

        with pytest.raises(StoreError, match="'r2' continues it"):
            await store.forget("r1")

        # The id of the first run is also that of the conversation: it is taken as the run.
        with pytest.raises(StoreError, match="'r1' continues it"):
            await store.forget("r0")

        assert await store.forget("r2") == 1
        assert len(await store.transcript("r1")) == 8
        assert await store.forget("r0", conversation=True) == 2
        assert (await store.runs()).runs == ()

    async def test_named_conversation_is_forgotten_with_all_its_runs(self, store: Any) -> None:
        """Its id is that of no run; a turn that a later one continues can't be erased alone."""
        for turn in range(3):
            await executor(store).execute("Question.", conversation="c", run_id=f"r{turn}")

        await conversation(store, 1, "other")

        with pytest.raises(StoreError, match=r"'r1' continues it.* crew forget c --conversation"):
            await store.forget("r0")

        with pytest.raises(UnknownRun):
            await store.forget("r0", conversation=True)

        assert await store.forget("c") == 3
        assert [info.run_id for info in (await store.runs()).runs] == ["other0"]
        assert await store.conversation("c") == ()

    async def test_runs_are_found_by_their_metadata(self, store: Any) -> None:
        """All values must be equal, as JSON values; pages stay complete and in order."""
        long = "x" * 5_000

        for number in range(6):
            shop = {"shop": "south" if number % 2 else "north", "number": number, "open": True, "tags": ["a", {"b": 1}]}
            await executor(store).execute("Question.", run_id=f"r{number}", metadata={**shop, "long": long})

        await conversation(store, 1, "other")

        async def found(**metadata: Any) -> list[str]:
            return [info.run_id for info in (await store.runs(metadata=metadata)).runs]

        assert await found(shop="south") == ["r5", "r3", "r1"]
        assert await found(shop="south", number=3) == await found(number=3.0) == ["r3"]
        assert await found(number="3") == await found(number=True) == await found(shop="nowhere") == []
        assert len(await found(open=True, tags=["a", {"b": 1}], long=long)) == 6
        assert await found(open=1) == await found(tags=["a"]) == await found(long=long + "x") == []
        assert len(await found()) == 7
        first = await store.runs(metadata={"shop": "north"}, limit=2, crew="a")
        assert [info.run_id for info in first.runs] == ["r4", "r2"]
        second = await store.runs(metadata={"shop": "north"}, limit=2, crew="a", cursor=first.cursor)
        assert ([info.run_id for info in second.runs], second.cursor) == (["r0"], None)
        assert await store.forget("r5") == 1
        assert await found(shop="south") == ["r3", "r1"]

    async def test_forgotten_run_leaves_no_metadata(self, store: Any) -> None:
        """The id can be used again, with other metadata."""
        await executor(store).execute("Question.", run_id="r", metadata={"shop": "north"})
        await store.forget("r")
        await executor(store).execute("Question.", run_id="r", metadata={"shop": "south"})
        assert (await store.runs(metadata={"shop": "north"})).runs == ()
        assert len((await store.runs(metadata={"shop": "south"})).runs) == 1

    async def test_reader_waits_for_the_next_event(self, store: Any) -> None:
        """It returns at once if there is a newer one, after `timeout` with False, and else with the next commit."""
        assert isinstance(store, EventFollower)
        assert not await store.wait_for_events("r0", timeout=0.01)
        waiting = asyncio.ensure_future(store.wait_for_events("r0", timeout=20))
        await asyncio.sleep(0)
        await conversation(store, 1)
        assert await waiting
        events = await store.events("r0")
        assert await store.wait_for_events("r0")
        assert await store.wait_for_events("r0", events[-2].cursor, timeout=20)
        assert not await store.wait_for_events("r0", events[-1].cursor, timeout=0.01)

    async def test_events_between_two_commits_are_stored_soon(
        self, store: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Before the next commit, under the next numbers of the newest one; a reader that follows gets each event once.

        Their append ends the wait: the polls for other processes, which would also find them, are off.
        """
        monkeypatch.setattr("crew.store.event_waiters.POLL_SECONDS", 1_000)
        monkeypatch.setattr("crew.store.postgres_server.RECHECK_SECONDS", 1_000)
        asked, answered = asyncio.Event(), asyncio.Event()
        seen: list[Any] = []

        class Slow(ScriptedProvider):
            async def complete(self, request: ModelRequest, on_delta: Any = None) -> ModelReply:
                asked.set()
                await answered.wait()
                return await super().complete(request, on_delta)

        crew = CrewExecutor(Agent("a", model=Slow("Done.")), store=store, observers=[seen.append])
        running = asyncio.ensure_future(crew.execute("Go.", run_id="r"))
        await asked.wait()
        before = await store.events("r")
        assert await store.wait_for_events("r", before[-1].cursor, timeout=20)  # 0.2 s on an idle machine
        [one] = await store.events("r", after=before[-1].cursor)
        assert (one.event.kind, one.cursor) == ("asked", Cursor(1, before[-1].cursor.number + 1))
        assert one.event == seen[-1]
        answered.set()
        await running
        stored = await store.events("r")
        assert [event.event for event in stored] == seen
        assert [event.cursor for event in stored] == sorted({event.cursor for event in stored})
        assert await store.events("r", after=one.cursor) == stored[len(before) + 1 :]

    async def test_numbers_of_events_continue_after_a_resume(self, store: Any) -> None:
        """The run is interrupted after its request, twice: no number is used twice, and none is missing."""
        seen: list[Any] = []

        for _ in range(2):
            model = HangingProvider()
            crew = CrewExecutor(Agent("a", model=model), store=store, observers=[seen.append])
            start = crew.resume("r") if seen else crew.execute("Go.", run_id="r")
            running = asyncio.ensure_future(start)
            await model.asked.wait()
            running.cancel()
            await asyncio.wait([running])

        stored = await store.events("r")
        assert [one.event for one in stored] == seen
        assert [one.event.kind for one in stored].count("asked") == 2
        by_version: dict[int, list[int]] = {}

        for one in stored:
            by_version.setdefault(one.cursor.version, []).append(one.cursor.number)

        assert all(numbers == [*range(len(numbers))] for numbers in by_version.values())
