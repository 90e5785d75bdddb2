"""`crew runs`, `transcript`, `explain`, `trace`, `export` and `forget`: read stored runs, or erase them."""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

from pydantic import JsonValue

from crew.agents.agent import Agent
from crew.agents.crew import Crew
from crew.engine.stored_runs import is_under_way
from crew.errors import DefinitionError
from crew.history.manifest import expand_manifests
from crew.messages import AssistantMessage, Manifest, Message
from crew.models import token_prices
from crew.runs.event_text import pluralize
from crew.runs.events import RunStarted
from crew.runs.interfaces import RunPage, RunRecord, StoredRunInfo
from crew.runs.state import RunState
from crew.secrets.registry import ExecutorSecrets
from crew.secrets.scrubbed_reader import ScrubbedReader
from crew.store.codec import MessageSection, message_sections
from crew.store.location import open_existing_store
from crew.store.rows import message_text
from crew.store.run_export import all_events, export_runs, find_runs, info_json
from crew.telemetry.text_tree import Tree

WIDTH = 100
INPUT_WIDTH, MIN_INPUT_WIDTH = 60, 30
"""Of the last column of `crew runs`: without a terminal, and in a narrow one."""


def _with_store(
    args: argparse.Namespace, work: Callable[[ScrubbedReader], Awaitable[int]], *, read_only: bool = True
) -> int:
    """Open the store for this work, which reads it without the secrets in the environment of this command."""
    store = open_existing_store(args.store, "--store", read_only=read_only)

    async def run() -> int:
        return await work(ScrubbedReader(store, ExecutorSecrets((), ()).scrubber()))

    try:
        return asyncio.run(run())
    finally:
        store.close()


# ------------------------------------------------------------------------------------------ crew runs


def runs_command(args: argparse.Namespace) -> int:
    """List the stored runs."""

    async def work(store: ScrubbedReader) -> int:
        page = await _find_page(store, args)

        if args.json:
            print(json.dumps([info_json(info) for info in page.runs], ensure_ascii=False, indent=2))
        else:
            _print_runs(page.runs, [await _input_text(store, info.run_id) for info in page.runs])

        if page.cursor is not None:
            print(f"crew: more runs with --cursor '{page.cursor}'", file=sys.stderr)

        return 0

    return _with_store(args, work)


async def _find_page(store: ScrubbedReader, args: argparse.Namespace) -> RunPage:
    """The runs that match, at most `--limit`. A store has one status for running and interrupted runs."""
    is_unfinished = args.status in ("running", "interrupted")
    read = partial(
        store.runs,
        crew=args.crew,
        status="running" if is_unfinished else args.status,
        conversation=args.conversation,
        since=None if args.since is None else _seconds(args.since),
        metadata=parse_metadata(args.metadata),
    )
    found: list[StoredRunInfo] = []
    cursor: str | None = args.cursor

    while True:
        page = await read(limit=args.limit, cursor=cursor)

        for number, stored in enumerate(page.runs, 1):
            info = await _with_status(store, stored)

            if not is_unfinished or info.status == args.status:
                found.append(info)

            if len(found) == args.limit and number < len(page.runs):
                # Ask again for the part of the page that was used: its cursor is where the next page begins.
                return RunPage(runs=tuple(found), cursor=(await read(limit=number, cursor=cursor)).cursor)

        if page.cursor is None or len(found) == args.limit:
            return RunPage(runs=tuple(found), cursor=page.cursor)

        cursor = page.cursor


async def _with_status(store: ScrubbedReader, info: StoredRunInfo) -> StoredRunInfo:
    """The facts of a run, which is interrupted if it is unfinished and nothing drives it."""
    if info.status != "running" or await is_under_way(info.run_id, store.reader):
        return info

    return replace(info, status="interrupted")


def parse_metadata(pairs: Sequence[str]) -> dict[str, JsonValue]:
    """The values by key: JSON, or else texts."""
    found: dict[str, JsonValue] = {}

    for pair in pairs:
        key, separator, text = pair.partition("=")

        if not separator:
            raise DefinitionError("--metadata", f"{pair!r} is not KEY=VALUE")

        try:
            found[key] = json.loads(text)
        except ValueError:
            found[key] = text

    return found


