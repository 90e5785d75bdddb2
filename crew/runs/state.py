"""The state of a run as data: transcript, history, views, counters, children, and what is next."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Protocol

from pydantic import Discriminator, Field, JsonValue

from crew.control_characters import escape_controls
from crew.errors import Failure
from crew.history.history import History
from crew.history.summaries import PendingSummary
from crew.history.token_budget import Calibration, TokenBudget
from crew.history.view import RequestView, View
from crew.messages import AssistantMessage, Message, ToolCall, ToolResult, Transcript, Usage
from crew.runs.call_text import argument_lines, parse_json_object
from crew.runs.counters import RunCounters, merge_counters
from crew.runs.parameters import Limits, RequestParameters

StopReason = Literal["completed", "paused", "limit", "cancelled", "failed"]
"""Why a run stopped. `failed` is never returned: only the result of a `RunError` has it."""

AnswerReason = Literal["stop", "length", "refusal", "filter", "empty"]
"""Why the final answer ended: complete, cut off, refused by the model, filtered by the service, or empty."""

RepeatReason = Literal["", "empty", "output"]
"""Why a model is asked again: its reply was empty, or did not fit the output schema."""

UNKNOWN_EFFECT = "It is not known whether it took effect: find out before you repeat it."

CallStatus = Literal["ready", "started", "held", "in_doubt", "child", "done"]

# ------------------------------------------------------------------------------------------------ Next


@dataclass(frozen=True, slots=True, kw_only=True)
class AskModel:
    """Ask the model of the current agent. `repeat_reason` states why it is asked again in the same step.

    `handoff` names the handoff tool that passes control first: only where its filter failed. `view` is the content of
    the request; it is kept in memory only, and None after a resume.
    """

    repeat_reason: RepeatReason = ""
    handoff: str = ""
    view: Annotated[RequestView | None, Field(exclude=True)] = field(default=None, compare=False, repr=False)
    kind: Literal["ask_model"] = "ask_model"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenCall:
    """An accepted call and its status.

    `key` identifies the call among all calls of all runs: the path of its run, the transcript position of the reply,
    and its index there. The provider's `call.id` may repeat. `arguments` are the validated arguments of a held call.

    ready     may start.
    started   started and not returned.
    held      waits for approval.
    in_doubt  started before a crash; whether it took effect is not known.
    child     an agent works on it, as a child run.
    done      has a result.
    """

    call: ToolCall
    key: str
    arguments: dict[str, Any] | None = None
    status: CallStatus = "ready"
    approved: bool = False
    result: ToolResult | None = None
    tokens: int = 0

    @property
    def child_key(self) -> str:
        """The key of the child run that works on this call, if its tool is an agent."""
        return self.key.rpartition(":")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTools:
    """Run the calls of the newest reply. `handoff_call_id` is the call that hands off; `declined` calls are not run."""

    calls: tuple[OpenCall, ...]
    handoff_call_id: str = ""
    declined: tuple[str, ...] = ()
    kind: Literal["call_tools"] = "call_tools"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunBranches:
    """Run the branches of a group. `branch_keys` are their keys among the children, in declared order.

    `failure` states why the group failed by its error policy; its branches keep what they did.
    """

    group: str
    branch_keys: tuple[str, ...]
    failure: str = ""
    kind: Literal["run_branches"] = "run_branches"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compact:
    """Make summaries: of messages that left the history or, where `strategy` is set, of an explicit compression.

    With `where="view"`, the messages left the view of the current agent, and only that view shows the summary.
    `spans` are the message ids that each summary covers, `summaries` the texts so far ("" for a span that stays
    verbatim); they take effect together. `failure` states why an explicit compression failed. Afterwards the model is
    asked, with this `repeat_reason`.
    """

    spans: tuple[tuple[str, ...], ...]
    summaries: tuple[str, ...] = ()
    strategy: str = ""
    failure: str = ""
    repeat_reason: RepeatReason = ""
    where: Literal["history", "view"] = "history"
    kind: Literal["compact"] = "compact"


@dataclass(frozen=True, slots=True, kw_only=True)
class AwaitInput:
    """Wait for a text from a person."""

    pause_id: str
    kind: Literal["await_input"] = "await_input"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReachedLimit:
    """The limit that ended a run: the name of the field of `Limits`, and its value."""

    name: str
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The run is finished. A failed branch states its `error`; a failed root run is not finished, but resumable."""

    stop_reason: StopReason
    finish_reason: AnswerReason = "stop"
    limit: ReachedLimit | None = None
    output: str = ""
    error: str = ""
    kind: Literal["finished"] = "finished"


