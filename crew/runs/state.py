"""The state of a run as data: transcript, history, views, counters, children, and what is next (`steps.py`)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from pydantic import JsonValue

from crew.control_characters import escape_controls
from crew.history.history import History
from crew.history.summaries import PendingSummary
from crew.history.token_budget import Calibration, TokenBudget
from crew.history.view import RequestView, View
from crew.messages import AssistantMessage, Message, ToolCall, Transcript, Usage
from crew.runs.call_text import argument_lines
from crew.runs.checked_text import input_text, output_text
from crew.runs.counters import RunCounters, merge_counters
from crew.runs.failure import Failure
from crew.runs.open_calls import CallStatus, Effect, OpenCall
from crew.runs.parameters import Limits, RequestParameters, RunOverrides
from crew.runs.prepared import PendingConsent, Preparation, PreparedAgent
from crew.runs.steps import (
    UNKNOWN_EFFECT,
    AnswerReason,
    AskModel,
    AwaitInput,
    CallTools,
    CheckInput,
    CheckOutput,
    ChooseNext,
    Compact,
    Finished,
    Next,
    PrepareAgent,
    ReachedLimit,
    RepeatReason,
    RunBranches,
    StopReason,
    items_of_children,
)
from crew.tools.tool import truncate_middle

__all__ = [
    "AnswerReason",
    "AskModel",
    "AwaitInput",
    "Branch",
    "CallInDoubt",
    "CallStatus",
    "CallTools",
    "CheckInput",
    "CheckOutput",
    "ChooseNext",
    "Compact",
    "Effect",
    "Finished",
    "HandoffPayload",
    "Next",
    "OpenCall",
    "Pause",
    "PrepareAgent",
    "ReachedLimit",
    "RepeatReason",
    "RunBranches",
    "RunFields",
    "RunState",
    "StopReason",
    "UNKNOWN_EFFECT",
    "find_item",
    "guardrail_pause_id",
    "is_blocked",
    "pending_pauses",
    "request_view",
    "run_status",
    "total_counters",
    "total_usage",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """A question that a run waits for.

    The answer is a text for `input` and `question`, if it has `choices` one of them; True, False, a reason, `Approve`
    or `Refuse` for `approval`; True, False or a reason for `consent`; {"done": result}, "run again" or "skip" for
    `in_doubt`. `arguments` are the arguments of the call as JSON values: the validated ones of a call that waits for
    approval, else those that it ran with; None if they are not JSON. `effect` is that of the tool. `checked` is the
    text that a guardrail of input or output asks about, its middle cut if it is long; the event `Paused` has it empty,
    because a reply is not published before it is accepted.
    """

    id: str
    reason: Literal["input", "approval", "question", "in_doubt", "consent"]
    run_id: str
    agent: str
    text: str
    call: ToolCall | None = None
    arguments: dict[str, Any] | None = None
    effect: Effect = ""
    choices: tuple[str, ...] = ()
    checked: str = ""

    @property
    def full_text(self) -> str:
        """The question with the call that it is about, and below it the text that a guardrail asks about."""
        text, name = self.text, self.call.name if self.call is not None and self.reason == "approval" else ""

        if name and not re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text):
            text = f"{self.agent} wants to call {name}: {text}"

        return f"{text}\n\n{self.checked}" if self.checked else text


MAX_CHECKED_CHARS = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CallInDoubt:
    """A call of a tool with effect "write" that was started and has no result: it may or may not have taken effect."""

    key: str
    run_id: str
    agent: str
    call: ToolCall


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoffPayload:
    """The payload of a handoff, as the model wrote it: the arguments of this tool of the agent that handed off."""

    sender: str
    tool: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """The record of a finished branch or of an agent that was called as a tool, with its transcript.

    `output` is stored as text; a `RunResult` holds it as a value of the agent's output type. `transcript` begins after
    the `inherited_messages` of the parent.
    """

    run_id: str
    agent: str
    outcome: Literal["completed", "limit", "failed", "cancelled", "stopped"]
    finish_reason: AnswerReason = "stop"
    output: Any
    error: str
    usage: Usage
    transcript: tuple[Message, ...]
    inherited_messages: int = 0
    branches: tuple[Branch, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """The complete state of a run. docs/state.md describes every field; `transitions.step.Step` has the same fields.

    inherited_messages   how many messages of the transcript belong to the parent or to earlier runs.
    parent_run           the earlier run that this one continues; its messages come first in the transcript.
    turn                 the number of this turn in its conversation; 0 if it was not started with `conversation=`.
    views                each agent's view of the history.
    token_budgets        for each agent the budget of its model and of its backup.
    calibrations         how each model counts tokens, learned from bills.
    billed_until         messages before this position were part of a billed request.
    warnings_sent        warnings that are sent once a run.
    children             branches and called agents under way, by key; `branches` are the records of finished ones.
    in_doubt             writes that were started, will get no result, and may have taken effect; also of children.
    failure              the error that the loop raises instead of performing `next`; a resume tries again.
    next_before_failure  what was next when a branch failed, so that a resume can repeat it.
    metadata             what the caller stored with the run; also of children. A run never changes it.
    unchecked_input      the guardrails that check the input beside the first request, and did not pass it yet.
    prepared             what was resolved for each agent when it became active last.
    preparation          the texts and tools that `prepared` of the whole tree refers to; only the root run has them.
    overrides            the model and settings of this run, in place of those of its agents; only of the root run.
    payloads             for each agent and group that received a handoff with a payload, the last one.
    fingerprint          small hashes of the parts of the crew, by which a resume finds what changed.
    traceparent          the W3C traceparent of the last trace, to which a resumed run links.
    driver               the system that drives the run, such as `temporal`; empty if executors drive it themselves.
    """

    run_id: str
    conversation_id: str
    crew: str
    agent: str
    limits: Limits
    parameters: RequestParameters = field(default_factory=RequestParameters)
    next: Next = field(default_factory=AskModel)
    history: History = field(default_factory=History)
    transcript: Transcript = field(default_factory=Transcript)
    inherited_messages: int = 0
    parent_run: str = ""
    turn: int = 0
    views: dict[str, View] = field(default_factory=dict)
    pending_summary: PendingSummary = field(default_factory=PendingSummary)
    token_budgets: dict[str, tuple[TokenBudget, ...]] = field(default_factory=dict)
    calibrations: dict[str, Calibration] = field(default_factory=dict)
    billed_until: int = 0
    warnings_sent: tuple[str, ...] = ()
    counters: RunCounters = field(default_factory=RunCounters)
    sequence: int = 0
    active_seconds: float = 0.0
    last_event_at: float = 0.0
    children: dict[str, RunState] = field(default_factory=dict)
    branches: tuple[Branch, ...] = ()
    in_doubt: tuple[CallInDoubt, ...] = ()
    failure: Failure | None = None
    next_before_failure: Next | None = None
    metadata: dict[str, JsonValue] = field(default_factory=dict)
    unchecked_input: tuple[str, ...] = ()
    prepared: dict[str, PreparedAgent] = field(default_factory=dict)
    preparation: Preparation = field(default_factory=Preparation)
    payloads: dict[str, HandoffPayload] = field(default_factory=dict)
    overrides: RunOverrides = field(default_factory=RunOverrides)
    fingerprint: dict[str, str] = field(default_factory=dict)
    traceparent: str = ""
    driver: str = ""


class RunFields(Protocol):
    """The fields that a state and a step in progress share, for functions that read either."""

    @property
    def run_id(self) -> str: ...
    @property
    def agent(self) -> str: ...
    @property
    def next(self) -> Next: ...
    @property
    def failure(self) -> Failure | None: ...
    @property
    def history(self) -> History: ...
    @property
    def transcript(self) -> Transcript: ...
    @property
    def views(self) -> dict[str, View]: ...
    @property
    def token_budgets(self) -> dict[str, tuple[TokenBudget, ...]]: ...
    @property
    def counters(self) -> RunCounters: ...
    @property
    def children(self) -> dict[str, RunState]: ...
    @property
    def prepared(self) -> dict[str, PreparedAgent]: ...


def request_view(state: RunFields) -> RequestView:
    """The content of the current agent's request: carried by `AskModel`, or computed again after a resume."""
    carried = state.next.view if isinstance(state.next, AskModel) else None
    return carried or RequestView.of(state.history, state.views.get(state.agent, View()))


