"""Hypothesis strategies for histories: valid ones, broken ones, and the messages that a run appends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

from hypothesis import strategies as st

from crew.messages import (
    AssistantMessage,
    Message,
    SummaryMessage,
    SystemMessage,
    ToolCall,
    ToolMessage,
    ToolResult,
    UserMessage,
)

MAX_TURNS = 20
MAX_ROUNDS = 8
MAX_CALLS = 6

# Structure is drawn, so that it shrinks; words are made from it, so that drawing stays cheap.
rounds = st.lists(st.integers(1, MAX_CALLS), max_size=MAX_ROUNDS)
"""The tool rounds of one turn: how many parallel calls each has."""

seeds = st.integers(0, 2**32 - 1)


class MessageFactory:
    """Makes messages with unique ids."""

    def __init__(self, seed: int = 0, prefix: str = "m") -> None:
        self.random = Random(seed)
        self.prefix = prefix
        self._messages = 0
        self._calls = 0

    def id(self) -> str:
        self._messages += 1
        return f"{self.prefix}{self._messages}"

    def user(self, origin: str = "user") -> UserMessage:
        id = self.id()
        return UserMessage(f"question {id}", origin=origin, id=id)  # type: ignore[arg-type]

    def reply(self) -> AssistantMessage:
        id = self.id()
        return AssistantMessage(f"answer {id}", id=id, agent="solo")

    def system(self) -> SystemMessage:
        # Few texts, so that identical ones occur.
        return SystemMessage(f"rule {self.random.randrange(3)}", id=self.id())

    def exchange(self, size: int) -> list[Message]:
        calls = []

        for _ in range(size):
            self._calls += 1
            calls.append(ToolCall(id=f"{self.prefix}c{self._calls}", name="look", arguments='{"n": 1}'))

        text = "let me see" if self.random.random() < 0.3 else ""
        asked = AssistantMessage(text, calls=tuple(calls), id=self.id(), agent="solo")
        results = tuple(
            ToolResult(
                call_id=c.id, name=c.name, text=f"found {c.id}", outcome="error" if self.random.random() < 0.2 else "ok"
            )
            for c in calls
        )
        return [asked, ToolMessage(results, id=self.id())]


@st.composite
def conversations(
    draw: st.DrawFn, *, max_turns: int = MAX_TURNS, max_systems: int = 3, prefix: str = "m"
) -> list[Message]:
    """Valid conversations: user turns with tool rounds and a reply, with system messages in between."""
    turns = draw(st.lists(rounds, min_size=1, max_size=max_turns))
    maker = MessageFactory(draw(seeds), prefix)
    messages: list[Message] = []

    for sizes in turns:
        messages.append(maker.user())

        for size in sizes:
            messages.extend(maker.exchange(size))

        if maker.random.random() < 0.9:
            messages.append(maker.reply())

    for _ in range(draw(st.integers(0, max_systems))):
        # Between groups, never between a call and its results.
        free = [i for i in range(len(messages) + 1) if i == len(messages) or not isinstance(messages[i], ToolMessage)]
        messages.insert(maker.random.choice(free), maker.system())

    return messages


Breakage = Callable[[list[Message], int], list[Message]]


def _drop(messages: list[Message], at: int) -> list[Message]:
    return messages[:at] + messages[at + 1 :]


def _double(messages: list[Message], at: int) -> list[Message]:
    return messages[: at + 1] + messages[at:]


def _swap(messages: list[Message], at: int) -> list[Message]:
    other = (at + 1) % len(messages)
    swapped = list(messages)
    swapped[at], swapped[other] = swapped[other], swapped[at]
    return swapped


def _blank(messages: list[Message], at: int) -> list[Message]:
    message = messages[at]
    blank = replace(message, results=()) if isinstance(message, ToolMessage) else replace(message, text=" \n")
    return [*messages[:at], blank, *messages[at + 1 :]]


def _change_call(change: Callable[[ToolCall], ToolCall]) -> Breakage:
    def apply(messages: list[Message], at: int) -> list[Message]:
        message = messages[at]

        if isinstance(message, AssistantMessage) and message.calls:
            message = replace(message, calls=(change(message.calls[0]), *message.calls[1:]))

        return [*messages[:at], message, *messages[at + 1 :]]

    return apply


def _change_results(
    change: Callable[[tuple[ToolResult, ...]], tuple[ToolResult, ...]],
) -> Breakage:
    def apply(messages: list[Message], at: int) -> list[Message]:
        message = messages[at]

        if isinstance(message, ToolMessage):
            message = replace(message, results=change(message.results))

        return [*messages[:at], message, *messages[at + 1 :]]

    return apply


def _orphan(messages: list[Message], at: int) -> list[Message]:
    orphan = ToolMessage((ToolResult(call_id="nobody", text="?"),), id=f"orphan{len(messages)}")
    return [*messages[:at], orphan, *messages[at:]]


def _open_call(messages: list[Message], at: int) -> list[Message]:
    asked = AssistantMessage(calls=(ToolCall(id="unanswered", name="look"),), id=f"open{len(messages)}")
    return [*messages[:at], asked, *messages[at:]]


def _summary(messages: list[Message], at: int) -> list[Message]:
    return [*messages[:at], SummaryMessage("so far", id=f"summary{len(messages)}"), *messages[at:]]


BREAKAGES: list[Breakage] = [
    _drop,
    _double,
    _swap,
    _blank,
    _orphan,
    _open_call,
    _summary,
    _change_call(lambda call: replace(call, id="x" * 70)),
    _change_call(lambda call: replace(call, id="")),
    _change_call(lambda call: replace(call, id="with space")),
    _change_call(lambda call: replace(call, id="twice")),
    _change_call(lambda call: replace(call, name="no such näme! " * 12)),
    _change_call(lambda call: replace(call, name="")),
    _change_results(lambda results: results[1:]),
    _change_results(lambda results: results + results[:1]),
    _change_results(lambda results: results[::-1]),
    _change_results(lambda results: tuple(replace(r, call_id="elsewhere") for r in results[:1]) + results[1:]),
]


@st.composite
def broken_conversations(draw: st.DrawFn, *, max_turns: int = 6, prefix: str = "m") -> list[Message]:
    """Conversations as a crash, a cancel or another framework leaves them; sometimes empty."""
    messages = draw(conversations(max_turns=max_turns, prefix=prefix))

    for breakage, place in draw(st.lists(st.tuples(st.sampled_from(BREAKAGES), st.integers(0, 10_000)), max_size=6)):
        if messages:
            messages = breakage(messages, place % len(messages))

    return messages


@dataclass(frozen=True)
class Growth:
    """The messages that a run appends after its goal: each step is a list of messages, followed by a request."""

    before: list[Message]
    goal: UserMessage
    steps: list[list[Message]]


@st.composite
def growths(draw: st.DrawFn) -> Growth:
    """An input conversation, a goal, and the steps of a run."""
    before = draw(st.one_of(st.just([]), conversations(max_turns=5, prefix="b")))
    maker = MessageFactory(draw(seeds))
    goal = maker.user()
    steps: list[list[Message]] = []

    for kind, size in draw(
        st.lists(
            st.tuples(
                st.sampled_from(["exchange", "exchange", "exchange", "then", "answer", "output", "join"]),
                st.integers(1, MAX_CALLS),
            ),
            max_size=40,
        )
    ):
        if kind == "exchange":
            steps.append(maker.exchange(size))
        elif kind == "join":
            steps.append([maker.user("join")])
        else:
            steps.append([maker.reply(), maker.user(kind)])

    return Growth(before=before, goal=goal, steps=steps)


@st.composite
def budgets(draw: st.DrawFn, *, least: int = 1) -> tuple[int, int]:
    """A limit of 1–60, and a prune target up to the limit."""
    limit = draw(st.integers(least, 60))
    return limit, draw(st.one_of(st.just(max(1, limit // 2)), st.integers(1, limit)))
