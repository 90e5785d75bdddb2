"""The answer of a run as a growing text, for protocols in which a run is one message: pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from crew.runs.events import Event, Replied, TextDelta
from crew.transitions.plan import Plan

SEPARATOR = "\n\n"


@dataclass(slots=True)
class AnswerStream:
    """Selects the texts of a run that belong to its answer.

    Agents that may continue by `then` or a route, and those whose output is changed at the end, are not sent in pieces:
    whether their reply is the answer is known when the run ends. What an agent writes beside a tool call is sent too,
    followed by an empty line, because the call is not known when the text arrives.
    """

    plan: Plan
    root: str
    _sent: bool = False
    _reply: str = ""
    _is_complete: bool = False

    def add(self, event: Event) -> Iterator[str]:
        """The pieces of text that follow from one event."""
        if event.run_id != self.root:
            return

        match event:
            case TextDelta(channel="restart"):
                self._reply = ""
            case TextDelta(channel="text", text=text) if text and self._may_end(event.agent):
                if self._is_complete:
                    self._reply, self._is_complete = "", False

                yield from self._send(text)
            case Replied(message=message):
                if self._reply and not self._is_complete and message.text.startswith(self._reply):
                    yield from self._send(message.text[len(self._reply) :])

                self._is_complete = True
            case _:
                pass

    def end(self, output: str) -> Iterator[str]:
        """The rest of the answer, when the output of the run is known."""
        if self._reply and output.startswith(self._reply):
            yield from self._send(output[len(self._reply) :])
        elif output != self._reply:
            self._reply = ""
            yield from self._send(output)

    def _send(self, text: str) -> Iterator[str]:
        if not text:
            return

        if self._sent and not self._reply:
            yield SEPARATOR

        self._sent = True
        self._reply += text
        yield text

    def _may_end(self, name: str) -> bool:
        agent = self.plan.agents.get(name)
        return agent is not None and agent.then is None and not agent.routes and not agent.sanitize_output
