"""`Step`: one transition under construction, a mutable copy of the run state that is frozen at the end."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Callable, Sequence
from typing import Literal, ParamSpec, TypeVar, cast

from crew.fast_replace import fast_replace
from crew.history.history import History
from crew.history.pruning import Pruning
from crew.history.summaries import note_evicted_messages
from crew.history.token_budget import Calibration, TokenBudget
from crew.history.tokens import estimate_message_tokens
from crew.history.view import View, ViewSummaries
from crew.history.view_summaries import insert_view_summary, note_evicted
from crew.interfaces import HistoryBudget, HistoryEntry, PruneDecision
from crew.messages import AssistantMessage, Message, Origin, SummaryMessage, Usage, UserMessage
from crew.runs.counters import ToolCounters
from crew.runs.events import BaseEvent, Event, HistoryPruned, LimitReached, Warned
from crew.runs.failure import Failure
from crew.runs.open_calls import OpenCall
from crew.runs.state import AnswerReason, CallTools, Finished, Next, ReachedLimit, RunState, StopReason
from crew.transitions.checks import checks_output
from crew.transitions.plan import Plan, token_budget_for
from crew.transitions.prepared_agents import with_listed_touches
from crew.transitions.setting_conflicts import default_bound_warning

Facts = ParamSpec("Facts")
AnyMessage = TypeVar("AnyMessage", bound=Message)

USER_ERRORS = (Exception, SystemExit, CancelledError)
"""What a policy or a handoff filter may raise: no transition awaits, so that no cancellation from outside arrives."""


class Step:
    """The fields of one run's state while `advance` changes them, and the events that follow from the change.

    A step exists only inside `advance`, which is pure. Steps of a run and of its children share one list of events, so
    that every event is numbered when it is emitted, and collect the `errors` behind failures by run id; None: a failure
    is raised at once, because the event reports nothing that could be lost.
    """

    def __init__(
        self,
        plan: Plan,
        state: RunState,
        event: BaseEvent,
        emitted: list[Event] | None = None,
        errors: dict[str, BaseException] | None = None,
    ) -> None:
        self.plan, self.event, self.errors = plan, event, errors
        self.emitted: list[Event] = [] if emitted is None else emitted
        self.run_id, self.conversation_id, self.crew = state.run_id, state.conversation_id, state.crew
        self.limits, self.parameters, self.metadata = state.limits, state.parameters, state.metadata
        self.overrides = state.overrides
        self.prepared, self.preparation, self.payloads = state.prepared, state.preparation, state.payloads
        self.inherited_messages, self.parent_run, self.turn = state.inherited_messages, state.parent_run, state.turn
        self.agent, self.counters, self.sequence = state.agent, state.counters, state.sequence
        self.next: Next = state.next
        self.history: History = state.history
        self.transcript = state.transcript
        self.views: dict[str, View] = state.views
        self.pending_summary = state.pending_summary
        self.token_budgets: dict[str, tuple[TokenBudget, ...]] = state.token_budgets
        self.calibrations: dict[str, Calibration] = state.calibrations
        self.billed_until, self.warnings_sent = state.billed_until, state.warnings_sent
        self.active_seconds, self.last_event_at = state.active_seconds, state.last_event_at
        self.children: dict[str, RunState] = state.children
        self.branches, self.in_doubt, self.unchecked_input = state.branches, state.in_doubt, state.unchecked_input
        self.failure: Failure | None = state.failure
        self.next_before_failure: Next | None = state.next_before_failure
        self.fingerprint, self.traceparent, self.driver = state.fingerprint, state.traceparent, state.driver

    def freeze(self) -> RunState:
        """The state that this step leads to."""
        return RunState(
            run_id=self.run_id,
            conversation_id=self.conversation_id,
            crew=self.crew,
            agent=self.agent,
            limits=self.limits,
            parameters=self.parameters,
            next=self.next,
            history=self.history,
            transcript=self.transcript,
            inherited_messages=self.inherited_messages,
            parent_run=self.parent_run,
            turn=self.turn,
            views=self.views,
            pending_summary=self.pending_summary,
            token_budgets=self.token_budgets,
            calibrations=self.calibrations,
            billed_until=self.billed_until,
            warnings_sent=self.warnings_sent,
            counters=self.counters,
            sequence=self.sequence,
            active_seconds=self.active_seconds,
            last_event_at=self.last_event_at,
            children=self.children,
            branches=self.branches,
            in_doubt=self.in_doubt,
            failure=self.failure,
            next_before_failure=self.next_before_failure,
            metadata=self.metadata,
            unchecked_input=self.unchecked_input,
            prepared=self.prepared,
            preparation=self.preparation,
            payloads=self.payloads,
            overrides=self.overrides,
            fingerprint=self.fingerprint,
            traceparent=self.traceparent,
            driver=self.driver,
        )

    def child_step(self, child: RunState) -> Step:
        """A step of a child run within this step; its events follow those that this step emitted so far."""
        return Step(self.plan, child, self.event, self.emitted, self.errors)

    def set_child(self, key: str, child: RunState) -> None:
        """Replace the child run under this key."""
        self.children = {**self.children, key: child}

    # ------------------------------------------------------------------------------------------ events and counters

    def emit(self, kind: Callable[Facts, Event], *_: Facts.args, **facts: Facts.kwargs) -> None:
        """Emit an event of this run; run id, agent, number and time are filled in."""
        # Built once, complete: copying a frozen event in order to number it would cost more than building it.
        build = cast(Callable[..., Event], kind)
        number = self.event.sequence + len(self.emitted) + 1
        self.emitted.append(build(run_id=self.run_id, agent=self.agent, at=self.event.at, sequence=number, **facts))

    def count_usage(self, usage: Usage) -> None:
        """Add one model call to the counters of the run and of its current agent."""
        counters = self.counters
        known = counters.by_agent.get(self.agent)
        self.counters = fast_replace(
            counters,
            usage=counters.usage + usage,
            known_cost=counters.known_cost + (usage.cost or 0.0),
            rounds=counters.rounds + 1,
            by_agent={**counters.by_agent, self.agent: usage if known is None else known + usage},
        )

    def count_tool(self, name: str, *, is_error: bool) -> None:
        """Add one finished call to the counters of this tool."""
        by_tool = self.counters.by_tool
        known = by_tool.get(name, ToolCounters())
        changed = ToolCounters(calls=known.calls + 1, errors=known.errors + is_error)
        self.counters = fast_replace(self.counters, by_tool={**by_tool, name: changed})

    def warn_once(self, name: str) -> bool:
        """Whether this warning was not sent before in this run; from now on it was."""
        if name in self.warnings_sent:
            return False

        self.warnings_sent = (*self.warnings_sent, name)
        return True

    # ------------------------------------------------------------------------------------------ the one append

    @property
    def token_budget(self) -> TokenBudget:
        """The token budget of the model that the current agent asks."""
        return token_budget_for(self.plan, self, self.agent)

    @property
    def history_budget(self) -> HistoryBudget:
        """The bound of the history; for a policy that counts tokens, with the current agent's window."""
        budget = with_listed_touches(self.plan.budget, self) if self.prepared else self.plan.budget

        if not budget.eager or self.agent not in self.plan.agents:
            return budget

        tokens = self.token_budget
        return fast_replace(budget, window=tokens.window, overhead_tokens=tokens.overhead_tokens)

    def append(self, message: Message, tokens: int | None = None, *, shown: Message | None = None) -> None:
        """Append a message to transcript and history; `shown` is the part of it that the history holds, if not all."""
        self._append(self.history, [self._record(message, tokens, shown)])

    def append_final(self, message: Message, tokens: int) -> None:
        """Append the reply that ends the run; it never overflows."""
        entry = self._record(message, tokens, None)
        self._append(self.history.before_final(entry, self.plan.budget), [entry])

    def append_input(self, messages: tuple[Message, ...], tokens: tuple[int, ...]) -> None:
        """Append the input of a run, its goal last, and prune once."""
        entries = [self._record(m, n, None) for m, n in zip(messages, tokens, strict=True)]
        self._append(fast_replace(self.history, goal=messages[-1].id), entries)

    def append_refused_input(self, messages: tuple[Message, ...], tokens: tuple[int, ...]) -> None:
        """Keep an input that is refused in the transcript; no model sees it."""
        for message, counted in zip(messages, tokens, strict=True):
            self._record(message, counted, None)

    def _append(self, history: History, entries: Sequence[HistoryEntry]) -> None:
        """Append to the history. Where the policy fails, the oldest messages leave, so that nothing is lost."""
        try:
            appended = history.append(*entries, policy=self.plan.policy, budget=self.history_budget)
        except USER_ERRORS as error:
            self.fail(error)
            appended = history.append_oldest_first(
                *entries, budget=self.plan.budget, summarizes=self.plan.options.summarizes
            )

        self._accept_pruning(*appended)

    def append_framework_message(self, text: str, origin: Origin) -> None:
        """Append a user message that the framework writes, so that the next request ends with a user message."""
        self.append(UserMessage(text, origin=origin))

    def insert_summaries(self, *summaries: tuple[SummaryMessage, int]) -> tuple[SummaryMessage, ...]:
        """Insert summaries, each at a position, for the messages that they cover; empty where none of them fits."""
        made = tuple(self._with_id(summary, offset) for offset, (summary, _) in enumerate(summaries))
        entries = [
            HistoryEntry(message=summary, position=position, tokens=estimate_message_tokens(summary))
            for summary, (_, position) in zip(made, summaries, strict=True)
        ]
        inserted = self.history.insert_summary(*entries, budget=self.plan.budget)

        if inserted is None:
            return ()

        for summary in made:
            self.transcript = self.transcript.append(summary)

        self._accept_pruning(*inserted)
        return made

    def _record(self, message: Message, tokens: int | None, shown: Message | None) -> HistoryEntry:
        message = self._with_id(message)
        position = len(self.transcript)
        self.transcript = self.transcript.append(message)
        counted = estimate_message_tokens(message) if tokens is None else tokens
        self.counters = fast_replace(self.counters, tokens_appended=self.counters.tokens_appended + counted)
        part = message if shown is None else fast_replace(shown, id=message.id, time=message.time)

        if isinstance(part, AssistantMessage) and part.manifest is not None:
            part = fast_replace(part, manifest=None)  # the transcript keeps it; the history stays small

        return HistoryEntry(message=part, position=position, tokens=counted)

    def _with_id(self, message: AnyMessage, offset: int = 0) -> AnyMessage:
        if message.id:
            return message

        # Derived from the position in the transcript: a run that is streamed, resumed or retried gets the same ids.
        return fast_replace(message, id=f"{self.run_id}:{len(self.transcript) + offset}", time=self.event.at)

    def _accept_pruning(self, history: History, decision: PruneDecision | None) -> None:
        self.history = history

        if decision is None:
            return

        groups = (*decision.kept, *decision.evicted)
        before = sum([g.size for g in groups])
        self.pending_summary = note_evicted_messages(
            self.pending_summary,
            decision,
            policy_summarizes=self.plan.options.summarizes,
            compresses=self.parameters.compression_strategy is not None,
            is_after_summary=isinstance(self.transcript[-1], SummaryMessage),
        )

        if self.plan.view_summarizers:
            self._note_for_view_summaries(decision)

        self.counters = fast_replace(
            self.counters,
            messages_pruned=self.counters.messages_pruned + before - history.size,
            prunings=(*self.counters.prunings, (before, history.size)),
        )
        self.emit_pruned(
            Pruning(
                policy=self.plan.policy.name,
                reason=decision.reason,
                limit=self.plan.budget.limit or 0,
                before=before,
                after=history.size,
                evicted=tuple([entry.message.id for g in decision.evicted for entry in g.entries]),
                tokens_before=sum([g.tokens for g in groups]),
                tokens_after=sum([g.tokens for g in decision.kept]),
            ),
            where="history",
        )

        if (text := default_bound_warning(self.plan, before)) and self.warn_once("limit of a token policy"):
            self.emit(Warned, text=text)

    def emit_pruned(self, pruning: Pruning, *, where: Literal["history", "view"]) -> None:
        """Report and count what left the history or a view."""
        by_policy = self.counters.by_policy
        self.counters = fast_replace(
            self.counters, by_policy={**by_policy, pruning.policy: by_policy.get(pruning.policy, 0) + 1}
        )
        self.emit(
            HistoryPruned,
            policy=pruning.policy,
            reason=pruning.reason,
            before=pruning.before,
            after=pruning.after,
            limit=pruning.limit,
            evicted=pruning.evicted,
            masked=pruning.masked,
            cut=pruning.cut,
            tokens_before=pruning.tokens_before,
            tokens_after=pruning.tokens_after,
            where=where,
        )

    def _note_for_view_summaries(self, decision: PruneDecision) -> None:
        """Note the evicted messages that the summaries of single views have to cover."""
        for name in self.plan.view_summarizers:
            if name == self.agent or name in self.views:
                self.views = {
                    **self.views,
                    name: note_evicted(
                        self.view_of(name),
                        decision.evicted,
                        name,
                        is_active=name == self.agent,
                    ),
                }

    def view_of(self, name: str) -> View:
        """The view of an agent, as it stands."""
        view = self.views.get(name, View())
        has_summaries = view.summaries is not None or name not in self.plan.view_summarizers
        return view if has_summaries else fast_replace(view, summaries=ViewSummaries())

    def append_view_summary(self, summary: SummaryMessage, rule: str) -> str:
        """Add a summary to the transcript and to the current agent's view, in place of what it covers."""
        summary = self._with_id(summary)
        entry = HistoryEntry(message=summary, position=len(self.transcript), tokens=estimate_message_tokens(summary))
        self.transcript = self.transcript.append(summary)
        view = insert_view_summary(self.view_of(self.agent), self.history, entry, rule)
        self.views = {**self.views, self.agent: view}
        return summary.id

    # ------------------------------------------------------------------------------------------ what comes next

    @property
    def open_calls(self) -> CallTools:
        """The calls that are under way; only while they are what is next."""
        assert isinstance(self.next, CallTools)
        return self.next

    def set_call(self, changed: OpenCall) -> None:
        """Replace the open call that has the same id."""
        calls = self.open_calls.calls
        self.next = fast_replace(
            self.open_calls, calls=tuple(changed if open.call.id == changed.call.id else open for open in calls)
        )

    def fail(self, error: BaseException) -> None:
        """Let the loop raise this error after the commit, instead of performing what is next; the first one counts."""
        if self.errors is None:
            raise error

        if self.failure is None:
            self.failure = Failure.of(error)
            self.errors[self.run_id] = error

    def stop_at_limit(self, limit: str, value: float) -> None:
        """End the run at a limit, with the work so far as its output."""
        self.emit(LimitReached, limit=limit, value=value)
        self.finish("limit", self.last_reply_text(), ReachedLimit(name=limit, value=value))

    def finish(
        self,
        stop_reason: StopReason,
        output: str,
        limit: ReachedLimit | None = None,
        *,
        finish_reason: AnswerReason = "stop",
        stop_text: str = "",
    ) -> None:
        """End the run. A failure of its last step becomes a warning: nothing is left that a resume could try again."""
        if self.failure is not None:
            self.emit(Warned, text=f"The run ended, although its last step failed: {self.failure.text}")
            self.failure = None

        is_unchecked = stop_reason != "completed" and checks_output(self.plan, self)
        output = "" if is_unchecked else self.plan.output_text(self.agent, output)
        self.next = Finished(
            stop_reason=stop_reason, output=output, limit=limit, finish_reason=finish_reason, stop_text=stop_text
        )

    def last_reply_text(self) -> str:
        """The newest text that an agent of this run wrote."""
        for index in range(len(self.transcript) - 1, self.inherited_messages - 1, -1):
            message = self.transcript[index]

            if isinstance(message, AssistantMessage) and message.text.strip():
                return message.text

        return ""
