"""`recall` reads earlier messages that are no longer in the view, up to a limit."""

from collections.abc import Sequence
from typing import Any

import pytest

from crew import Agent, Crew, CrewExecutor, Parallel, Route, ScriptedProvider, call, handoff, recall, tool
from crew.history.policies import Checkpoint, MaskToolResults, Rolling, chain
from crew.interfaces import ModelReply, ModelRequest
from crew.messages import OMITTED, Message, SummaryMessage, ToolCall, ToolMessage
from tests.support.stores import JsonStore

WORDS = "There is a good deal to say about this, and it takes some words to say it well enough. "


@tool(effect="read")
def read(path: str) -> str:
    """Read a file."""
    return f"The file {path} has {len(path) * 111} lines. " + WORDS * 3


def answers(request: ModelRequest) -> str:
    last = request.messages[-1]
    assert isinstance(last, ToolMessage)
    return last.results[-1].text


async def test_recall_finds_pruned_messages_by_words() -> None:
    """The message was pruned in an earlier run of the conversation; the transcript still has it."""
    found: list[str] = []

    def say(request: ModelRequest) -> Any:
        if request.messages[-1].role == "tool":
            found.append(answers(request))
            return "Yes, 4711."

        return call("recall", words="locker code") if "locker" in str(request.messages[-1]) else WORDS

    agent = Agent("a", model=ScriptedProvider(say), tools=[recall])
    executor = CrewExecutor(agent, max_messages_per_request=6)
    result: Any = await executor.execute("My code is 4711, for the green cabinet.")

    for turn in range(8):
        result = await executor.execute(f"Question {turn}.", history=result)

    assert "4711" not in str(result.history)
    result = await executor.execute("What was the code for my locker?", history=result)
    assert "4711" in found[0]
    assert "Question" not in found[0]


async def test_recall_finds_masked_and_summarised_messages_by_id() -> None:
    """Masked results by the id of their call; the messages of a summary by the id of the summary."""
    found: list[str] = []
    asked: list[ModelRequest] = []

    def say(request: ModelRequest) -> Any:
        asked.append(request)
        last = request.messages[-1]

        if isinstance(last, ToolMessage) and last.results[0].name == "recall":
            found.append(last.results[0].text)

        if request.turn < 20:
            return call("read", path=f"src/{request.turn}.py")

        if request.turn == 20:
            hidden = [m for m in request.messages if isinstance(m, ToolMessage) and m.results[0].text == OMITTED]
            return call("recall", ids=[hidden[0].results[0].call_id])

        if request.turn == 21:
            return call("recall", ids=[m.id for m in request.messages if isinstance(m, SummaryMessage)])

        return "Done."

    agent = Agent("a", model=ScriptedProvider(say, summary="Files."), tools=[read, recall])
    policy = chain(MaskToolResults(keep_recent=2), Checkpoint(trigger_at=24, keep_recent=16))
    await CrewExecutor(agent, history=policy).execute("Read them.")
    assert "lines." in found[0]
    assert "src/0.py" in found[1]
    assert len(found[1]) <= 8_000


async def test_recall_is_bounded_and_skips_older_recalls() -> None:
    """At most 10 messages and 8,000 characters; the results of older recalls are not found."""
    found: list[str] = []

    def say(request: ModelRequest) -> Any:
        last = request.messages[-1]

        if isinstance(last, ToolMessage) and last.results[0].name == "recall":
            found.append(last.results[0].text)

        if request.turn < 30:
            return [call("read", path=f"src/{request.turn}.{n}.py") for n in range(3)]

        return call("recall", words="file lines src") if request.turn < 33 else "Done."

    agent = Agent("a", model=ScriptedProvider(say), tools=[read, recall])
    await CrewExecutor(agent, history=Rolling(limit=20)).execute("Read them.")
    assert len(found) == 3
    assert all(len(text) <= 8_000 for text in found)
    assert "more match" in found[0]
    assert found[0] == found[1] == found[2]


async def test_recall_explains_missing_arguments_and_no_matches() -> None:
    texts: list[str] = []

    def say(request: ModelRequest) -> Any:
        if request.messages[-1].role == "tool":
            texts.append(answers(request))

        lines: list[Any] = [call("recall"), call("recall", words="zebra"), call("recall", ids=["nowhere"]), "Done."]
        return lines[request.turn]

    await CrewExecutor(Agent("a", model=ScriptedProvider(say), tools=[recall])).execute("Remember?")
    assert "Give ids" in texts[0]
    assert all("No message" in text for text in texts[1:])


