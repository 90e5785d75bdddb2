"""Maps the events of a run to the events of the AG-UI protocol (version 1.0): pure, one mapper for each stream."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic_core import to_jsonable_python

from crew.messages import ToolCall, Usage
from crew.runs.events import (
    AgentStarted,
    BranchFinished,
    BranchStarted,
    Cancelled,
    Compacted,
    Event,
    FellBack,
    HandedOff,
    HistoryPruned,
    LimitReached,
    Paused,
    Replied,
    Retried,
    RunFailed,
    RunFinished,
    TextDelta,
    ToolProgress,
    ToolReturned,
    Warned,
)
from crew.runs.state import CallTools, Pause, RunState
from crew.server.answer_schema import answer_schema

PROTOCOL_VERSION = "1.0"

AgUiEvent = dict[str, Any]
"""An event as a JSON object with the names of the protocol."""

Kind = Literal["text", "thinking"]

_CUSTOM = (HistoryPruned, Compacted, Warned, Retried, FellBack, LimitReached)
"""Events without a counterpart in the protocol, which are sent as `CUSTOM` with the name `crew.<kind>`."""


def open_call_keys(state: RunState) -> dict[tuple[str, str], str]:
    """The keys of the calls under way in a stored run and its branches, by run and the provider's call id."""
    calls = state.next.calls if isinstance(state.next, CallTools) else ()
    keys = {(state.run_id, open.call.id): open.key for open in calls}

    for child in state.children.values():
        keys |= open_call_keys(child)

    return keys


def reply_call_keys(reply: Replied) -> dict[tuple[str, str], str]:
    """The keys of the calls of a reply, in the same form."""
    calls = enumerate(reply.message.calls)
    return {(reply.run_id, call.id): f"{reply.message.id}.{index}" for index, call in calls}


@dataclass(slots=True)
class _OpenMessage:
    """A message whose pieces are being sent."""

    id: str
    kind: Kind
    text: str = ""