Next = Annotated[AskModel | CallTools | RunBranches | Compact | AwaitInput | Finished, Discriminator("kind")]

# ------------------------------------------------------------------------------------------------ the state


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """A question that a run waits for.

    The answer is a text for `input`; True, False or a reason for `approval`; {"done": result}, "run again" or "skip"
    for `in_doubt`. `arguments` are the arguments of the call as JSON values: the validated ones of a call that waits
    for approval, else those that the model wrote; None if they are not JSON.
    """

    id: str
    reason: Literal["input", "approval", "in_doubt"]
    run_id: str
    agent: str
    text: str
    call: ToolCall | None = None
    arguments: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CallInDoubt:
    """A call of a tool with effect "write" that was started and has no result: it may or may not have taken effect."""

    key: str
    run_id: str
    agent: str
    call: ToolCall


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """The record of a finished branch or of an agent that was called as a tool, with its transcript.

    `output` is stored as text; a `RunResult` holds it as a value of the agent's output type. `transcript` begins after
    the `inherited_messages` of the parent.
    """

    run_id: str
    agent: str
    outcome: Literal["completed", "limit", "failed", "cancelled"]
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
    fingerprint          small hashes of the parts of the crew, by which a resume finds what changed.
    traceparent          the W3C traceparent of the last trace, to which a resumed run links.
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
    fingerprint: dict[str, str] = field(default_factory=dict)
    traceparent: str = ""


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


def request_view(state: RunFields) -> RequestView:
    """The content of the current agent's request: carried by `AskModel`, or computed again after a resume."""
    carried = state.next.view if isinstance(state.next, AskModel) else None
    return carried or RequestView.of(state.history, state.views.get(state.agent, View()))


def pending_pauses(state: RunFields) -> tuple[Pause, ...]:
    """The pauses of this run and of its children, in order."""
    if isinstance(state.next, Finished):
        return ()  # the pauses of a branch end with it

    found: list[Pause] = []

    match state.next:
        case AwaitInput(pause_id=id):
            last = state.transcript[-1]
            text = last.text if isinstance(last, AssistantMessage) else ""
            found.append(Pause(id=id, reason="input", run_id=state.run_id, agent=state.agent, text=text))
        case CallTools(calls=calls):
            found.extend(_call_pause(state, open) for open in calls if open.status in ("held", "in_doubt"))
        case _:
            pass

    for child in state.children.values():
        found.extend(pending_pauses(child))

    return tuple(found)


def _call_pause(state: RunFields, open: OpenCall) -> Pause:
    arguments = open.arguments if open.arguments is not None else parse_json_object(open.call.arguments)
    shown = "".join(f"\n  {line}" for line in argument_lines(arguments, open.call.arguments))
    is_held = open.status == "held"
    name = escape_controls(open.call.name)
    question = (
        f"May {state.agent} call {name}?"
        if is_held
        else f"{name} was started, and it is not known whether it took effect."
    )
    return Pause(
        id=open.key,
        reason="approval" if is_held else "in_doubt",
        run_id=state.run_id,
        agent=state.agent,
        text=question + shown,
        call=open.call,
        arguments=arguments,
    )


def is_blocked(state: RunFields) -> bool:
    """Whether the run can't continue before a person answers."""
    if state.failure is not None:
        return False  # that is raised first

    match state.next:
        case AwaitInput():
            return True
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

    return open.status in ("held", "in_doubt")


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