def pending_pauses(state: RunFields, item: str | None = None) -> tuple[Pause, ...]:
    """The pauses of this run and of its children, in order. `item` is that of a run within a fan-out."""
    if isinstance(state.next, Finished):
        return ()  # the pauses of a branch end with it

    found: list[Pause] = []

    match state.next:
        case AwaitInput(pause_id=id):
            last = state.transcript[-1]
            text = last.text if isinstance(last, AssistantMessage) else ""
            found.append(Pause(id=id, reason="input", run_id=state.run_id, agent=state.agent, text=text))
        case CheckInput(held=held) | CheckOutput(held=held) if held:
            found.append(_guardrail_pause(state, state.next, held, item))
        case PrepareAgent(consents=consents):
            found.extend(_consent_pause(state, consent) for consent in consents)
        case CallTools(calls=calls):
            found.extend(_call_pause(state, open) for open in calls if open.is_waiting)
        case _:
            pass

    items = items_of_children(state.next, state.children, item)

    for key, child in state.children.items():
        found.extend(pending_pauses(child, items[key]))

    return tuple(found)


def _guardrail_pause(state: RunFields, now: CheckInput | CheckOutput, question: str, item: str | None) -> Pause:
    checked = input_text(state.history, now.messages, item) if isinstance(now, CheckInput) else output_text(now)
    return Pause(
        id=guardrail_pause_id(state, now.guardrails[0]),
        reason="consent",
        run_id=state.run_id,
        agent=state.agent,
        text=question,
        checked=truncate_middle(checked, MAX_CHECKED_CHARS),
    )


