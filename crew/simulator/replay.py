"""Replay of a recording through history and views, by the transitions of a live run."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from crew.engine.compaction_step import build_summary_request
from crew.engine.observers import Observers
from crew.engine.requests import build_request, build_request_manifest
from crew.engine.run import ActiveRun
from crew.engine.token_meter import TokenMeter
from crew.engine.toolsets import OpenToolsets
from crew.history.history import History
from crew.history.token_budget import TokenBudget
from crew.history.tokens import ESTIMATOR, count_message_tokens, estimate_tokens
from crew.interfaces import ModelReply, ModelRequest, Provider, RetryPolicy
from crew.messages import (
    AssistantMessage,
    Manifest,
    Message,
    SystemMessage,
    ToolMessage,
    ToolResult,
    Usage,
    UserMessage,
)
from crew.providers.scripted import ScriptedProvider
from crew.runs.events import BaseEvent, Replied, RunStarted, Summarised
from crew.runs.parameters import Limits, RequestParameters
from crew.runs.state import Branch, CallTools, Compact, RunState, request_view
from crew.simulator.recording import Recording, branch_recording
from crew.store.memory import MemoryStore
from crew.transitions.before_request import ask_model_next
from crew.transitions.compaction import on_summarised
from crew.transitions.plan import Plan
from crew.transitions.step import Step
from crew.transitions.tool_calls import collect_results, open_calls, record_result
from crew.transitions.usage import learn_from_bill

_REPETITION = re.compile(r"^\d+\.|\.\d+$")
"""What the key of a branch holds more than its name if a group or a call runs again."""

MISSING_RESULT = "[No result was recorded.]"
NO_LIMITS = Limits(rounds=None, handoffs=None, tool_calls_per_turn=1_000)

OnRequest = Callable[[ModelRequest, ModelReply, str, Manifest | None], Usage]
"""Called with each request, its reply, the id of the goal, and its manifest, unless it asks for a summary.

