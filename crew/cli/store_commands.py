"""`crew runs`, `transcript`, `explain`, `trace`, `export` and `forget`: read stored runs, or erase them."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime

from crew.agents.agent import Agent
from crew.agents.crew import Crew
from crew.errors import DefinitionError
from crew.history.manifest import expand_manifests
from crew.messages import AssistantMessage, Manifest, Message
from crew.runs.interfaces import Cursor, RunRecord, StoredEvent, StoredRunInfo
from crew.store.codec import MessageSection, encode_events, encode_messages, message_sections
from crew.store.location import OpenedStore, open_existing_store
from crew.store.rows import message_text
from crew.telemetry.text_tree import Tree

WIDTH = 100


def _with_store(args: argparse.Namespace, work: Callable[[OpenedStore], Awaitable[int]]) -> int:
    store = open_existing_store(args.store, "--store")

    async def run() -> int:
        return await work(store)

    try:
        return asyncio.run(run())
    finally:
        store.close()


# ------------------------------------------------------------------------------------------ crew runs


def runs_command(args: argparse.Namespace) -> int:
    """List the stored runs."""

    async def work(store: OpenedStore) -> int:
        page = await store.runs(
            crew=args.crew, status=args.status, conversation=args.conversation, limit=args.limit, cursor=args.cursor
        )

        if args.json:
            print(json.dumps([_info_json(info) for info in page.runs], ensure_ascii=False, indent=2))
        else:
            _print_table(("run", "status", "crew", "agent", "messages", "updated"), map(_run_row, page.runs))

        if page.cursor is not None:
            print(f"crew: more runs with --cursor '{page.cursor}'", file=sys.stderr)

        return 0

    return _with_store(args, work)


def _run_row(info: StoredRunInfo) -> tuple[str, ...]:
    return info.run_id, info.status, info.crew, info.agent, str(info.messages), _time(info.updated)


def _info_json(info: StoredRunInfo) -> dict[str, object]:
    return {
        "run_id": info.run_id,
        "conversation_id": info.conversation_id,
        "crew": info.crew,
        "agent": info.agent,
        "status": info.status,
        "messages": info.messages,
        "created": info.created,
        "updated": info.updated,
        "metadata": dict(info.metadata),
    }


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _print_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    lines = [head, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]

    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


# ------------------------------------------------------------------------------------------ crew transcript


def transcript_command(args: argparse.Namespace) -> int:
    """Print every message of a run, and how the newest request of each agent treated it."""

    async def work(store: OpenedStore) -> int:
        record = await store.run(args.run_id)

        for section in message_sections(record.state):
            if section.path != args.run_id:
                print(f"\n{section.path}:")

            treatment = _treatment(section.messages)

            for position, message in section.numbered():
                _print_message(position, message, treatment.get(message.id, {}), whole=args.full)

        return 0

    return _with_store(args, work)


def _treatment(messages: Sequence[Message]) -> dict[str, dict[str, str]]:
    """For each message id and agent: what the newest request of this agent did with it."""
    found: dict[str, dict[str, str]] = {}

    for agent, manifests in _manifests(messages).items():
        removed = {line.id: line.disposition for manifest in manifests for line in manifest.removed}
        shown = {line.id: line.disposition for line in expand_manifests(manifests)}

        for id, disposition in {**removed, **shown}.items():
            found.setdefault(id, {})[agent] = disposition

    return found


def _manifests(messages: Sequence[Message]) -> dict[str, list[Manifest]]:
    """The manifests of the requests that were answered, by agent, in order."""
    found: dict[str, list[Manifest]] = {}

    for message in messages:
        if isinstance(message, AssistantMessage) and message.manifest is not None:
            found.setdefault(message.manifest.agent, []).append(message.manifest)

    return found


def _print_message(position: int, message: Message, treatment: dict[str, str], *, whole: bool) -> None:
    speaker = message.agent if isinstance(message, AssistantMessage) else message.role
    hidden = [f"{how} for {agent}" for agent, how in treatment.items() if how != "kept"]
    note = f"  [{', '.join(hidden)}]" if hidden else ""
    text = message_text(message)
    print(f"#{position} {speaker}: {text if whole else _shorten(text)}{note}")


def _shorten(text: str, width: int = WIDTH) -> str:
    line = " ⏎ ".join(text.strip("\n").splitlines())
    return line if len(line) <= width else line[: width - 1] + "…"


# ------------------------------------------------------------------------------------------ crew explain


def explain_command(args: argparse.Namespace) -> int:
    """Explain one request: what it held, what was left out and why, and what moved the cached prefix."""

    async def work(store: OpenedStore) -> int:
        sections = [*message_sections((await store.run(args.run_id)).state)]
        requests = [
            (section, index)
            for section in sections
            for index, message in enumerate(section.messages)
            if isinstance(message, AssistantMessage) and message.manifest is not None
        ]

        if not requests:
            print("This run has no answered request.")
            return 0

        number = len(requests) if args.request is None else args.request

        if not 1 <= number <= len(requests):
            raise DefinitionError("--request", f"must be 1 to {len(requests)}, not {number}")

        requests.sort(key=lambda request: request[0].messages[request[1]].time)
        print(f"request {number} of {len(requests)}")
        known = {message.id: (position, message) for one in sections for position, message in one.numbered()}
        print("\n".join(_explanation(*requests[number - 1], known)))
        return 0

    return _with_store(args, work)


def _explanation(section: MessageSection, index: int, known: dict[str, tuple[int, Message]]) -> Iterator[str]:
    """The lines about the request that led to this reply; `known` are all messages of the run by id."""
    earlier = _manifests(section.messages[: index + 1])
    reply = section.messages[index]
    assert isinstance(reply, AssistantMessage)
    assert reply.manifest is not None
    manifests = earlier[reply.manifest.agent]
    manifest, lines = manifests[-1], expand_manifests(manifests)
    sent = {line.id for line in lines}
    gone = {line.id: line for one in manifests for line in one.removed if line.id not in sent}
    yield f"{section.path} · {manifest.agent} · {manifest.model} · window {manifest.window:,} tokens"
    yield f"{len(lines)} messages sent, {len(gone)} left out since the agent's first request · {tokens_text(manifest)}"
    yield prefix_text(manifest)
    yield from (f"repaired: {repair}" for repair in manifest.repairs)

    for line in lines:
        reason = f" by {line.reason}" if line.reason else ""
        yield f"  ● {_excerpt(line.id, known)}  {line.disposition}{reason}, {line.tokens:,} tokens"

    for line in gone.values():
        yield f"  ○ {_excerpt(line.id, known)}  {line.disposition} by {line.reason or 'the policy'}"


def _excerpt(id: str, known: dict[str, tuple[int, Message]]) -> str:
    if id not in known:
        return id  # the marker of a truncated view

    position, message = known[id]
    speaker = message.agent if isinstance(message, AssistantMessage) else message.role
    return _shorten(f"#{position} {speaker}: {message_text(message)}", 60)


def tokens_text(manifest: Manifest) -> str:
    billed = "" if manifest.tokens_billed is None else f", {manifest.tokens_billed:,} billed"
    cached = "" if manifest.cached_billed is None else f", {manifest.cached_billed:,} of them from the cache"
    return f"{manifest.tokens_estimated:,} tokens {manifest.count_method}{billed}{cached}"


def prefix_text(manifest: Manifest) -> str:
    if not manifest.moved_by:
        return f"prefix: unchanged, {manifest.same_messages} messages can be read from the prompt cache"

    if manifest.moved_by == "first request":
        return "prefix: none, this is the first request of the agent"

    kept = f"{manifest.same_messages} messages stay" if manifest.same_messages else "nothing stays"
    return f"prefix: moved by {manifest.moved_by}; {kept} at the front, the rest is written to the cache again"


# ------------------------------------------------------------------------------------------ crew trace


def trace_command(args: argparse.Namespace) -> int:
    """Print the span tree of a stored run, from its events."""

    async def work(store: OpenedStore) -> int:
        record = await store.run(args.run_id)
        events = await _all_events(store, args.run_id)
        tree = Tree()
        observer = tree.observe(_stored_crew(record), record.state, resumes=False)

        for one in events:
            observer(one.event)

        observer.close(None, record.state)
        print(tree)
        return 0

    return _with_store(args, work)


def _stored_crew(record: RunRecord) -> Crew:
    """A crew with the stored name: the tree needs no more of it, and the file does not hold the crew."""
    return Crew(record.info.crew, agents=[Agent(record.info.agent, model="scripted:-")])


async def _all_events(store: OpenedStore, run_id: str) -> list[StoredEvent]:
    found: list[StoredEvent] = []
    after: Cursor | None = None

    while page := await store.events(run_id, after):
        found += page
        after = page[-1].cursor

    return found


# ------------------------------------------------------------------------------------------ crew export, crew forget


def export_command(args: argparse.Namespace) -> int:
    """Print runs as JSON lines: one for the run, each message and each event."""

    async def work(store: OpenedStore) -> int:
        ids = [args.run_id] if args.run_id is not None else [info.run_id async for info in _all_runs(store)]

        for run_id in ids:
            record = await store.run(run_id)
            print(json.dumps({"type": "run", **_info_json(record.info)}, ensure_ascii=False))

            for section in message_sections(record.state):
                for position, data in enumerate(encode_messages(section.messages), section.start):
                    head = {"type": "message", "run_id": section.path, "position": position}
                    print(json.dumps({**head, "message": json.loads(data)}, ensure_ascii=False))

            for one in await _all_events(store, run_id):
                head = {"type": "event", "run_id": run_id, "cursor": str(one.cursor)}
                [event] = json.loads(encode_events([one.event]))["events"]
                print(json.dumps({**head, "event": event}, ensure_ascii=False))

        return 0

    return _with_store(args, work)


async def _all_runs(store: OpenedStore) -> AsyncIterator[StoredRunInfo]:
    cursor: str | None = None

    while True:
        page = await store.runs(limit=200, cursor=cursor)

        for info in page.runs:
            yield info

        cursor = page.cursor

        if cursor is None:
            return


def forget_command(args: argparse.Namespace) -> int:
    """Erase a run or a conversation."""

    async def work(store: OpenedStore) -> int:
        count = await store.forget(args.id)
        print(f"erased {count} {'run' if count == 1 else 'runs'}")
        return 0

    return _with_store(args, work)
