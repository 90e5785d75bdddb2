"""The crews behind the transcripts in `examples/transcripts`, to run live again with the recorded answers."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from crew import Agent, Crew, CrewExecutor, Limits, Parallel, Route, RunResult, tool
from crew.messages import AssistantMessage, Message, ToolMessage, UserMessage
from crew.simulator import Recording, read_recording
from tests.wire import Protocol, Reply
from tests.wire.model import Json

TranscriptName = Literal["coding", "support", "research"]
TRANSCRIPTS: tuple[TranscriptName, ...] = ("coding", "support", "research")

_FOLDER = Path(__file__).parents[2] / "examples" / "transcripts"
_RULES = (
    "Work step by step, and use the tools before you answer. Quote identifiers exactly as they are written. If a tool "
    "reports an error, say so and try another way. Never invent a result. Keep every answer short, and ask where the "
    "task is not clear. "
)


def load_transcript(name: TranscriptName) -> Recording:
    """One of the transcripts."""
    return read_recording(_FOLDER / f"{name}.json")


class RecordedAnswers:
    """The replies of each agent and the results of each tool call, in their recorded order.

    It is a responder for the local server. The instructions of an agent begin with its name.
    """

    def __init__(self, recording: Recording) -> None:
        self._replies: dict[str, list[AssistantMessage]] = defaultdict(list)
        self._results: dict[str, list[str]] = defaultdict(list)

        for messages in (recording.messages, *(branch.transcript for branch in recording.branches)):
            self._collect(messages)

    def _collect(self, messages: Iterable[Message]) -> None:
        calls: Iterable[Any] = ()

        for message in messages:
            if isinstance(message, AssistantMessage):
                self._replies[message.agent].append(message)
                calls = message.calls
            elif isinstance(message, ToolMessage):
                for call, result in zip(calls, message.results, strict=True):
                    self._results[_call_key(call.name, json.loads(call.arguments))].append(result.text)

    def __call__(self, body: Json, protocol: Protocol, index: int) -> Reply:
        """The next recorded reply of the agent that asks."""
        agent = _instructions(body, protocol).split(".")[0].removeprefix("You are ")
        reply = self._replies[agent].pop(0)
        return Reply(text=reply.text, calls=[(call.name, call.arguments) for call in reply.calls])

    def result(self, name: str, **arguments: str) -> str:
        """The next recorded result of this call."""
        return self._results[_call_key(name, arguments)].pop(0)


def _call_key(name: str, arguments: Json) -> str:
    return f"{name} {json.dumps(arguments, sort_keys=True)}"


def _instructions(body: Json, protocol: Protocol) -> str:
    match protocol:
        case "chat":
            return str(body["messages"][0]["content"])
        case "responses":
            return str(body["instructions"])
        case "messages":
            return str(body["system"][0]["text"])


def recorded_crew(name: TranscriptName, answers: RecordedAnswers, model: Any) -> Crew:
    """The crew of a transcript, with instructions and tools of a usual length; all its agents use this model."""

    def agent(name: str, **more: Any) -> Agent:
        return Agent(name, instructions=f"You are {name}. {_RULES * 3}", model=model, **more)

    @tool(effect="read", touches="path")
    def read_file(path: str) -> str:
        """Read a file of the repository.

        Args:
            path: The path of the file, relative to the root of the repository.
        """
        return answers.result("read_file", path=path)

    @tool(effect="read")
    def search(words: str) -> str:
        """Search the code of the repository for an identifier.

        Args:
            words: The words to search for.
        """
        return answers.result("search", words=words)

    @tool(touches="path")
    def edit_file(path: str, old: str, new: str) -> str:
        """Replace a text in a file. The old text must occur exactly once.

        Args:
            path: The path of the file, relative to the root of the repository.
            old: The text to replace.
            new: The text that takes its place.
        """
        return answers.result("edit_file", path=path, old=old, new=new)

    @tool(effect="read")
    def run_tests(path: str) -> str:
        """Run the tests of a file or folder, and report those that fail.

        Args:
            path: The file or folder.
        """
        return answers.result("run_tests", path=path)

    @tool(effect="read")
    def lookup_order(order_id: str) -> str:
        """Look an order up: its status and items.

        Args:
            order_id: The number of the order, such as ORD-5010.
        """
        return answers.result("lookup_order", order_id=order_id)

    @tool(effect="read")
    def fetch(url: str) -> str:
        """Fetch a page and return its text.

        Args:
            url: The address of the page.
        """
        return answers.result("fetch", url=url)

    match name:
        case "coding":
            return Crew(name, agents=[agent("coder", tools=[read_file, search, edit_file, run_tests])])
        case "support":
            return Crew(name, agents=[agent("support", tools=[lookup_order])])
        case "research":
            areas = [agent(area, tools=[fetch]) for area in ("markets", "patents", "regulation")]
            panel = Parallel("panel", branches=areas, then="editor")
            lead = agent("lead", routes=[Route("[GO]", to=panel, match="anywhere")])
            editor = agent("editor", routes=[Route("[AGAIN]", to=panel), Route("[DONE]", to=None)])
            return Crew(name, agents=[lead, *areas, editor], groups=[panel])


async def run_recorded(crew: Crew, recording: Recording, **options: Any) -> RunResult:
    """Run the crew on every input of the user in the recording, as one conversation; the result is that of the last."""
    executor = CrewExecutor(crew, **{"limits": Limits(rounds=None), **options})
    result: RunResult | None = None

    for message in recording.messages:
        if isinstance(message, UserMessage) and message.origin == "user":
            result = await executor.execute(message.text, history=result)

    assert result is not None
    return result
