"""The transcripts of a run and of its branches for the inspector: messages, and what each request held of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from crew.history.tokens import estimate_message_tokens
from crew.messages import (
    AssistantMessage,
    Disposition,
    Manifest,
    ManifestLine,
    Message,
    SummaryMessage,
    SystemMessage,
    ToolMessage,
    UserMessage,
)
from crew.runs.events import AgentPrepared, Asked, Compacted, CompactionFailed, HistoryPruned, Replied
from crew.runs.prepared import PreparedAgent
from crew.runs.state import Branch, RunState
from crew.server.inspector_items import Item, ItemList

PREVIEW = 240
"""The characters of a message that the page gets at once; it asks for the whole message when it is opened."""

FORMS: dict[Disposition, int] = {"kept": 0, "masked": 1, "cut": 2, "text_only": 3, "marker": 4}
"""How a request showed a message, as the page numbers it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """The transcript of a run or branch: its own messages begin at position `inherited`."""

    path: str
    messages: Sequence[Message]
    inherited: int
    goal: str = ""
    offset: int = 0

    def own(self) -> Iterator[tuple[int, Message]]:
        """The messages that the page does not have from the parent, with their positions."""
        return enumerate(self.messages, self.offset)


def sections(state: RunState) -> Iterator[Section]:
    """The transcripts of a run, of its branches under way, and of those that ended."""
    yield Section(
        path=state.run_id, messages=state.transcript, inherited=state.inherited_messages, goal=state.history.goal
    )
    yield from _sections_below(state)


def _sections_below(state: RunState) -> Iterator[Section]:
    for child in state.children.values():
        start = child.inherited_messages
        own = child.transcript[start:]
        yield Section(path=child.run_id, messages=own, inherited=start, goal=child.history.goal, offset=start)
        yield from _sections_below(child)

    yield from _record_sections(state.branches)


def _record_sections(records: Sequence[Branch]) -> Iterator[Section]:
    for record in records:
        start = record.inherited_messages
        goal = record.transcript[0].id if record.transcript and not start else ""
        yield Section(path=record.run_id, messages=record.transcript, inherited=start, goal=goal, offset=start)
        yield from _record_sections(record.branches)


