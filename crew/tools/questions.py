"""Questions that a running tool asks a person: the call unwinds, and runs again with the recorded answers."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

from crew.errors import abbreviate

MAX_QUESTION_CHARS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question to a person; with `choices`, the answer is one of them."""

    text: str
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweredQuestion:
    """A question of a call, and the recorded answer."""

    text: str
    answer: str


class UserAnswer(str):
    """The answer of a person: a text, which can also be awaited, so that sync and async tools ask in the same way."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, Any, str]:
        return self._text().__await__()

    async def _text(self) -> str:
        return str(self)


class AwaitingAnswer(BaseException):
    """Unwinds a call until its question is answered. Not an `Exception`, so that `except Exception` lets it pass."""


@dataclass(slots=True, kw_only=True)
class Questions:
    """The questions of one attempt of a call, in order: recorded answers are replayed, the first new one unwinds it.

    `pending` is the question that unwound the call, `problem` why a replay does not match the record; both count even
    if the tool caught the exception. `scrub` removes secrets, as the record did.
    """

    tool: str
    answered: tuple[AnsweredQuestion, ...] = ()
    scrub: Callable[[str], str] = str
    pending: Question | None = None
    problem: str = ""
    _asked: int = field(default=0, init=False)

    def ask(self, text: str, choices: Sequence[str] = ()) -> UserAnswer:
        """The recorded answer to this question; without one, unwind the call."""
        question = self._checked(text, choices)
        number, self._asked = self._asked, self._asked + 1

        if number < len(self.answered):
            recorded = self.answered[number]

            if recorded.text != question.text:
                self.problem = self.problem or (
                    f"{self.tool} asked {abbreviate(recorded.text)} as question {number + 1} before, and "
                    f"{abbreviate(question.text)} now. A tool that asks runs again from its start after each answer, "
                    "so that it must ask the same questions in the same order."
                )
                raise RuntimeError(self.problem)

            return UserAnswer(recorded.answer)

        if self.pending is None:
            self.pending = question

        raise AwaitingAnswer

    def _checked(self, text: object, choices: object) -> Question:
        if not isinstance(text, str) or not text.strip() or len(text) > MAX_QUESTION_CHARS:
            accepted = f"a text of 1 to {MAX_QUESTION_CHARS:,} characters"
            raise ValueError(f"The question of ask_user must be {accepted}, not {abbreviate(text)}")

        if isinstance(choices, str) or not isinstance(choices, Sequence):
            raise ValueError(f"choices must be a list of texts, not {abbreviate(choices)}")

        if any(not isinstance(choice, str) or not choice.strip() for choice in choices):
            raise ValueError(f"choices must be texts that are not blank, not {abbreviate([*choices])}")

        if len(set(choices)) < len(choices):
            raise ValueError(f"choices must differ from each other: {abbreviate([*choices])}")

        return Question(text=self.scrub(text), choices=tuple(map(self.scrub, choices)))
