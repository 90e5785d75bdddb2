"""A provider that replies from a script: for examples, tests and offline work."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace

from crew.errors import ScriptExhausted
from crew.history.tokens import estimate_message_tokens, estimate_tokens
from crew.interfaces import Delta, ModelReply, ModelRequest, OnDelta
from crew.messages import ToolCall, Usage

ScriptLine = str | ToolCall | Sequence[ToolCall] | ModelReply | BaseException
ScriptEntry = ScriptLine | Callable[[ModelRequest], ScriptLine]


def call(name: str, /, **arguments: object) -> ToolCall:
    """Make a tool call for a script: `call("lookup_order", order_id="17")`."""
    return ToolCall(id="", name=name, arguments=json.dumps(arguments, ensure_ascii=False))


class ScriptedProvider:
    """Replies to an agent's first request in a conversation with the first line, to the second with the second, etc.

    A line is a text, a `call(...)`, a list of calls, a `ModelReply`, an error to raise, or a function of the request
    that returns one of these. If the last line is a function, it replies to all further requests. The provider keeps
    no state: the request holds its turn, so that one script serves concurrent runs, and a resumed run continues at its
    line. Summary requests use no line: `summary` replies to them.
    """

    def __init__(
        self,
        *lines: ScriptEntry,
        name: str = "scripted",
        model: str = "scripted",
        profile: str = "strictest",
        summary: ScriptEntry | None = None,
    ) -> None:
        self.lines, self.summary = lines, summary
        self.name, self.model, self.profile = name, model, profile

    async def complete(self, request: ModelRequest, on_delta: OnDelta | None = None) -> ModelReply:
        """Return the reply of the line for this turn; with `on_delta`, line by line."""
        reply = self._reply(self._line(request), request)

        if on_delta is not None:
            for piece in reply.text.splitlines(keepends=True):
                on_delta(Delta(text=piece))

        return reply

    def _line(self, request: ModelRequest) -> ScriptLine:
        turn = request.turn

        if request.purpose == "summary" and (line := self._summary(turn)) is not None:
            return line(request) if callable(line) else line

        if turn >= len(self.lines):
            turn = len(self.lines) - 1

            if not self.lines or not callable(self.lines[-1]):
                lines = "1 line" if len(self.lines) == 1 else f"{len(self.lines)} lines"
                raise ScriptExhausted(
                    f"The script of {request.agent!r} has {lines}, but this is request "
                    f"{request.turn + 1}: add a line, or end the script with a function of the request.",
                    provider=self.name,
                    model=self.model,
                )

        line = self.lines[turn]
        return line(request) if callable(line) else line

    def _summary(self, turn: int) -> ScriptEntry | None:
        """Return the summary line; None if the function for this turn replies to summary requests too."""
        index = min(turn, len(self.lines) - 1)
        is_function = index >= 0 and callable(self.lines[index])
        return self.summary or (None if is_function else "Summary of the earlier conversation.")

    def _reply(self, line: ScriptLine, request: ModelRequest) -> ModelReply:
        match line:
            case BaseException():
                raise line
            case ModelReply():
                reply = line
            case str():
                reply = ModelReply(text=line)
            case ToolCall():
                reply = ModelReply(calls=(line,), finish_reason="calls")
            case _:
                reply = ModelReply(calls=tuple(line), finish_reason="calls")

        calls = tuple(
            c if c.id else replace(c, id=f"call_{request.turn}_{number}") for number, c in enumerate(reply.calls)
        )
        usage = reply.usage if reply.usage != Usage(requests=1) else estimated_usage(request, reply)
        return replace(reply, calls=calls, usage=usage, model=reply.model or self.model)


def estimated_usage(request: ModelRequest, reply: ModelReply) -> Usage:
    """Estimate what a model would bill, so that limits can be tested offline."""
    overhead = estimate_tokens(request.instructions) + sum(
        estimate_tokens(spec.description) + 20 for spec in request.tools
    )
    input = overhead + sum(estimate_message_tokens(message) for message in request.messages)
    output = estimate_tokens(reply.text) + sum(estimate_tokens(c.arguments) + 4 for c in reply.calls)
    return Usage(requests=1, input_tokens=input, output_tokens=output)
