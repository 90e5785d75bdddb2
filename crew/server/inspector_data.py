"""What the inspector shows of a run: its facts, threads and timeline as JSON, complete or since a cursor. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache
from typing import Any

from pydantic import JsonValue, TypeAdapter
from pydantic_core import to_json

from crew.messages import AssistantMessage, Message, ToolMessage, UserMessage
from crew.models import token_prices
from crew.runs.interfaces import Cursor, RunRecord, StoredEvent
from crew.runs.prepared import PreparedAgent
from crew.runs.state import Branch, Finished, RunState, pending_pauses, total_counters
from crew.server.access import RESERVED_PREFIX
from crew.server.inspector_items import Item
from crew.server.inspector_pauses import pause_json
from crew.server.inspector_threads import Thread, sections
from crew.server.inspector_timeline import Timeline
from crew.store.codec import encode_messages
from crew.transitions.plan import Plan

DEFAULT_PRICES = ("anthropic", "claude-sonnet-4-5")
"""The model whose prices a what-if assumes where those of the run are unknown."""

MAX_LISTED_GOAL = 80
"""The characters of the input that a list of runs shows."""


class RunView:
    """A run as the page shows it. `update` applies new events; `changes` returns what changed after a cursor."""

    def __init__(self) -> None:
        self.cursor: Cursor | None = None
        self._timeline = Timeline()
        self._record: RunRecord | None = None

    def update(self, record: RunRecord, events: Sequence[StoredEvent]) -> int:
        """Apply the events after `cursor` that led to the state of the record; the number of them.

        Events of later commits wait for a later record: they refer to messages that this one does not have.
        """
        timeline = self._timeline

        if self._record is None or record.info.version >= self._record.info.version:
            self._record = record
            timeline.add_messages(record.state)

        ready = [stored for stored in events if stored.cursor.version <= self._record.info.version]

        for stored in ready:
            timeline.add(stored.event)
            self.cursor = stored.cursor

        if self.cursor is not None:
            timeline.spans.stamp(self.cursor)

            for thread in timeline.threads:
                thread.messages.stamp(self.cursor)
                thread.requests.stamp(self.cursor)

        return len(ready)

    def changes(
        self, after: Cursor | None, status: str, *, may_answer: bool = False, plan: Plan | None = None
    ) -> dict[str, Any]:
        """The facts of the run, and the messages, requests and spans that changed after a cursor; None: all.

        `may_answer`: whether the reader may answer pauses. `plan`: the crew, if the service has it.
        """
        assert self._record is not None
        timeline = self._timeline
        return {
            "cursor": None if self.cursor is None else str(self.cursor),
            "run": self._facts(self._record, status, plan, may_answer=may_answer),
            "prices": self._prices(),
            "threads": [self._thread(thread, after) for thread in timeline.threads],
            "spans": timeline.spans.changed_after(after),
        }

    def _thread(self, thread: Thread, after: Cursor | None) -> dict[str, Any]:
        parents = [one.path for one in self._timeline.threads]
        return {
            "path": thread.path,
            "name": thread.name,
            "group": thread.group,
            "parent": -1 if thread.parent is None else parents.index(thread.parent.path),
            "inherited": thread.inherited,
            "offset": thread.offset,
            "messages": [self._with_seconds(item) for item in thread.messages.changed_after(after)],
            "requests": [_public(item) for item in thread.requests.changed_after(after)],
        }

    def _with_seconds(self, item: Item) -> Item:
        """A message, with the time of its writing as seconds since the start."""
        at = item["at"]
        return {**item, "at": None if at is None else self._timeline.seconds(at)}

    def _facts(self, record: RunRecord, status: str, plan: Plan | None, *, may_answer: bool) -> dict[str, Any]:
        info, state, timeline = record.info, record.state, self._timeline
        start, failure = timeline.start, timeline.failure
        stopped = state.next if isinstance(state.next, Finished) else None
        limit = None if stopped is None else stopped.limit
        return {
            "id": info.run_id,
            "crew": info.crew,
            "agent": info.agent,
            "status": status,
            "conversation": info.conversation_id,
            "turn": state.turn,
            "parent": state.parent_run,
            "inherited": state.inherited_messages,
            "created": info.created,
            "updated": info.updated,
            "seconds": round(timeline.seconds(timeline.last_at), 3),
            "waited": round(timeline.waited, 3),
            "goal": goal_text(state),
            "policy": policy_text(start.history_policy) if start else "",
            "limit": start.history_limit if start else None,
            "prune_to": start.prune_to if start else None,
            "totals": totals(state),
            "error": None if failure is None or stopped else {"type": failure.error_type, "text": failure.error},
            "stopped_by": None if limit is None else asdict(limit),
            "metadata": {key: value for key, value in info.metadata.items() if not key.startswith(RESERVED_PREFIX)},
            "pauses": [pause_json(pause, plan, may_answer=may_answer) for pause in pending_pauses(state)],
            "in_doubt": [asdict(doubt) for doubt in state.in_doubt],
            "traceparent": state.traceparent,
        }

    def _prices(self) -> dict[str, list[float]]:
        """The prices of each model: input, cache read, cache write, output, in dollars per million tokens."""
        start = self._timeline.started or None
        models = {
            (request["provider"], request["model"])
            for thread in self._timeline.threads
            for request in thread.requests.items
        }
        found = {model: token_prices(provider, model, start) for provider, model in sorted(models)}
        return {
            model: [prices.input, prices.cache_read, prices.cache_write, prices.output]
            for model, prices in found.items()
            if prices is not None
        }

    @property
    def model(self) -> tuple[str, str]:
        """The provider and the model of the first request."""
        for request in self._timeline.threads[0].requests.items if self._timeline.threads else ():
            return request["provider"], request["model"]

        return DEFAULT_PRICES

    @property
    def history_policy(self) -> Mapping[str, JsonValue]:
        """The policy of the run as a mapping; empty if it is not known."""
        start = self._timeline.start
        return {} if start is None else start.history_policy

    def prepared(self, head: str) -> PreparedAgent | None:
        """The agent that was prepared for the requests with this head; None if its text and tools are constants."""
        return next((one.prepared[head] for one in self._timeline.threads if head in one.prepared), None)

    def text(self, digest: str) -> str | None:
        """Instructions that a function wrote in this run, by their hash."""
        return next((one.texts[digest] for one in self._timeline.threads if digest in one.texts), None)

    @property
    def bounds(self) -> tuple[int | None, int | None]:
        """The limit of the history, and the size that it is cut to."""
        start = self._timeline.start
        return (None, None) if start is None else (start.history_limit, start.prune_to)


def _public(item: Item) -> Item:
    return {key: value for key, value in item.items() if key != "_whole"}


def goal_text(state: RunState) -> str:
    """The input of this run."""
    goal = next((message for message in state.transcript if message.id == state.history.goal), None)
    return goal.text[:2_000] if isinstance(goal, UserMessage) else ""


def list_facts(state: RunState, last_at: float) -> dict[str, Any]:
    """What a list of runs shows of a run: usage, the reasons of its pauses, and the active time, without waiting.

    `last_at` is the time of the last stored event: those of a failed attempt are not in the state.
    """
    reasons = [pause.reason for pause in pending_pauses(state)]
    found, since = totals(state), max(0.0, last_at - state.last_event_at)
    return {
        "tokens": found["in"] + found["out"],
        "cost": found["cost"],
        "pauses": reasons,
        "goal": goal_text(state)[:MAX_LISTED_GOAL],
        "seconds": round(state.active_seconds + (0.0 if reasons else since), 3),
    }


def totals(state: RunState) -> dict[str, Any]:
    """Tokens, cost and savings of a run with its branches."""
    counters = total_counters(state)
    usage = counters.usage
    return {
        "requests": usage.requests,
        "in": usage.input_tokens,
        "cached": usage.cache_read_tokens,
        "written": usage.cache_write_tokens,
        "out": usage.output_tokens,
        "cost": usage.cost,
        "known_cost": counters.known_cost,
        "saved": counters.cost_saved,
        "tokens_saved": counters.tokens_saved,
        "breaks": counters.prefix_breaks,
        "messages": len(state.transcript),
        "tools": sum(tool.calls for tool in counters.by_tool.values()),
    }


def policy_text(spec: Mapping[str, JsonValue]) -> str:
    """A policy as one writes it: `chain(mask_tool_results(keep_recent=7), summarize(limit=30))`."""
    if not spec:
        return ""

    members = spec.get("policies")

    if isinstance(members, list):
        return f"chain({', '.join(policy_text(member) for member in members if isinstance(member, dict))})"

    options = ", ".join(f"{key}={value!r}" for key, value in spec.items() if key != "name")
    return f"{spec['name']}({options})"


def find_message(state: RunState, path: str, position: int) -> Message | None:
    """A message of a run or branch; of an inherited position, the message of the parent."""
    found = {section.path: section for section in sections(state)}
    section = found.get(path)

    while section is not None and position < section.offset:
        section = found.get(section.path.rpartition("/")[0])

    if section is None or not 0 <= position - section.offset < len(section.messages):
        return None

    return section.messages[position - section.offset]


def message_bytes(message: Message) -> bytes:
    """A whole message as JSON."""
    return encode_messages([message])[0]


def recording_json(facts: object, record: RunRecord, events: Sequence[bytes]) -> bytes:
    """A run with its transcript, branches and events, as `crew simulate` reads them."""
    parts = {
        "run": to_json(facts),
        "transcript": _list(encode_messages([*record.state.transcript])),
        "branches": _branches().dump_json(record.state.branches),
        "events": _list(events),
    }
    return b"{%s}" % b",".join(b"%s:%s" % (to_json(key), part) for key, part in parts.items())


def to_json_in_parts(value: object, depth: int = 4) -> bytes:
    """JSON that is encoded in small parts: one call for all would not let other threads run until its end."""
    match value:
        case dict() if depth:
            fields = (b"%s:%s" % (to_json(key), to_json_in_parts(one, depth - 1)) for key, one in value.items())
            return b"{%s}" % b",".join(fields)
        case list() if depth:
            return _list([to_json_in_parts(one, depth - 1) for one in value])
        case _:
            return to_json(value)


def _list(items: Sequence[bytes]) -> bytes:
    return b"[%s]" % b",".join(items)


@cache
def _branches() -> TypeAdapter[tuple[Branch, ...]]:
    return TypeAdapter(tuple[Branch, ...])


def search_messages(state: RunState, words: str) -> dict[str, list[int]]:
    """The positions of the messages that contain all words, by run or branch."""
    wanted = [word.casefold() for word in words.split()]
    found: dict[str, list[int]] = {}

    for section in sections(state):
        for position, message in section.own():
            text = _search_text(message)

            if wanted and all(word in text for word in wanted):
                found.setdefault(section.path, []).append(position)

    return found


def _search_text(message: Message) -> str:
    if isinstance(message, ToolMessage):
        return "\n".join(f"{result.name}\n{result.text}" for result in message.results).casefold()

    made = message.calls if isinstance(message, AssistantMessage) else ()
    calls = "".join(f"\n{call.name}\n{call.arguments}" for call in made)
    return f"{message.text}{calls}".casefold()