Returns the bill."""


@dataclass(slots=True, kw_only=True)
class Replay:
    """Replays one conversation under one plan; `summarize` takes the place of the model that writes summaries."""

    plan: Plan
    token_budgets: dict[str, tuple[TokenBudget, ...]]
    on_request: OnRequest
    summarize: Callable[[Sequence[Message]], str]
    parameters: RequestParameters = field(default_factory=RequestParameters)
    _events: int = 0
    _used: set[str] = field(default_factory=set)

    def run(self, recording: Recording) -> None:
        """Replay all messages of the recording."""
        state = RunState(
            run_id="simulation",
            conversation_id="simulation",
            crew=self.plan.crew.name,
            agent=recording.agents[0],
            limits=NO_LIMITS,
            parameters=self.parameters,
            token_budgets=self.token_budgets,
        )
        self._replay(state, recording)

    # ------------------------------------------------------------------------------------------ messages

    def _replay(self, state: RunState, recording: Recording) -> None:
        messages, index = recording.messages, 0
        incoming: list[Message] = []

        while index < len(messages):
            message = messages[index]

            if isinstance(message, AssistantMessage):
                if incoming:
                    state = self._start_turn(
                        state, [*incoming, UserMessage(MISSING_RESULT, origin="marker", id="opening")], message
                    )
                    incoming = []

                state, index = self._reply(state, recording, index)
            elif isinstance(message, UserMessage):
                state = self._start_turn(state, [*incoming, message], _next_reply(messages, index))
                incoming, index = [], index + 1
            else:
                incoming.extend([message] if isinstance(message, SystemMessage) else [])
                index += 1

    def _start_turn(self, state: RunState, messages: list[Message], then: AssistantMessage | None) -> RunState:
        """Start a run with a user's input, on the current history."""
        step = self._step(state, RunStarted(messages=(), tokens=()))
        step.agent = _agent_name(then) if then else state.agent
        step.append_input(
            tuple(messages), tuple(count_message_tokens(message, ESTIMATOR, keep=True) for message in messages)
        )

        if then is not None:
            ask_model_next(step)

        return step.freeze()

    def _reply(self, state: RunState, recording: Recording, index: int) -> tuple[RunState, int]:
        """Build the request of a recorded reply, then apply the reply and what follows it."""
        message = recording.messages[index]
        assert isinstance(message, AssistantMessage)
        state = self._with_summaries(state)
        run, content = self._run(state), request_view(state)
        request, repairs = build_request(run, state, ScriptedProvider(""), content)
        manifest = build_request_manifest(run, state, content, repairs)
        written = message.manifest.output_billed if message.manifest else None
        usage = Usage(requests=1, output_tokens=written or 0)
        reply = ModelReply(text=message.text, calls=message.calls, usage=usage)
        event = Replied(
            message=message,
            usage=self.on_request(request, reply, state.history.goal, manifest),
            tokens=count_message_tokens(message, ESTIMATOR, keep=True),
        )
        step = self._step(state, event)
        tokens = learn_from_bill(step, event)
        after = recording.messages[index + 1 :]

        if message.calls:
            used = self._on_calls(step, message, tokens, recording, after)
        else:
            used = self._on_text(step, message, tokens, recording, after)

        return step.freeze(), index + 1 + used

    def _on_text(
        self, step: Step, message: AssistantMessage, tokens: int, recording: Recording, after: Sequence[Message]
    ) -> int:
        """A reply without calls ends the run, unless a message of the framework follows."""
        following = [*_framework_messages(after)]

        if not following:
            step.append_final(message, tokens)
            return 0

        step.append(message, tokens)
        self._continue(step, following, recording, after[len(following) :])
        return len(following)

    def _on_calls(
        self, step: Step, message: AssistantMessage, tokens: int, recording: Recording, after: Sequence[Message]
    ) -> int:
        """Answer the calls of a reply with the recorded results."""
        given = after[0].results if after and isinstance(after[0], ToolMessage) else ()
        used = 1 if given else 0
        following = [*_framework_messages(after[used:])]
        rest = after[used + len(following) :]
        results = {result.call_id: result for result in given}
        open_calls(step, message, tokens)
        now = step.next
        assert isinstance(now, CallTools)

        for open, call in zip(now.calls, message.calls, strict=False):
            for branch in _branches(recording, [open.child_key, call.id], self._used):
                self._replay(
                    replace(self._child(step.freeze(), branch), history=History()),
                    branch_recording(branch),
                )

            result = results.get(call.id) or ToolResult(call_id=call.id, text=MISSING_RESULT, outcome="error")
            record_result(step, replace(result, call_id=open.call.id), estimate_tokens(result.text))

        now = step.next
        assert isinstance(now, CallTools)
        answers, counted = collect_results(now)
        recorded = after[0] if used else answers
        step.append(replace(answers, id=recorded.id, time=recorded.time), counted)
        self._continue(step, following, recording, rest)
        return used + len(following)

    def _continue(
        self, step: Step, following: Sequence[UserMessage], recording: Recording, rest: Sequence[Message]
    ) -> None:
        for message in following:
            if message.origin == "join":
                keys = [line[3:] for line in message.text.splitlines() if line.startswith("## ")]

                for branch in _branches(recording, keys, self._used):
                    self._branch(step.freeze(), branch)

            step.append(message)

        if (then := _next_reply(rest, -1)) is not None:
            step.agent = _agent_name(then)
            ask_model_next(step)

    # ------------------------------------------------------------------------------------------ branches

    def _branch(self, parent: RunState, branch: Branch) -> None:
        """Replay a branch on the history at its start."""
        recording = branch_recording(branch)
        first = recording.messages[0] if recording.messages else None
        state = self._child(parent, branch)

        if isinstance(first, UserMessage) and first.origin == "branch":
            step = self._step(state, BaseEvent())
            step.append(first)
            ask_model_next(step)
            state, recording = step.freeze(), replace(recording, messages=recording.messages[1:])

        self._replay(state, recording)

    def _child(self, parent: RunState, branch: Branch) -> RunState:
        return replace(
            parent,
            run_id=branch.run_id,
            agent=branch.agent,
            views={},
            inherited_messages=len(parent.transcript),
            pending_summary=parent.pending_summary.for_branch(),
        )

    # ------------------------------------------------------------------------------------------ summaries

    def _with_summaries(self, state: RunState) -> RunState:
        """Make the summaries that are due before this request."""
        while isinstance(state.next, Compact):
            question = build_summary_request(self._run(state), state, state.next)
            text = self.summarize(question.span)
            reply, usage = ModelReply(text=text), Usage()

            if question.request is not None:
                usage = self.on_request(question.request, reply, "", None)

            event = Summarised(covers=question.covers, text=text, usage=usage)
            step = self._step(state, event)
            on_summarised(step, event)
            state = step.freeze()

            if isinstance(state.next, Compact) and state.next.failure:
                break

        return state

    # ------------------------------------------------------------------------------------------ engine objects

    def _step(self, state: RunState, event: BaseEvent) -> Step:
        self._events += 1
        return Step(self.plan, state, replace(event, run_id=state.run_id, sequence=self._events))

    def _run(self, state: RunState) -> ActiveRun:
        return ActiveRun(
            plan=self.plan,
            state=state,
            store=MemoryStore(),
            clock=lambda: 0.0,
            monotonic=lambda: 0.0,
            observers=Observers(state.run_id, (), lambda event: None),
            providers=_OneProvider(ScriptedProvider("")),
            meter=TokenMeter(plan=self.plan),
            toolsets=OpenToolsets(),
        )


@dataclass(frozen=True, slots=True)
class _OneProvider:
    """The same provider for every model."""

    provider: ScriptedProvider

    def get(self, model: str | Provider, retry: RetryPolicy | None = None) -> Provider:
        """This provider, whatever the model."""
        return self.provider


def _agent_name(message: AssistantMessage) -> str:
    return message.agent or "agent"


def _framework_messages(messages: Sequence[Message]) -> Iterator[UserMessage]:
    """The messages in the middle of a run that the framework, or a person who answers a pause, added."""
    for message in messages:
        if not isinstance(message, UserMessage) or message.origin in ("user", "marker"):
            return

        yield message


def _next_reply(messages: Sequence[Message], index: int) -> AssistantMessage | None:
    """The reply right after this message, system messages not counted."""
    rest = (message for message in messages[index + 1 :] if not isinstance(message, SystemMessage))
    found = next(rest, None)
    return found if isinstance(found, AssistantMessage) else None


def _branches(recording: Recording, keys: Sequence[str], used: set[str]) -> Iterator[Branch]:
    """The next recorded branch of each of these keys; each is replayed once."""
    for key in keys:
        for branch in recording.branches:
            if _REPETITION.sub("", branch.run_id.rpartition("/")[2]) == key and branch.run_id not in used:
                used.add(branch.run_id)
                yield branch
                break
