"""`Context`: a run, as the tools and the other functions of a crew see it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic

from pydantic import JsonValue
from typing_extensions import TypeVar

from crew.messages import Message, Usage
from crew.tools.questions import Questions, UserAnswer

Deps_co = TypeVar("Deps_co", covariant=True, default=Any)


@dataclass(frozen=True, slots=True, kw_only=True)
class Context(Generic[Deps_co]):
    """Passed to a tool that has a parameter annotated with it; the model does not see that parameter. Functions that
    write instructions, and toolsets, get it too: then there is no call.

    `idempotency_key` identifies this call among all calls of all runs, and stays the same when the call is repeated
    after a crash: pass it to services that accept one. `call_id` is the provider's id; it may repeat in other runs.
    `emit` sends progress to the observers of the run. `metadata` is a copy of what was passed to `execute`.
    `transcript` is the conversation so far, `readable()` the part of it that the handoff filter allows. Of a stored
    conversation both have the messages of this run and those that its history refers to; `await all_readable()` reads
    older ones from the store too, as `recall` does. `consents` are the keys of the consents that a person gave to the
    toolsets of this run.
    """

    deps: Deps_co
    run_id: str
    agent: str
    conversation_id: str = ""
    call_id: str = ""
    idempotency_key: str = ""
    usage: Usage = field(default_factory=Usage)
    emit: Callable[[object], None] = lambda data: None
    consents: frozenset[str] = frozenset()
    transcript: Sequence[Message] = ()
    metadata: dict[str, JsonValue] = field(default_factory=dict)
    readable: Callable[[], Sequence[Message]] = tuple
    load_readable: Callable[[], Awaitable[Sequence[Message]]] | None = field(default=None, repr=False)
    questions: Questions | None = field(default=None, repr=False)
    load_payload: Callable[[], Any] | None = field(default=None, repr=False)

    @property
    def payload(self) -> Any:
        """The payload of the last handoff to this agent, an object of its class; None if it had none."""
        return None if self.load_payload is None else self.load_payload()

    def ask_user(self, question: str, choices: Sequence[str] = ()) -> UserAnswer:
        """Ask a person, in a tool that is declared with `@tool(asks=True)`: `await` it in an async function.

        The call ends here, the run pauses, and once the question is answered the function runs again from its start:
        all answers so far are returned at once, in order, with the same `idempotency_key`. So everything before the
        last question is repeated. With `choices` the answer is one of them.
        """
        if self.questions is None:
            raise RuntimeError("ask_user can be used in tools that are declared with @tool(asks=True)")

        return self.questions.ask(question, choices)

    async def all_readable(self) -> Sequence[Message]:
        """Every message that the handoff filter allows, also those that are not in memory."""
        return self.readable() if self.load_readable is None else await self.load_readable()
