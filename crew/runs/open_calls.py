"""`OpenCall`: an accepted tool call, its status, and what a person added to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from pydantic_core import to_json

from crew.fast_replace import fast_replace
from crew.messages import ToolCall, ToolResult
from crew.runs.call_text import describe_changes, parse_json_object
from crew.tools.questions import AnsweredQuestion, Question

Effect = Literal["read", "write", ""]
"""The effect of a tool; empty if it is not known."""

CallStatus = Literal["ready", "started", "held", "asking", "in_doubt", "child", "done"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenCall:
    """An accepted call and its status.

    `key` identifies the call among all calls of all runs: the path of its run, the transcript position of the reply,
    and its index there. The provider's `call.id` may repeat. `arguments` are the validated arguments of a held call,
    `edited` those that a person or a guardrail wrote in their place; `effect` is the effect of its tool, if it is held
    or in doubt. `question` is what its tool asks, `answers` are the answers to the questions before. `checks` are the
    guardrails that checked it; `held_question` is what the last of them asks a person, and `edited_by` the guardrail
    that wrote `edited`, empty if a person did.

    ready     may start.
    started   started and not returned.
    held      waits for approval.
    asking    waits for the answer to a question of its tool; it was unwound, and runs again.
    in_doubt  started before a crash; whether it took effect is not known.
    child     an agent works on it, as a child run.
    done      has a result.
    """

    call: ToolCall
    key: str
    arguments: dict[str, Any] | None = None
    status: CallStatus = "ready"
    approved: bool = False
    edited: dict[str, Any] | None = None
    question: Question | None = None
    answers: tuple[AnsweredQuestion, ...] = ()
    result: ToolResult | None = None
    tokens: int = 0
    effect: Effect = ""
    checks: tuple[str, ...] = ()
    held_question: str = ""
    edited_by: str = ""

    @property
    def child_key(self) -> str:
        """The key of the child run that works on this call, if its tool is an agent."""
        return self.key.rpartition(":")[2]

    @property
    def is_waiting(self) -> bool:
        """Whether a person must answer before the call goes on."""
        return self.status in ("held", "asking", "in_doubt")

    @property
    def pause_id(self) -> str:
        """The id of the pause of this call; each question has its own, so that no answer counts twice."""
        return f"{self.key}.ask{len(self.answers) + 1}" if self.status == "asking" else self.key

    @property
    def shown_arguments(self) -> dict[str, Any] | None:
        """The arguments for a person: edited, validated, or those of the model; None if they are not JSON."""
        known = self.arguments if self.edited is None else self.edited
        return parse_json_object(self.call.arguments) if known is None else known

    @property
    def effective_call(self) -> ToolCall:
        """The call as it runs: with the arguments that a person wrote, if one edited them."""
        return self.call if self.edited is None else fast_replace(self.call, arguments=to_json(self.edited).decode())

    def with_edit_note(self, text: str) -> str:
        """The text of a result; after an edit it begins with what was changed, so that a cut does not remove that."""
        changes = "" if self.edited is None else describe_changes(self.arguments or {}, self.edited)
        author = self.edited_by or "A person"
        return f"[{author} changed the arguments of this call before it ran: {changes}.]\n{text}" if changes else text
