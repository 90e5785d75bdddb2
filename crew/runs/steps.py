"""The steps of a run: what may happen next, as data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Discriminator, Field

from crew.history.view import RequestView
from crew.messages import AssistantMessage, Message
from crew.runs.open_calls import OpenCall
from crew.runs.prepared import PendingConsent

StopReason = Literal["completed", "paused", "limit", "cancelled", "stopped", "failed"]
"""Why a run stopped; `stopped`: a tool raised `StopRun`, or a guardrail refused the input. `failed` only occurs in the
result of a `RunError`."""

AnswerReason = Literal["stop", "length", "refusal", "filter", "empty"]
"""Why the final answer ended: complete, cut off, refused by the model, filtered by the service, or empty."""

RepeatReason = Literal["", "empty", "output"]
"""Why a model is asked again: its reply was empty, or did not fit the output schema."""

UNKNOWN_EFFECT = "It is not known whether it took effect: find out before you repeat it."


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
class PrepareAgent:
    """Resolve the instructions and toolsets of the current agent, which became active. `consents` are asked first."""

    consents: tuple[PendingConsent, ...] = ()
    kind: Literal["prepare_agent"] = "prepare_agent"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTools:
    """Run the calls of the newest reply. `handoff_call_id` is the call that hands off; `declined` calls are not run."""

    calls: tuple[OpenCall, ...]
    handoff_call_id: str = ""
    declined: tuple[str, ...] = ()
    kind: Literal["call_tools"] = "call_tools"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChooseNext:
    """Find out what follows a reply or a join: only where a function that decides it failed; a resume calls it again.

    `after` is the agent or group that ended. `target` is set if the next group is known, and its items are not.
    `finish_reason` is that of the reply; `branches` are the run ids of the branches that joined.
    """

    after: str
    target: str = ""
    finish_reason: AnswerReason = "stop"
    branches: tuple[str, ...] = ()
    kind: Literal["choose_next"] = "choose_next"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunBranches:
    """Run the branches of a group. `branch_keys` are their keys among the children, in declared order.

    `failure` states why the group failed by its error policy; its branches keep what they did. `items` are the texts of
    the items of a fan-out, one for each branch.
    """

    group: str
    branch_keys: tuple[str, ...]
    failure: str = ""
    items: tuple[str, ...] = ()
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
class CheckInput:
    """Check the input with guardrails, in order. `held` is the question of the first one to a person.

    `messages` is the input if it is not in the transcript yet: a guardrail may rewrite its last message. Without it the
    goal is checked, which is in the history already. `is_active`: the agent is prepared, and asks its model next.
    """

    guardrails: tuple[str, ...]
    messages: tuple[Message, ...] = ()
    tokens: tuple[int, ...] = ()
    held: str = ""
    is_active: bool = False
    kind: Literal["check_input"] = "check_input"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOutput:
    """Check an output with guardrails, in order, before it takes effect. `held` is the question of the first one.

    `message` is the reply, which is not in the transcript yet, with its tokens and why it ended; None: `text` is the
    joined output of a group.
    """

    guardrails: tuple[str, ...]
    message: AssistantMessage | None = None
    tokens: int = 0
    finish_reason: str = "stop"
    repeat_reason: RepeatReason = ""
    text: str = ""
    held: str = ""
    kind: Literal["check_output"] = "check_output"


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
    """The run is finished. A failed branch states its `error`; a failed root run is not finished, but resumable.

    `stop_text` is the reason that a tool gave to `StopRun`.
    """

    stop_reason: StopReason
    finish_reason: AnswerReason = "stop"
    limit: ReachedLimit | None = None
    output: str = ""
    error: str = ""
    stop_text: str = ""
    kind: Literal["finished"] = "finished"


Next = Annotated[
    CheckInput
    | PrepareAgent
    | AskModel
    | CallTools
    | ChooseNext
    | RunBranches
    | Compact
    | CheckOutput
    | AwaitInput
    | Finished,
    Discriminator("kind"),
]


def items_of_children(now: Next, children: Iterable[str], item: str | None) -> dict[str, str | None]:
    """For each child the item that it works on: that of its branch, or else `item`, of the branch around its group.

    It is None for an agent that is called as a tool, which has its own input.
    """
    if not isinstance(now, RunBranches):
        return dict.fromkeys(children)

    items: dict[str, str | None] = dict.fromkeys(children, item)
    items.update(zip(now.branch_keys, now.items, strict=False))
    return items
