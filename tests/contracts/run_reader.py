"""The contract of every RunReader: derive a class and provide a `store` that is a RunStore too."""

from __future__ import annotations

from typing import Any

import pytest

from crew import Agent, Crew, CrewExecutor, Parallel, RunError, RunResult, ScriptedProvider, call, tool
from crew.errors import InvalidInput, StoreError, UnknownRun
from crew.interfaces import ModelRequest
from crew.runs.events import Replied, RunStarted
from crew.runs.interfaces import Cursor, RunReader


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

    async def test_unknown_ids_are_refused(self, store: Any) -> None:
        """With `UnknownRun`; a conversation without runs is empty."""
        for read in (store.run, store.events, store.transcript, store.forget):
            with pytest.raises(UnknownRun):
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

    async def test_run_that_is_continued_can_not_be_forgotten_alone(self, store: Any) -> None:
        """Its messages belong to the later run too; the last one and the whole conversation can."""
        await conversation(store, 3)

        with pytest.raises(StoreError, match="'r2' continues it"):
            await store.forget("r1")

        assert await store.forget("r2") == 1
        assert len(await store.transcript("r1")) == 8
        assert await store.forget("r0") == 2
        assert (await store.runs()).runs == ()
