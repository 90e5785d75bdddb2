"""`InputValidator`: every rule at once, on every way in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from crew.errors import InvalidInput, Violation
from crew.exchanges import validate
from crew.messages import Message
from crew.validation.reading import joined, read_history
from crew.validation.rules import agent_rules, message_rules, run_id_rules, size_rules, text_rules

_PAIRING = ("unanswered_call", "orphan_result", "duplicate_result", "duplicate_call")


@dataclass(frozen=True, slots=True, kw_only=True)
class InputValidator:
    """What an executor accepts. `tool_pairs` says whether broken pairs of calls and results are mended or refused."""

    max_query_chars: int = 10_000
    max_history_messages: int = 1_000
    max_message_chars: int = 100_000
    tool_pairs: Literal["repair", "refuse"] = "repair"

    def check(
        self, query: object, *, history: Sequence[Any] = (), agent: object = None, run_id: object = None
    ) -> tuple[Message, ...]:
        """The history as messages; or `InvalidInput` with everything that is wrong with any of these."""
        found = [*text_rules("The input", query, self.max_query_chars)]

        if agent is not None:
            found.extend(agent_rules(agent))

        if run_id is not None:
            found.extend(run_id_rules(run_id))

        messages, problems = self.check_history(history)
        found.extend(problems)

        if found:
            raise InvalidInput(found)

        return messages

    def check_history(self, history: object) -> tuple[tuple[Message, ...], list[Violation]]:
        """The messages of a history, and what is wrong with it."""
        if isinstance(history, str | bytes) or not isinstance(history, Sequence):
            text = f"The history must be a list of messages or a RunResult, not {type(history).__name__}."
            return (), [Violation(rule="type", text=text, value=history)]

        if too_many := [*size_rules(history, self.max_history_messages)]:
            return (), too_many

        read, found = read_history(history)
        found.extend(message_rules(read, self.max_message_chars))
        whole = joined(read)
        messages = tuple(message for _, message in whole)

        if self.tool_pairs == "refuse":
            broken = (v for v in validate(messages) if v.rule in _PAIRING and v.index is not None)
            found.extend(replace(v, index=whole[min(v.index or 0, len(whole) - 1)][0]) for v in broken)

        return messages, found

    def answer_rules(self, id: str, answer: object) -> list[Violation]:
        """What is wrong with the words of a person who answers a pause."""
        return [*text_rules(f"The answer to {id!r}", answer, self.max_query_chars)]
