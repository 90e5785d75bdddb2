"""The timeline of a run for the inspector: agents, requests, tool calls and branches, each with start and end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pydantic_core import to_json

from crew.runs.event_text import event_text
from crew.runs.events import (
    AgentPrepared,
    AgentStarted,
    Asked,
    BranchFinished,
    BranchStarted,
    CallHeld,
    CallLost,
    Cancelled,
    Compacted,
    CompactionFailed,
    Event,
    FellBack,
    GuardrailChecked,
    HandedOff,
    HistoryPruned,
    LimitReached,
    Paused,
    QuestionAsked,
    Replied,
    Resumed,
    Retried,
    Routed,
    RunFailed,
    RunFinished,
    RunStarted,
    Summarised,
    TooLong,
    ToolReturned,
    ToolsStarted,
)
from crew.runs.state import RunState
from crew.server.inspector_items import Item, ItemList
from crew.server.inspector_pauses import answer_word, question_text
from crew.server.inspector_threads import Section, Thread, cut, sections


@dataclass(slots=True, kw_only=True, eq=False)
class Open:
    """What is under way in one run or branch: its span, the agent, the request, the calls by key."""

    thread: Thread
    span: Item
    agent: Item | None = None
    chat: Item | None = None
    request: Item | None = None
    calls: dict[str, Item] = field(default_factory=dict)
    held: dict[str, Item] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    summary: Summarised | None = None


class Timeline:
    """Builds spans from events, in order. Times are seconds since the start, without the time that the run waited."""

    def __init__(self) -> None:
        self.spans = ItemList()
        self.threads: list[Thread] = []
        self.started = 0.0
        self.waited = 0.0
        self.waits: list[tuple[float, float]] = []
        self.last_at = 0.0
        self.failure: RunFailed | None = None
        self.start: RunStarted | None = None
        self._sections: dict[str, Section] = {}
        self._runs: dict[str, Open] = {}
        self._groups: dict[tuple[str, str], Item] = {}

    def seconds(self, at: float) -> float:
        """The seconds that the run had been at work at this time."""
        waited = sum(length for end, length in self.waits if end <= at)
        return round(max(0.0, at - self.started - waited), 3)

    def thread(self, path: str) -> Thread | None:
        """The transcript of a run or branch."""
        found = self._runs.get(path)
        return None if found is None else found.thread

    def add_messages(self, state: RunState) -> None:
        """Add the messages that are new in this state; called before the events that led to it."""
        self._sections = {section.path: section for section in sections(state)}

        for run in self._runs.values():
            self._add_messages(run.thread)

    def _add_messages(self, thread: Thread) -> None:
        if (section := self._sections.get(thread.path)) is not None:
            thread.add_messages(section)

    def add(self, event: Event) -> None:
        """Apply the next event."""
        if isinstance(event, RunStarted):
            self.start, self.started, self.last_at = event, event.at, event.at
            self._open_run(event)
        elif isinstance(event, Resumed) and not self._is_branch(event):
            self._resume(event)

        run = self._runs.get(event.run_id)

        if run is not None:
            self._apply(run, event, self.seconds(event.at))

        self.last_at = max(self.last_at, event.at)

    @staticmethod
    def _is_branch(event: Event) -> bool:
        return "/" in event.run_id

    # ------------------------------------------------------------------------------------------ runs and branches

    def _open_run(self, event: Event) -> None:
        thread = Thread(path=event.run_id, name="main")
        self.threads.append(thread)
        self._add_messages(thread)
        span = self.spans.add(self._span(None, "run", "", 0.0, 0))
        self._runs[event.run_id] = Open(thread=thread, span=span)

    def _resume(self, event: Resumed) -> None:
        """The time between the last event and a resume is waiting time, which the timeline leaves out."""
        gap = max(0.0, event.at - self.last_at)
        self.waits.append((event.at, gap))
        self.waited += gap
        self.failure = None

        for run in self._runs.values():
            run.thread.touch_since(event.at)

            if run.span["e"] is not None and run.span.pop("stopped", None):
                self.spans.change(run.span, e=None)

            for key in [key for key in run.held if key in event.answers]:
                span = run.held.pop(key)
                word = answer_word(span.get("why", ""), event.answers[key])
                self.spans.change(span, e=self.seconds(event.at), answer=word)

    def _span(self, parent: Item | None, kind: str, name: str, at: float, thread: int, **facts: Any) -> Item:
        return {
            "p": -1 if parent is None else parent["i"],
            "k": kind,
            "name": name,
            "s": at,
            "e": None,
            "t": thread,
        } | {key: value for key, value in facts.items() if value not in (None, "")}

    def _add(self, run: Open, kind: str, name: str, at: float, *, under: Item | None = None, **facts: Any) -> Item:
        parent = under or run.agent or run.span
        return self.spans.add(self._span(parent, kind, name, at, self.threads.index(run.thread), **facts))

    def _note(self, run: Open, event: Event, at: float) -> None:
        self.spans.change(self._add(run, "warn", event_text(event), at, under=run.chat), e=at)

    def _start_branch(self, run: Open, event: BranchStarted, at: float) -> None:
        name = event.branch.rpartition("/")[2]
        parent = run.agent or run.span

        if event.group:
            parent = self._groups.get((event.run_id, event.group)) or self._start_group(run, event.group, at)

        thread = Thread(path=event.branch, name=event.tool or name, parent=run.thread, group=event.group)
        self.threads.append(thread)
        self._add_messages(thread)
        number = len(self.threads) - 1
        span = self.spans.add(self._span(parent, "branch", thread.name, at, number, call=event.call_id))
        self._runs[event.branch] = Open(thread=thread, span=span)

    def _start_group(self, run: Open, group: str, at: float) -> Item:
        self._end_agent(run, at)
        made = self._add(run, "parallel", group, at)
        self._groups[run.thread.path, group] = made
        return made

    def _finish_branch(self, event: BranchFinished, at: float) -> None:
        branch = self._runs.get(event.branch)

        if branch is None:
            return

        self._end(branch, at)
        self.spans.change(branch.span, outcome=event.outcome, bad=event.outcome == "failed", d=event.error)
        self._end_groups(at)

    def _end_groups(self, at: float) -> None:
        """End the groups whose branches have all ended; a branch that is stopped does not name its group."""
        for key, group in [*self._groups.items()]:
            under = [span for span in self.spans.items[group["i"] :] if span["p"] == group["i"]]

            if all(span["e"] is not None for span in under):
                self.spans.change(group, e=at)
                del self._groups[key]

    def _end_agent(self, run: Open, at: float) -> None:
        if run.agent is not None:
            self.spans.change(run.agent, e=at)
            run.agent = None

    def _end(self, run: Open, at: float, reason: str = "stopped") -> None:
        """End a run or branch with all that is under way in it."""
        if run.request is not None:
            run.thread.fail(run.request, reason, at)

        for span in (run.chat, run.agent, *run.calls.values(), *run.held.values(), run.span):
            if span is not None and span["e"] is None:
                self.spans.change(span, e=at)

        run.agent = run.chat = run.request = None
        run.calls.clear()
        run.held.clear()

    # ------------------------------------------------------------------------------------------ events

    def _apply(self, run: Open, event: Event, at: float) -> None:
        match event:
            case AgentStarted():
                self._end_agent(run, at)
                run.agent = self._add(run, "agent", event.agent, at, under=run.span)
            case BranchStarted():
                self._start_branch(run, event, at)
            case BranchFinished():
                self._finish_branch(event, at)
            case HandedOff():
                made = self._add(run, "handoff", event.target, at, call=event.call_id)
                self.spans.change(made, e=at)
                self._end_agent(run, at)
            case Routed():
                made = self._add(run, "handoff", event.target or "the end", at, d=event.signal)
                self.spans.change(made, e=at)
            case Paused():
                self._pause(event, at)
            case Cancelled() | RunFinished():
                for one in reversed([*self._runs.values()]) if not self._is_branch(event) else [run]:
                    self._end(one, at)

                self._end_groups(at)
            case RunFailed():
                self._fail(run, event, at)
            case _:
                self._apply_step(run, event, at)

    def _fail(self, run: Open, event: RunFailed, at: float) -> None:
        if not self._is_branch(event):
            self.failure = event

        self._end(run, at, event.error)
        self.spans.change(run.span, bad=True, d=event.error, stopped=True)

    def _apply_step(self, run: Open, event: Event, at: float) -> None:
        match event:
            case AgentPrepared():
                run.thread.prepare(event)
            case Asked():
                self._end_request(run, at, "asked again")
                run.request = run.thread.ask(event, at)
                run.chat = self._add(run, "chat", "", at, r=run.request["n"])
            case Replied():
                if run.request is not None and run.chat is not None:
                    run.thread.reply(run.request, event, at)
                    self.spans.change(run.chat, e=at, m=run.request.get("reply"))

                run.request = run.chat = None
                run.names = {call.id: call.name for call in event.message.calls}
            case TooLong() | FellBack():
                self._note(run, event, at)
                self._end_request(run, at, event.reason)
            case Retried():
                self._retry(run, event, at)
            case ToolsStarted() | ToolReturned() | CallHeld() | QuestionAsked() | CallLost():
                self._apply_call(run, event, at)
            case GuardrailChecked():
                self._check(run, event, at)
            case HistoryPruned() | Summarised() | Compacted() | CompactionFailed():
                self._apply_pruning(run, event, at)
            case LimitReached():
                self.spans.change(self._add(run, "warn", event_text(event), at), e=at, bad=True)
            case _ if event.severity in ("warning", "error"):
                self._note(run, event, at)
            case _:
                pass

    def _end_request(self, run: Open, at: float, reason: str) -> None:
        if run.request is not None:
            run.thread.fail(run.request, reason, at)

        if run.chat is not None:
            self.spans.change(run.chat, e=at, bad=True, d=reason)

        run.request = run.chat = None

    def _retry(self, run: Open, event: Retried, at: float) -> None:
        if run.chat is None or run.request is None:
            return

        before = [span for span in self.spans.items if span["p"] == run.chat["i"]]
        start = max([run.chat["s"], *(span.get("next", 0.0) for span in before)])
        name = f"attempt {event.attempt}: {cut(event.reason)}"
        made = self._add(run, "retry", name, start, under=run.chat, next=round(at + event.wait, 3))
        self.spans.change(made, e=at)
        run.thread.requests.change(run.request, retries=run.request["retries"] + 1)

    def _check(self, run: Open, event: GuardrailChecked, at: float) -> None:
        """A decision of a guardrail: on what, and in which words."""
        wrote = event.text if event.arguments is None else to_json(event.arguments).decode()
        made = self._add(
            run,
            "guard",
            event.guardrail,
            max(0.0, round(at - event.seconds, 3)),
            on=event.tool or event.on,
            outcome=event.outcome,
            d=cut(event.words),
            wrote=cut(wrote),
            call=event.call_id,
            cost=event.usage.cost if event.usage.requests else None,
        )
        self.spans.change(made, e=at, bad=event.outcome == "refused")

    def _pause(self, event: Paused, at: float) -> None:
        """The run waits for answers; a call that waits for approval has its span already."""
        for pause in event.pauses:
            run = self._runs.get(pause.run_id)

            if run is not None and pause.id not in run.held:
                name, call = (pause.agent, "") if pause.call is None else (pause.call.name, pause.call.id)
                text = cut(question_text(pause))
                made = self._add(run, "held", name, at, key=pause.id, why=pause.reason, call=call, d=text)
                run.held[pause.id] = made

    def _apply_call(
        self, run: Open, event: ToolsStarted | ToolReturned | CallHeld | QuestionAsked | CallLost, at: float
    ) -> None:
        match event:
            case ToolsStarted():
                for call, key in zip(event.calls, event.keys or [call.id for call in event.calls], strict=False):
                    if (held := run.held.pop(key, None)) is not None:
                        self.spans.change(held, e=at, answer="approved")

                    if (before := run.calls.pop(key, None)) is not None:
                        self.spans.change(before, e=at)  # it asked a person, or was interrupted, and runs again

                    args = cut(call.arguments)
                    run.calls[key] = self._add(run, "tool", call.name, at, call=call.id, key=key, args=args)
            case CallHeld():
                key = event.key or event.call_id
                run.held[key] = self._add(
                    run, "held", run.names.get(event.call_id, ""), at, call=event.call_id, key=key, why="approval"
                )
            case QuestionAsked():
                if (asking := run.calls.pop(event.key, None)) is not None:
                    self.spans.change(asking, e=at)  # it runs again once the question is answered
            case CallLost():
                lost = [key for key, span in run.calls.items() if span.get("call") == event.call_id]

                for key in lost:
                    self.spans.change(run.calls.pop(key), e=at, bad=True, d="lost: it may have taken effect")
            case ToolReturned():
                result, key = event.result, event.key or event.result.call_id
                span = run.calls.pop(key, None) or self._add(run, "tool", result.name, at, call=result.call_id)
                run.thread.note_seconds(key.rpartition(":")[2], round(event.seconds, 3))
                self.spans.change(span, e=at, tok=event.tokens, bad=result.outcome != "ok", m=event.position)

    def _apply_pruning(
        self, run: Open, event: HistoryPruned | Summarised | Compacted | CompactionFailed, at: float
    ) -> None:
        match event:
            case HistoryPruned():
                item = run.thread.pruned(event)
                count = len(item["masked"])
                text = (
                    f"{event.before} → {event.after} messages"
                    if item["kind"] == "prune"
                    else f"{count} result{'s' * (count != 1)}"
                )
                made = self._add(run, item["kind"], event.policy, at, d=text, why=event.reason)
                self.spans.change(made, e=at)
            case Summarised():
                run.summary = event
            case Compacted() | CompactionFailed():
                usage, seconds = (run.summary.usage, run.summary.seconds) if run.summary else (None, 0.0)
                item = run.thread.summarised(event, usage.cost if usage else None)
                run.summary = None
                start = max(0.0, round(at - seconds, 3))
                made = self._add(run, "compact", event.cause, start, d=item.get("reason"), covers=item.get("covers"))
                bad = isinstance(event, CompactionFailed)
                self.spans.change(made, e=at, cost=usage.cost if usage else None, bad=bad, m=item.get("m"))