@dataclass(slots=True, kw_only=True, eq=False)
class Thread:
    """One transcript and its requests, as the page shows them.

    `messages` holds the own messages; those of the parent that a branch inherited have the positions before them.
    """

    path: str
    name: str
    parent: Thread | None = None
    inherited: int = 0
    offset: int = 0
    group: str = ""
    messages: ItemList = field(default_factory=ItemList)
    requests: ItemList = field(default_factory=ItemList)
    positions: dict[str, int] = field(default_factory=dict)
    bases: dict[str, tuple[int | None, list[list[int]]]] = field(default_factory=dict)
    before: list[Item] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    prepared: dict[str, PreparedAgent] = field(default_factory=dict)
    heads: dict[str, str] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)

    # ------------------------------------------------------------------------------------------ messages

    def position(self, id: str) -> int:
        """The position of a message; -1 if it is not in the transcript, such as a marker."""
        thread: Thread | None = self

        while thread is not None:
            if (found := thread.positions.get(id)) is not None:
                return found

            thread = thread.parent

        return -1

    def add_messages(self, section: Section) -> None:
        """Add the messages that are new in the transcript."""
        self.inherited, self.offset = section.inherited, section.offset

        for position, message in section.own():
            index = position - section.offset

            if index < len(self.messages.items):
                continue

            self.positions[message.id] = position
            item = message_json(message, position, self)
            own = self.parent is not None or position >= section.inherited
            item["at"] = message.time if own and message.time else None
            item["goal"] = message.id == section.goal

            if not own and isinstance(message, AssistantMessage) and message.manifest is not None:
                self._remember(message.manifest)  # a request of an earlier run, on which later manifests build

            self.messages.add(item)

    def note_seconds(self, key: str, seconds: float) -> None:
        """A call took so long; `key` is the position of its reply and its index there."""
        self.seconds[key] = seconds
        reply, _, index = key.partition(".")
        place = int(reply) + 1 - self.offset if reply.isdecimal() else -1

        if 0 <= place < len(self.messages.items):
            item = self.messages.items[place]
            results = item.get("results", ())

            if index.isdecimal() and int(index) < len(results):
                results[int(index)]["s"] = seconds
                self.messages.touch(item)

    def touch_since(self, at: float) -> None:
        """Messages written after this time have another time since the start: the run waited before."""
        for item in self.messages.items:
            if (item["at"] or 0.0) >= at:
                self.messages.touch(item)

    def _remember(self, manifest: Manifest) -> None:
        base = self.bases.get(manifest.agent, (None, []))[1]
        self.bases[manifest.agent] = (None, [*base[: manifest.same_messages], *self._lines(manifest.tail)])

    def _lines(self, lines: Sequence[ManifestLine]) -> list[list[int]]:
        return [[self.position(line.id), FORMS.get(line.disposition, 0), line.tokens] for line in lines]

    # ------------------------------------------------------------------------------------------ requests

    def prepare(self, event: AgentPrepared) -> None:
        """The instructions and toolsets of an agent were resolved; its next requests have them."""
        self.prepared[event.prepared.head] = event.prepared
        self.heads[event.agent] = event.prepared.head
        self.texts |= event.texts

    def ask(self, event: Asked, seconds: float) -> Item:
        """A request was sent."""
        manifest = event.manifest
        item = self.requests.add(
            {
                "n": len(self.requests.items) + 1,
                "agent": event.agent,
                "head": self.heads.get(event.agent, ""),
                "provider": event.provider,
                "model": event.model,
                "at": seconds,
                "end": None,
                "in": event.tokens_estimated,
                "lines": [],
                "same": 0,
                "base": None,
                "before": self.before,
                "retries": 0,
            }
        )
        self.before = []

        if manifest is not None:
            item |= self._manifest(manifest)

        return item

    def _manifest(self, manifest: Manifest) -> Item:
        base, known = self.bases.get(manifest.agent, (None, []))
        tail = self._lines(manifest.tail)
        whole = [*known[: manifest.same_messages], *tail]
        self._learn_tokens(whole)
        return {
            "base": base,
            "same": manifest.same_messages,
            "lines": whole if base is None else tail,
            "removed": [
                [self.position(line.id), int(line.disposition == "summarised"), line.reason]
                for line in manifest.removed
            ],
            "rule": manifest.moved_by,
            "fixed": manifest.overhead_tokens,
            "window": manifest.window,
            "digest": manifest.digest,
            "prefix": manifest.prefix_digest,
            "predicted": manifest.cached_predicted,
            "repairs": list(manifest.repairs),
            "_whole": whole,
        }

    def _learn_tokens(self, lines: Sequence[Sequence[int]]) -> None:
        """A manifest has the tokens of messages as they were billed; those of a masked message are not its own."""
        for position, form, tokens in lines:
            index = position - self.offset

            if not form and tokens and 0 <= index < len(self.messages.items):
                self.messages.change(self.messages.items[index], tok=tokens)

    def reply(self, item: Item, event: Replied, seconds: float) -> None:
        """A request was answered."""
        usage, position = event.usage, self.position(event.message.id)
        item |= {
            "end": seconds,
            "in": usage.input_tokens,
            "cached": usage.cache_read_tokens,
            "written": usage.cache_write_tokens,
            "out": usage.output_tokens,
            "cost": usage.cost,
            "saved": event.cost_saved,
            "unpruned": event.unpruned_tokens,
            "model": event.model or item["model"],
            "finish": event.finish_reason,
        }

        if position >= 0:  # a reply that a guardrail refused is not in the transcript
            item |= {"reply": position, "seen": position}

        self.requests.touch(item)

        if "_whole" in item:
            self.bases[item["agent"]] = (item["i"], item.pop("_whole"))

    def fail(self, item: Item, reason: str, seconds: float) -> None:
        """A request was refused, or its run failed."""
        item.pop("_whole", None)
        self.requests.change(item, end=seconds, failed=reason)

    def pruned(self, event: HistoryPruned) -> Item:
        """Messages left the history or a view, or are masked or cut in it."""
        kind = "prune" if event.evicted else "mask" if event.masked else "cut"
        item: Item = {
            "kind": kind,
            "policy": event.policy,
            "reason": event.reason,
            "before": event.before,
            "after": event.after,
            "tokens": [event.tokens_before, event.tokens_after],
            "where": event.where,
            "agent": event.agent,
            "ids": [self.position(id) for id in event.evicted],
            "masked": [self.position(id) for id in (*event.masked, *event.cut)],
        }
        self.before.append(item)
        return item

    def summarised(self, event: Compacted | CompactionFailed, cost: float | None) -> Item:
        """A summary replaced messages, or could not be made."""
        item: Item = {"kind": "summary", "policy": event.cause, "where": event.where, "cost": cost}

        if isinstance(event, Compacted):
            item |= {
                "covers": len(event.covers),
                "tokens": [event.tokens_before, event.tokens_after],
                "m": self.position(event.summary),
            }
        else:
            item |= {"kind": "failed", "reason": event.reason, "waiting": event.pending_messages}

        self.before.append(item)
        return item


def cut(text: str) -> str:
    """The beginning of a text."""
    return text if len(text) <= PREVIEW else text[:PREVIEW]


def message_json(message: Message, position: int, thread: Thread) -> Item:
    """What the page shows of a message in its lists."""
    item: Item = {
        "pos": position,
        "id": message.id,
        "role": message.role,
        "tok": estimate_message_tokens(message),
    }

    match message:
        case AssistantMessage():
            item |= {"agent": message.agent, **_text(message.text)}
            item["calls"] = [
                {"id": one.id, "name": one.name, "args": cut(one.arguments), "len": len(one.arguments)}
                for one in message.calls
            ]
        case ToolMessage():
            item["results"] = [
                {"id": one.call_id, "name": one.name, "outcome": one.outcome, **_text(one.text)}
                | ({"s": thread.seconds[key]} if (key := f"{position - 1}.{index}") in thread.seconds else {})
                for index, one in enumerate(message.results)
            ]
        case UserMessage():
            item |= {"origin": message.origin, **_text(message.text), "images": len(message.images)}
        case SummaryMessage():
            item |= {**_text(message.text), "covers": [thread.position(id) for id in message.covers]}
        case SystemMessage():
            item |= _text(message.text)

    return item


def _text(text: str) -> dict[str, Any]:
    return {"text": cut(text), "len": len(text)}