def find_item(state: RunFields, run_id: str, item: str | None = None) -> str | None:
    """The item of a fan-out that the run with this id, in the tree of this one, works on; None if there is none."""
    if state.run_id == run_id:
        return item

    for key, child in state.children.items():
        if f"{run_id}/".startswith(f"{child.run_id}/"):
            return find_item(child, run_id, items_of_children(state.next, state.children, item)[key])

    return None


def _call_pause(state: RunFields, open: OpenCall) -> Pause:
    arguments = open.shown_arguments
    shown = "".join(f"\n  {line}" for line in argument_lines(arguments, open.call.arguments))
    is_held, asked = open.status == "held", open.question
    name = escape_controls(open.call.name)
    question = (
        open.held_question or f"May {state.agent} call {name}?"
        if is_held
        else f"{name} was started, and it is not known whether it took effect."
    )
    return Pause(
        id=open.pause_id,
        reason="question" if asked is not None else "approval" if is_held else "in_doubt",
        run_id=state.run_id,
        agent=state.agent,
        text=question + shown if asked is None else asked.text,
        call=open.call,
        arguments=arguments,
        effect=open.effect,
        choices=() if asked is None else asked.choices,
    )


def _consent_pause(state: RunFields, consent: PendingConsent) -> Pause:
    return Pause(id=consent.pause_id, reason="consent", run_id=state.run_id, agent=state.agent, text=consent.question)


def guardrail_pause_id(state: RunFields, guardrail: str) -> str:
    """The id of the pause in which this guardrail asks a person."""
    return f"{state.run_id}:{len(state.transcript)}.{guardrail}.guardrail"


def is_blocked(state: RunFields) -> bool:
    """Whether the run can't continue before a person answers."""
    if state.failure is not None:
        return False  # that is raised first

    match state.next:
        case AwaitInput():
            return True
        case CheckInput(held=held) | CheckOutput(held=held):
            return bool(held)
        case PrepareAgent(consents=consents):
            return bool(consents)
        case CallTools(calls=calls):
            waiting = [open for open in calls if open.status != "done"]
            return bool(waiting) and all(_is_waiting(state, open) for open in waiting)
        case RunBranches(branch_keys=keys, failure=""):
            live = [state.children[key] for key in keys if not isinstance(state.children[key].next, Finished)]
            return bool(live) and all(is_blocked(child) for child in live)
        case _:
            return False


def _is_waiting(state: RunFields, open: OpenCall) -> bool:
    if open.status == "child":
        return is_blocked(state.children[open.child_key])

    return open.is_waiting


def run_status(state: RunFields) -> str:
    """`running`, `paused`, or why the run ended."""
    if isinstance(state.next, Finished):
        return state.next.stop_reason

    return "paused" if is_blocked(state) else "running"


def total_usage(state: RunFields) -> Usage:
    """The usage of this run and of its children."""
    total = state.counters.usage

    for child in state.children.values():
        total = total + total_usage(child)

    return total


def total_counters(state: RunState) -> RunCounters:
    """The counters of this run and of its children."""
    counters = state.counters

    for child in state.children.values():
        counters = merge_counters(counters, total_counters(child))

    return counters