@dataclass(slots=True)
class AgUiMapper:
    """Keeps which messages, steps and subagents are open, because the protocol requires each to be closed in order.

    `run_id` and `thread_id` are those of the client's request. A call has its key as id, which is unique among all
    calls of all runs. A message has the client's run id and a number: its position in the transcript is not known when
    its first piece arrives. A branch, or an agent called as a tool, is a subagent with its run path as id.
    """

    thread_id: str
    run_id: str
    call_keys: dict[tuple[str, str], str] = field(default_factory=dict)
    is_finished: bool = False
    _root: str = ""
    _messages: int = 0
    _open: dict[str, _OpenMessage] = field(default_factory=dict)
    _steps: dict[str, str] = field(default_factory=dict)
    _subagents: dict[str, str] = field(default_factory=dict)
    _ended: set[str] = field(default_factory=set)

    def start(self, root: str) -> AgUiEvent:
        """The first event of the stream; `root` is the id of Crew's run."""
        self._root = root
        return {
            "type": "RUN_STARTED",
            "threadId": self.thread_id,
            "runId": self.run_id,
            "protocolVersion": PROTOCOL_VERSION,
        }

    def map(self, event: Event) -> Iterator[AgUiEvent]:
        """The AG-UI events for one event of the run, in order; none after the last one."""
        if self.is_finished:
            return

        if event.run_id not in self._subagents and event.run_id not in ("", self._root, *self._ended):
            # A branch that goes on after a resume: its start was reported in the stream before.
            yield from self._start_subagent(event.run_id, event.agent)

        for mapped in self._mapped(event):
            yield mapped | {"timestamp": int(event.at * 1000)} if event.at else mapped

    def _mapped(self, event: Event) -> Iterator[AgUiEvent]:
        match event:
            case AgentStarted():
                yield from self._start_step(event.run_id, event.agent)
            case TextDelta():
                yield from self._delta(event)
            case Replied():
                yield from self._replied(event)
            case ToolReturned(result=result):
                yield from self._result(event.run_id, result.call_id, result.text)
            case HandedOff():
                yield from self._result(event.run_id, event.call_id, f"Control passed to {event.target}.")
            case ToolProgress():
                key = self._key(event.run_id, event.call_id)
                yield self._custom(event, {"toolCallId": key, "data": to_jsonable_python(event.data, fallback=str)})
            case BranchStarted():
                call = self._key(event.run_id, event.call_id) if event.call_id else ""
                yield from self._start_subagent(event.branch, _branch_name(event.branch), call)
            case BranchFinished():
                yield from self._end_subagent(event)
            case Paused():
                yield from self._pause(event.pauses)
            case RunFinished() | Cancelled() | RunFailed():
                yield from self._end(event)
            case _ if isinstance(event, _CUSTOM):
                yield self._custom(event, _facts(event))
            case _:
                pass

    # -------------------------------------------------------------------------------------- messages

    def _delta(self, event: TextDelta) -> Iterator[AgUiEvent]:
        path = event.run_id

        if event.channel == "arguments":
            return  # the calls of a reply are sent when it is complete

        if event.channel == "restart":
            yield from self._discard(path)
            return

        open = self._open.get(path)

        if open is not None and open.kind != event.channel:
            yield from self._close_message(path)
            open = None

        if open is None:
            open = self._open[path] = _OpenMessage(self._next_message_id(), event.channel)
            yield from self._start_message(path, open)

        open.text += event.text
        yield self._tagged(path, _content(open, event.text))

    def _replied(self, event: Replied) -> Iterator[AgUiEvent]:
        path, text = event.run_id, event.message.text
        open = self._open.get(path)

        if open is not None and open.kind == "thinking":
            yield from self._close_message(path)
            open = None

        if open is not None and not text.startswith(open.text):
            yield from self._discard(path)  # pieces were lost or replaced on the way
            open = None

        if open is None and text:
            open = self._open[path] = _OpenMessage(self._next_message_id(), "text")
            yield from self._start_message(path, open)

        if open is not None and (rest := text[len(open.text) :]):
            yield self._tagged(path, _content(open, rest))

        message_id = open.id if open is not None else self._next_message_id()
        yield from self._close_message(path)

        self.call_keys |= reply_call_keys(event)

        for index, call in enumerate(event.message.calls):  # by position: a provider may repeat an id
            yield from self._call(path, call, f"{event.message.id}.{index}", message_id)

    def _call(self, path: str, call: ToolCall, key: str, message_id: str) -> Iterator[AgUiEvent]:
        start = {"type": "TOOL_CALL_START", "toolCallId": key, "toolCallName": call.name, "parentMessageId": message_id}
        yield self._tagged(path, start)
        yield self._tagged(path, {"type": "TOOL_CALL_ARGS", "toolCallId": key, "delta": call.arguments})
        yield self._tagged(path, {"type": "TOOL_CALL_END", "toolCallId": key})

    def _result(self, path: str, call_id: str, text: str) -> Iterator[AgUiEvent]:
        key = self._key(path, call_id)
        content = {"messageId": f"{key}.result", "toolCallId": key, "content": text, "role": "tool"}
        yield self._tagged(path, {"type": "TOOL_CALL_RESULT"} | content)

    def _start_message(self, path: str, open: _OpenMessage) -> Iterator[AgUiEvent]:
        if open.kind == "thinking":
            yield self._tagged(path, {"type": "REASONING_START", "messageId": open.id})
            start = {"type": "REASONING_MESSAGE_START", "messageId": open.id, "role": "reasoning"}
        else:
            start = {"type": "TEXT_MESSAGE_START", "messageId": open.id, "role": "assistant"}

            if name := self._steps.get(path):
                start["name"] = name

        yield self._tagged(path, start)

    def _close_message(self, path: str) -> Iterator[AgUiEvent]:
        open = self._open.pop(path, None)

        if open is None:
            return

        if open.kind == "thinking":
            yield self._tagged(path, {"type": "REASONING_MESSAGE_END", "messageId": open.id})
            yield self._tagged(path, {"type": "REASONING_END", "messageId": open.id})
        else:
            yield self._tagged(path, {"type": "TEXT_MESSAGE_END", "messageId": open.id})

    def _discard(self, path: str) -> Iterator[AgUiEvent]:
        """Close a message whose pieces are void; the protocol can't withdraw it, so a custom event names it."""
        open = self._open.get(path)
        yield from self._close_message(path)

        if open is not None:
            custom = {"type": "CUSTOM", "name": "crew.message_discarded", "value": {"messageId": open.id}}
            yield self._tagged(path, custom)

    def _next_message_id(self) -> str:
        self._messages += 1
        return f"{self.run_id}:{self._messages}"

    def _key(self, path: str, call_id: str) -> str:
        return self.call_keys.get((path, call_id), f"{path}:{call_id}")

    # -------------------------------------------------------------------------------------- steps and subagents

    def _start_step(self, path: str, agent: str) -> Iterator[AgUiEvent]:
        yield from self._end_step(path)
        self._steps[path] = agent
        yield self._tagged(path, {"type": "STEP_STARTED", "stepName": agent})

    def _end_step(self, path: str) -> Iterator[AgUiEvent]:
        if agent := self._steps.pop(path, ""):
            yield self._tagged(path, {"type": "STEP_FINISHED", "stepName": agent})

    def _start_subagent(self, path: str, name: str, call_key: str = "") -> Iterator[AgUiEvent]:
        parent = path.rpartition("/")[0]

        if parent not in ("", self._root) and parent not in self._subagents:
            yield from self._start_subagent(parent, _branch_name(parent))

        self._subagents[path] = parent
        started = {"type": "SUBAGENT_STARTED", "subagentRunId": path, "name": name or _branch_name(path)}

        if parent != self._root:
            started["parentSubagentRunId"] = parent

        if call_key:
            started["parentToolCallId"] = call_key

        yield started

    def _end_subagent(self, event: BranchFinished) -> Iterator[AgUiEvent]:
        path = event.branch

        if path not in self._subagents:
            return

        yield from self._close_path(path)

        if event.outcome in ("completed", "limit"):
            yield {"type": "SUBAGENT_FINISHED", "subagentRunId": path, "outcome": {"type": "success"}}
        else:
            message = event.error or f"The branch was {event.outcome}."
            yield {"type": "SUBAGENT_ERROR", "subagentRunId": path, "message": message, "code": event.outcome}

    def _close_path(self, path: str) -> Iterator[AgUiEvent]:
        """Close what is open in a run and in the branches below it; the subagent of the run itself stays open."""
        for child in [child for child, parent in self._subagents.items() if parent == path]:
            yield from self._close_path(child)
            yield {"type": "SUBAGENT_FINISHED", "subagentRunId": child}

        yield from self._close_message(path)
        yield from self._end_step(path)

        if self._subagents.pop(path, None) is not None:
            self._ended.add(path)

    # -------------------------------------------------------------------------------------- the end

    def _pause(self, pauses: Iterable[Pause]) -> Iterator[AgUiEvent]:
        interrupts = [self._interrupt(pause) for pause in pauses]

        for path in sorted(self._subagents, key=lambda path: -path.count("/")):  # the innermost first
            yield from self._close_path(path)
            ids = [pause.id for pause in pauses if pause.run_id == path or pause.run_id.startswith(f"{path}/")]
            outcome = {"type": "suspended", "interruptIds": ids} if ids else {"type": "suspended"}
            yield {"type": "SUBAGENT_FINISHED", "subagentRunId": path, "outcome": outcome}

        yield from self._finish({"type": "interrupt", "interrupts": interrupts})

    def _interrupt(self, pause: Pause) -> AgUiEvent:
        found: AgUiEvent = {
            "id": pause.id,
            "reason": pause.reason,
            "message": pause.text,
            "metadata": {"agent": pause.agent},
        }

        found["responseSchema"] = answer_schema(pause)

        if pause.call is not None:
            found["toolCallId"] = self._key(pause.run_id, pause.call.id)

        if pause.run_id != self._root:
            found["subagentRunId"] = pause.run_id

        return found

    def _end(self, event: RunFinished | Cancelled | RunFailed) -> Iterator[AgUiEvent]:
        if event.run_id != self._root:
            return  # a branch; its group reports it

        match event:
            case RunFinished(stop_reason="cancelled") | Cancelled():
                yield from self._finish({"type": "cancelled"})
            case RunFinished():
                result = {"output": event.output, "stopReason": event.stop_reason}
                yield from self._finish({"type": "success"}, result=result, usage=[_usage(event.usage)])
            case RunFailed():
                self.is_finished = True
                yield {"type": "RUN_ERROR", "message": event.error, "code": event.error_type or "RunError"}

    def stop(self, status: str) -> Iterator[AgUiEvent]:
        """The last events of a run that stopped without one, such as an interrupted one."""
        if self.is_finished:
            return

        if status == "cancelled":
            yield from self._finish({"type": "cancelled"})
        else:
            self.is_finished = True
            message = f"The run {self._root} stopped ({status}). It can be resumed."
            yield {"type": "RUN_ERROR", "message": message, "code": status}

    def _finish(self, outcome: AgUiEvent, **more: object) -> Iterator[AgUiEvent]:
        yield from self._close_path(self._root)
        self.is_finished = True
        last = {"type": "RUN_FINISHED", "threadId": self.thread_id, "runId": self.run_id, "outcome": outcome}
        yield last | more

    def _custom(self, event: Event, value: object) -> AgUiEvent:
        return self._tagged(event.run_id, {"type": "CUSTOM", "name": f"crew.{event.kind}", "value": value})

    def _tagged(self, path: str, event: AgUiEvent) -> AgUiEvent:
        return event | {"subagentRunId": path} if path in self._subagents else event


def _content(open: _OpenMessage, text: str) -> AgUiEvent:
    kind = "REASONING_MESSAGE_CONTENT" if open.kind == "thinking" else "TEXT_MESSAGE_CONTENT"
    return {"type": kind, "messageId": open.id, "delta": text}


def _branch_name(path: str) -> str:
    return path.rpartition("/")[2]


def _facts(event: Event) -> Any:
    value = to_jsonable_python(event, fallback=str)
    return {name: fact for name, fact in value.items() if name not in ("kind", "sequence", "at", "elapsed", "level")}


def _usage(usage: Usage) -> AgUiEvent:
    return {
        "inputTokens": usage.input_tokens,
        "outputTokens": usage.output_tokens,
        "totalTokens": usage.input_tokens + usage.output_tokens,
        "reasoningTokens": usage.reasoning_tokens,
        "cachedInputTokens": usage.cache_read_tokens,
        "cacheWriteInputTokens": usage.cache_write_tokens,
    }