def _seconds(text: str) -> float:
    """A time in ISO 8601 as seconds since the epoch; in UTC, as times are printed, unless it has a time zone."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise DefinitionError("--since", f"{text!r} is not a time such as 2026-01-31 or 2026-01-31T18:30") from None

    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


async def _input_text(store: ScrubbedReader, run_id: str) -> str:
    """The input of a run, which is the last message of its first event."""
    started = [one.event for one in await store.events(run_id, limit=1)]
    inputs = [event.messages[-1] for event in started if isinstance(event, RunStarted) and event.messages]
    return message_text(inputs[0]).strip() if inputs else ""


def _print_runs(runs: Sequence[StoredRunInfo], inputs: Sequence[str]) -> None:
    """A table that fits the terminal; with the conversations if a run belongs to one that is not its own."""
    head = ["run", "status", "crew", "agent", "messages", "updated"]
    rows = [[info.run_id, info.status, info.crew, info.agent, str(info.messages), _time(info.updated)] for info in runs]

    if any(info.conversation_id != info.run_id for info in runs):
        head.append("conversation")
        rows = [[*row, info.conversation_id] for row, info in zip(rows, runs, strict=True)]

    used = sum(max(map(len, column)) + 2 for column in zip(head, *rows, strict=True))
    columns = shutil.get_terminal_size((used + INPUT_WIDTH, 0)).columns
    width = max(columns - used, MIN_INPUT_WIDTH)
    rows = [[*row, _shorten(text, width)] for row, text in zip(rows, inputs, strict=True)]
    _print_table([*head, "input"], rows)


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

    async def work(store: ScrubbedReader) -> int:
        [*_, run_id] = await find_runs(store, args.run_id)
        record = await store.run(run_id)

        for section in message_sections(record.state):
            if section.path != run_id:
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

    async def work(store: ScrubbedReader) -> int:
        [*_, run_id] = await find_runs(store, args.run_id)
        state = (await store.run(run_id)).state
        sections = [*message_sections(state)]
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
        section, index = requests[number - 1]
        path = await _asking_run(store, state, index) if section.path == run_id else section.path
        print("\n".join(request_lines(replace(section, path=path), index, known)))
        return 0

    return _with_store(args, work)


async def _asking_run(store: ScrubbedReader, state: RunState, index: int) -> str:
    """The run that made the request with this reply: this run, or an earlier turn that it continues."""
    while index < state.inherited_messages and state.parent_run:
        state = (await store.run(state.parent_run)).state

    return state.run_id


def request_lines(section: MessageSection, index: int, known: dict[str, tuple[int, Message]]) -> Iterator[str]:
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
    sent_text = pluralize(len(lines), "message")
    yield f"{sent_text} sent, {len(gone)} left out since the agent's first request · {_tokens_text(manifest)}"
    yield _prefix_text(manifest, reply.time)
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
    return _shorten(f"#{position} {speaker}: {message_text(message).lstrip()}", 60)


def _tokens_text(manifest: Manifest) -> str:
    billed = "" if manifest.tokens_billed is None else f", {manifest.tokens_billed:,} billed"
    cached = "" if manifest.cached_billed is None else f", {manifest.cached_billed:,} of them from the cache"
    return f"{manifest.tokens_estimated:,} tokens {manifest.count_method}{billed}{cached}"


def _prefix_text(manifest: Manifest, time: float) -> str:
    """What stays of the prompt cache; if the prefix moved, the tokens that are written again, and their price."""
    if not manifest.moved_by:
        return f"prefix: unchanged, {pluralize(manifest.same_messages, 'message')} can be read from the prompt cache"

    if manifest.moved_by == "first request":
        return "prefix: none, this is the first request of the agent"

    verb = "stays" if manifest.same_messages == 1 else "stay"
    kept = f"{pluralize(manifest.same_messages, 'message')} {verb}" if manifest.same_messages else "nothing stays"
    tokens = manifest.tokens_estimated - manifest.cached_predicted
    provider, _, model = manifest.model.partition(":")
    prices = token_prices(provider, model, time)
    cost = "" if prices is None else f", about ${tokens * prices.cache_write / 1_000_000:.4f}"
    moved = f"prefix: moved by {manifest.moved_by}; {kept} at the front"
    return f"{moved}, the rest is written to the cache again: {tokens:,} tokens{cost}"


# ------------------------------------------------------------------------------------------ crew trace


def trace_command(args: argparse.Namespace) -> int:
    """Print the span tree of a stored run, from its events."""

    async def work(store: ScrubbedReader) -> int:
        [*_, run_id] = await find_runs(store, args.run_id)
        record, tree = await store.run(run_id), Tree()
        observer = tree.observe(_stored_crew(record), record.state, resumes=False)

        async for one in all_events(store, run_id):
            observer(one.event)

        observer.close(None, record.state)
        print(tree)
        return 0

    return _with_store(args, work)


def _stored_crew(record: RunRecord) -> Crew:
    """A crew with the stored name: the tree needs no more of it, and the file does not hold the crew."""
    return Crew(record.info.crew, agents=[Agent(record.info.agent, model="scripted:-")])


# ------------------------------------------------------------------------------------------ crew export, crew forget


def export_command(args: argparse.Namespace) -> int:
    """Print runs as JSON lines: one for the run, each message and each event."""

    async def work(store: ScrubbedReader) -> int:
        async for line in export_runs(store, args.run_id):
            print(json.dumps(line, ensure_ascii=False))

        return 0

    return _with_store(args, work)


def forget_command(args: argparse.Namespace) -> int:
    """Erase a run or a conversation."""

    async def work(store: ScrubbedReader) -> int:
        count = await store.forget(args.id, conversation=args.conversation)
        print(f"erased {count} {'run' if count == 1 else 'runs'}")
        return 0

    return _with_store(args, work, read_only=False)