# ------------------------------------------------------------------------------------------ handoff filters


def first_message(messages: tuple[Message, ...]) -> Sequence[Message]:
    return [message for message in messages if "ripe." in str(message)][:1]


FOUND = {
    "full": {"pineapple", "banana", "secret.txt", "1110", "Control passed"},
    "text_only": {"pineapple", "banana", "Control passed"},
    "last": {"Control passed"},
    "none": set(),
    "function": {"pineapple"},
}
"""What the receiving agent finds with `recall`, for each filter: words of replies, and of calls and their results."""

ASKED = {
    "words": call("recall", words="pineapple banana secret.txt 1110 passed"),
    "ids": call("recall", ids=[f"r:{position}" for position in range(20)]),
    "calls": call("recall", ids=["c1", "c2", "c3"]),
}


@tool(approval=True)
async def wait() -> str:
    """Wait."""
    return "waited"


def crossing_crew(filter: str, asked: Any, *, group: bool = False) -> Crew:
    """An agent that reads a file, writes two replies, and hands off to one that recalls."""
    look = ToolCall(id="c1", name="read", arguments='{"path": "secret.txt"}')
    first = ModelReply(text="I found the pineapple.", calls=(look,))
    lines = [
        first,
        "The pineapple is ripe. [NEXT]",
        "The banana too. [NEXT]",
        call("transfer_to_team" if group else "transfer_to_b"),
    ]
    history: Any = first_message if filter == "function" else filter
    b = Agent("b", model=ScriptedProvider(call("wait"), asked, answers), tools=[recall, wait])
    team = Parallel("team", branches=[b])
    a = Agent(
        "a",
        model=ScriptedProvider(*lines),
        tools=[read],
        handoffs=[handoff(team if group else b, history=history)],
        routes=[Route("[NEXT]", to="a")],
    )
    return Crew("c", agents=[a, b], groups=[team] if group else [], entry="a")


async def recalled(crew: Crew, **options: Any) -> str:
    """What the second agent recalls, after a resume in another executor."""
    store = JsonStore()
    paused = await CrewExecutor(crew, store=store, **options).execute("Which fruit is ripe?", run_id="r")
    result = await CrewExecutor(crew, store=store, **options).resume("r", {paused.pauses[0].id: True})
    return str(result.output)


@pytest.mark.parametrize("group", [False, True], ids=["agent", "branch"])
@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("filter", FOUND)
async def test_recall_sees_no_further_than_the_handoff_filter(filter: str, asked: str, group: bool) -> None:
    """Only what crossed; after `text_only` the texts, without calls and results. Also in branches, after a resume."""
    text = await recalled(crossing_crew(filter, ASKED[asked], group=group))
    results = {"secret.txt", "1110"} if filter == "full" else set()
    expected = {"words": FOUND[filter], "ids": FOUND[filter], "calls": results & {"1110", "secret.txt"}}[asked]
    assert {word for word in FOUND["full"] if word in text} == expected


@pytest.mark.parametrize("filter", FOUND)
async def test_recall_of_evicted_messages_follows_the_filter(filter: str) -> None:
    """`text_only` also passes on texts that had left the history; the other filters choose from what it held."""
    text = await recalled(crossing_crew(filter, ASKED["ids"]), max_messages_per_request=4, prune_to=3)
    expected = set() if filter == "function" else FOUND[filter]
    assert {word for word in FOUND["full"] if word in text} == expected


@pytest.mark.parametrize("filter", ["none", "text_only", "last"])
async def test_recall_does_not_open_hidden_messages_through_a_summary(filter: str) -> None:
    """The id of a summary gives neither its text nor its messages, if it covers what did not cross."""
    policy = Checkpoint(trigger_at=6, keep_recent=1, summarizer=lambda span: "SUMMARY of pineapple and secret.txt")
    crew = crossing_crew(filter, ASKED["ids"])
    text = await recalled(crew, history=policy)
    assert "secret.txt" not in text
    assert "1110" not in text
