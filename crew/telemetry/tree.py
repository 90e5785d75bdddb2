"""A run's span tree as text, from its events alone: for a terminal, with no server."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from crew.messages import Usage
from crew.runs import Event
from crew.runs.events import (
    AgentStarted,
    Asked,
    BranchFinished,
    BranchStarted,
    FellBack,
    HandedOff,
    HistoryPruned,
    LimitReached,
    Paused,
    Replied,
    Resumed,
    Retried,
    RunFailed,
    RunFinished,
    RunStarted,
    Summarised,
    ToolReturned,
    ToolsStarted,
)
from crew.telemetry import names
from crew.telemetry.redaction import safe


@dataclass(slots=True, kw_only=True, eq=False)
class Twig:
    """One line of the tree."""

    name: str
    began: float
    ended: float = 0.0
    notes: list[str] = field(default_factory=list)
    below: list[Twig] = field(default_factory=list)

    def add(self, name: str, at: float, *notes: str, ended: float = 0.0) -> Twig:
        """A line below this one."""
        twig = Twig(name=name, began=at, ended=ended, notes=[note for note in notes if note])
        self.below.append(twig)
        return twig


class Tree:
    """Grows with every event; an observer like any other, and its text is there at any time."""

    def __init__(self, crew: str = "") -> None:
        self.root = Twig(name=f"{names.INVOKE_WORKFLOW} {crew}".strip(), began=0.0)
        self.trace_id = ""
        self._bases: dict[str, Twig] = {}
        self._agents: dict[str, Twig] = {}
        self._chats: dict[str, Twig] = {}
        self._tools: dict[tuple[str, str], Twig] = {}
        self._groups: dict[str, Twig] = {}
        self._asked_of: dict[str, str] = {}

    def __call__(self, event: Event) -> None:
        self.root.began = self.root.began or event.at
        self.root.ended = max(self.root.ended, event.at)

        match event:
            case RunStarted() | Resumed():
                self.trace_id = event.trace[3:35] or self.trace_id
            case AgentStarted():
                self._end(self._agents, event.run_id, event.at)
                self._agent(event.run_id, event.agent, event.at)
            case Asked() | Replied() | Retried() | FellBack():
                self._model(event)
            case ToolsStarted() | ToolReturned() | HandedOff():
                self._tool(event)
            case BranchStarted() | BranchFinished():
                self._branch(event)
            case HistoryPruned():
                told = f"{event.before} → {event.after} messages ({event.policy}: {safe(event.reason)})"
                self._here(event.run_id).add(names.PRUNE, event.at, told, ended=event.at)
            case Paused():
                self.root.notes.append(f"paused for {', '.join(pause.reason for pause in event.pauses)}")
            case LimitReached():
                self.root.notes.append(f"limit: {event.limit}")
            case RunFailed():
                self._here(event.run_id).notes.append(f"failed: {safe(event.error)}")
            case RunFinished():
                self.root.notes += [event.stop_reason, _bill(event.usage)]
            case Summarised():
                self._here(event.run_id).add(names.COMPACT, event.at, _bill(event.usage), ended=event.at)
            case _:
                pass

    def _model(self, event: Asked | Replied | Retried | FellBack) -> None:
        match event:
            case Asked():
                here = self._agent(event.run_id, event.agent, event.at)
                self._end(self._chats, event.run_id, event.at)
                self._chats[event.run_id] = here.add(f"{names.CHAT} {safe(event.model)}", event.at)
            case Replied():
                if chat := self._chats.pop(event.run_id, None):
                    chat.ended = event.at
                    chat.notes.append(_bill(event.usage))
            case Retried():
                self._chats.get(event.run_id, self._here(event.run_id)).notes.append(
                    f"tried again: {safe(event.reason)}"
                )
            case FellBack():
                self._here(event.run_id).notes.append(
                    f"{safe(event.model)} → {safe(event.backup)}: {safe(event.reason)}"
                )

    def _tool(self, event: ToolsStarted | ToolReturned | HandedOff) -> None:
        here = self._agent(event.run_id, event.agent, event.at)

        match event:
            case ToolsStarted():
                for call in event.calls:
                    self._tools[event.run_id, call.id] = here.add(f"{names.EXECUTE_TOOL} {safe(call.name)}", event.at)
            case ToolReturned(result=result):
                tool = self._tools.pop((event.run_id, result.call_id), None)
                tool = tool or here.add(f"{names.EXECUTE_TOOL} {safe(result.name)}", event.at)
                tool.ended = event.at

                if result.outcome == "error":
                    tool.notes.append("error")
            case HandedOff():
                here.add(f"{names.EXECUTE_TOOL} transfer_to_{event.target}", event.at, ended=event.at)

    def _branch(self, event: BranchStarted | BranchFinished) -> None:
        if isinstance(event, BranchStarted):
            if event.group:
                self._end(self._agents, event.run_id, event.at)
                base = self._bases.get(event.run_id, self.root)
                group = self._groups.get(event.run_id) or base.add(f"{names.PARALLEL} {event.group}", event.at)
                self._groups[event.run_id] = self._bases[event.branch] = group
            else:
                here = self._agent(event.run_id, event.agent, event.at)
                call = here.add(f"{names.EXECUTE_TOOL} {event.tool}", event.at)
                self._bases[event.branch] = call
        else:
            if (agent := self._agents.get(event.branch)) and event.outcome != "completed":
                agent.notes.append(event.outcome)

            self._end(self._agents, event.branch, event.at)
            base = self._bases.pop(event.branch, self.root)
            base.ended = event.at

            if base is self._groups.get(event.run_id) and base not in self._bases.values():
                del self._groups[event.run_id]

    def _here(self, run_id: str) -> Twig:
        return self._agents.get(run_id) or self._bases.get(run_id, self.root)

    def _agent(self, run_id: str, agent: str, at: float) -> Twig:
        if run_id not in self._agents:
            base = self._bases.get(run_id, self.root)
            self._agents[run_id] = base.add(f"{names.INVOKE_AGENT} {agent}", at)

        return self._agents[run_id]

    def _end(self, of: dict[str, Twig], run_id: str, at: float) -> None:
        if twig := of.pop(run_id, None):
            twig.ended = at

    def __str__(self) -> str:
        lines = [_line(self.root, "", self.root.ended), *_lines(self.root, "", self.root.ended)]
        return "\n".join([*lines, f"trace {self.trace_id}"] if self.trace_id else lines)


def _lines(twig: Twig, indent: str, end: float) -> Iterator[str]:
    for number, below in enumerate(twig.below):
        last = number == len(twig.below) - 1
        yield _line(below, f"{indent}{'└─ ' if last else '├─ '}", end)
        yield from _lines(below, f"{indent}{'   ' if last else '│  '}", end)


def _line(twig: Twig, indent: str, end: float) -> str:
    notes = "  ".join(twig.notes)
    return f"{indent}{twig.name}  {_time((twig.ended or end) - twig.began)}{'  ' if notes else ''}{notes}"


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{max(0.0, seconds) * 1000:.1f} ms"


def _bill(usage: Usage) -> str:
    cached = f" ({usage.cache_read_tokens} cached)" if usage.cache_read_tokens else ""
    money = "" if usage.cost is None else f"  ${usage.cost:.4f}" if usage.cost else ""
    return f"{usage.input_tokens}{cached} → {usage.output_tokens} tokens{money}"
