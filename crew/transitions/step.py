"""One step in the making: the state as it becomes, and what there is to tell of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

from crew.change import changed, put
from crew.history.history import History
from crew.history.summaries import has_text
from crew.history.tokens import estimate_message_tokens
from crew.interfaces import HistoryBudget, HistoryEntry, PruneDecision
from crew.messages import AssistantMessage, Message, SummaryMessage, UserMessage
from crew.runs.events import BaseEvent, Event, HistoryPruned, LimitReached
from crew.runs.state import Finished, RunState, StopReason
from crew.transitions.plan import Plan, token_budget_for

Told = TypeVar("Told", bound=BaseEvent)
Named = TypeVar("Named", bound=Message)


class Step:
    """Local to one `advance`, which is pure: nothing of it is left but the new state and the events.

    The state is the step's own copy and is written in place, because a step changes it a dozen times; what is
    captured from it before a change (`state = step.state`) is the same object after it.
    """

    def __init__(self, plan: Plan, state: RunState, event: Event, **changes: Any) -> None:
        self.plan, self.state, self.event = plan, changed(state, **changes), event
        self.emitted: list[Event] = []

    def set(self, **changes: Any) -> None:
        """Change the state."""
        put(self.state, **changes)

    def count(self, **changes: Any) -> None:
        """Change the tally."""
        self.set(counters=changed(self.state.counters, **changes))

    def emit(self, kind: type[Told], **facts: Any) -> None:
        """Tell of something, in this run's name."""
        told = kind(run_id=self.state.run_id, agent=self.state.agent, at=self.event.at, **facts)
        self.emitted.append(told)  # type: ignore[arg-type]

    # ------------------------------------------------------------------------------------------ the one append

    @property
    def history_budget(self) -> HistoryBudget:
        """How large the history may be; for a policy that counts tokens, with the window of the agent at work."""
        if not self.plan.budget.eager or self.state.agent not in self.plan.agents:
            return self.plan.budget

        gauge = token_budget_for(self.plan, self.state, self.state.agent)
        return replace(self.plan.budget, window=gauge.window, overhead_tokens=gauge.overhead_tokens)

    def append(self, message: Message, tokens: int | None = None, *, shown: Message | None = None) -> None:
        """A message enters transcript and history; where the history shows it in part, `shown` is that part."""
        entry = self._record(message, tokens, shown)
        history, pruned = self.state.history.append(entry, policy=self.plan.policy, budget=self.history_budget)
        self._accept_pruning(history, pruned)

    def append_final(self, message: Message, tokens: int) -> None:
        """The reply that ends the run enters; it never overflows."""
        entry = self._record(message, tokens, None)
        history, pruned = self.state.history.append_final(entry, policy=self.plan.policy, budget=self.history_budget)
        self._accept_pruning(history, pruned)

    def append_input(self, messages: tuple[Message, ...], tokens: tuple[int, ...]) -> None:
        """What came in, the goal last, enters at once and is pruned once."""
        entries = [self._record(m, n, None) for m, n in zip(messages, tokens, strict=True)]
        start = replace(self.state.history, goal=messages[-1].id)
        self._accept_pruning(*start.append(*entries, policy=self.plan.policy, budget=self.history_budget))

    def insert_summary(self, summary: SummaryMessage, position: int) -> str | None:
        """A summary enters at the place of what it covers; its id, or None where there is no room for it."""
        named = self._with_id(summary)
        entry = HistoryEntry(message=named, position=position, tokens=estimate_message_tokens(named))
        made = self.state.history.insert_summary(entry, budget=self.plan.budget)

        if made is None:
            return None

        self.set(transcript=self.state.transcript.append(named))
        self._accept_pruning(*made)
        return named.id

    def _record(self, message: Message, tokens: int | None, shown: Message | None) -> HistoryEntry:
        message = self._with_id(message)
        transcript = self.state.transcript
        self.set(transcript=transcript.append(message))
        counted = estimate_message_tokens(message) if tokens is None else tokens
        self.count(tokens_appended=self.state.counters.tokens_appended + counted)
        part = message if shown is None else changed(shown, id=message.id, time=message.time)

        if isinstance(part, AssistantMessage) and part.manifest is not None:
            part = changed(part, manifest=None)  # the transcript's copy tells it; the working set stays small

        return HistoryEntry(message=part, position=len(transcript), tokens=counted)

    def _with_id(self, message: Named) -> Named:
        if message.id:
            return message

        # Named after its place: a run that is watched, resumed or retried comes to the same ids.
        return changed(message, id=f"{self.state.run_id}:{len(self.state.transcript)}", time=self.event.at)

    def _accept_pruning(self, history: History, pruned: PruneDecision | None) -> None:
        self.set(history=history)

        if pruned is None:
            return

        before = sum(g.size for g in (*pruned.kept, *pruned.evicted))
        tally = self.state.counters
        self.count(
            messages_pruned=tally.messages_pruned + before - history.size,
            prunings=(*tally.prunings, (before, history.size)),
            by_policy=incremented(tally.by_policy, self.plan.policy.name),
        )
        self._note_for_summary(pruned)
        self.emit(
            HistoryPruned,
            policy=self.plan.policy.name,
            reason=pruned.reason,
            before=before,
            after=history.size,
            limit=self.plan.budget.limit or 0,
            evicted=tuple(entry.message.id for g in pruned.evicted for entry in g.entries),
            tokens_before=sum(g.tokens for g in (*pruned.kept, *pruned.evicted)),
            tokens_after=sum(g.tokens for g in pruned.kept),
        )

    def _note_for_summary(self, pruned: PruneDecision) -> None:
        """What left is noted down, if a summary shall stand for it, or was to stand for what was there before."""
        backlog = self.state.pending_summary
        # What leaves to make room for a summary belongs to the next one.
        made_room = not pruned.to_summarize and isinstance(self.state.transcript[-1], SummaryMessage)
        gone = [entry for g in pruned.evicted for entry in g.entries]
        named = [e.message.id for e in gone] if made_room and self.plan.options.summarizes else pruned.to_summarize

        if not named and not self.plan.options.summarizes:
            return

        waiting = tuple(dict.fromkeys((*backlog.message_ids, *named)))
        wordy = backlog.has_text or any(has_text(e.message) for e in gone if e.message.id in set(named))
        self.set(
            pending_summary=replace(
                backlog,
                message_ids=waiting,
                evicted_since_attempt=backlog.evicted_since_attempt + sum(g.size for g in pruned.evicted),
                has_text=wordy,
                evicted_since_request=(*backlog.evicted_since_request, *gone),
            )
        )

    # ------------------------------------------------------------------------------------------ what comes next

    def stop_at_limit(self, limit: str, value: float) -> None:
        """A limit ends the run, with the work so far."""
        self.emit(LimitReached, limit=limit, value=value)
        self.finish("limit", self.last_reply_text())

    def finish(self, stop_reason: StopReason, output: str) -> None:
        """Nothing is next."""
        output = self.plan.output_text(self.state.agent, output)
        self.set(next=Finished(stop_reason=stop_reason, output=output))

    def last_reply_text(self) -> str:
        """The newest text that an agent of this run wrote."""
        own = range(len(self.state.transcript) - 1, self.state.inherited_messages - 1, -1)
        texts = (self.state.transcript[i] for i in own)
        return next((m.text for m in texts if m.role == "assistant" and m.text.strip()), "")

    def append_framework_message(self, text: str, origin: Any) -> None:
        """The framework says something in the user's place, so that the next request ends with a user message."""
        self.append(UserMessage(text, origin=origin))


def incremented(by_policy: dict[str, int], name: str) -> dict[str, int]:
    """The counts with one more under this name."""
    return {**by_policy, name: by_policy.get(name, 0) + 1}
