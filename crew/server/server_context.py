"""`ServerContext`: what every route of the service needs, and the reads that are filtered by the principal."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TypeVar

from crew.engine.stored_runs import is_under_way
from crew.errors import UnknownRun
from crew.executor import CrewExecutor
from crew.runs.events import Event
from crew.runs.interfaces import Cursor, RunReader, RunRecord, StoredRunInfo
from crew.secrets.patterns import redact
from crew.secrets.registry import ExecutorSecrets
from crew.secrets.scrubbing import scrub_value
from crew.server.access import Principal, TokenTable
from crew.server.follow import STOPPED, Followed, Follower
from crew.server.hub import RunHub
from crew.server.run_json import without_instructions
from crew.server.run_tails import RunTails
from crew.server.server_settings import ServerSettings
from crew.transitions.plan import Plan

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerContext:
    """The parts of one service. `executors` are those of its crews by name; without any, it only reads.

    `definitions` are the plans of crews that a service without executors only describes.
    """

    executors: Mapping[str, CrewExecutor]
    reader: RunReader
    hub: RunHub
    settings: ServerSettings
    tokens: TokenTable
    tails: RunTails = field(default_factory=RunTails)
    definitions: Mapping[str, Plan] = field(default_factory=dict)
    secrets: ExecutorSecrets = field(default_factory=lambda: ExecutorSecrets((), ()))

    async def run(self, principal: Principal, run_id: str) -> RunRecord:
        """A stored run that this principal may see, without secrets; else `UnknownRun`."""
        info = await self.info(principal, run_id)

        try:
            record = await self.reader.run(run_id)
            return await asyncio.to_thread(self.scrub, info.crew, record)  # it searches every message
        except UnknownRun as error:  # it was erased in between
            raise _unknown(run_id) from error

    async def info(self, principal: Principal, run_id: str) -> StoredRunInfo:
        """The facts of a stored run that this principal may see, not scrubbed; else `UnknownRun`.

        Unlike `run` it does not read the transcript.
        """
        try:
            info = await self.reader.info(run_id)
        except UnknownRun as error:
            raise _unknown(run_id) from error

        if not principal.sees(info.metadata):
            raise _unknown(run_id)  # in the same words: other principals can't find out which ids exist

        return info

    async def conversation(self, principal: Principal, conversation_id: str) -> tuple[StoredRunInfo, ...]:
        """The runs of a conversation that this principal may see, oldest first; else `UnknownRun`."""
        runs = await self.reader.conversation(conversation_id)

        if not runs or not all(principal.sees(info.metadata) for info in runs):
            raise UnknownRun(conversation_id, f"There is no conversation {conversation_id!r}.")

        return runs

    def plan(self, crew: str) -> Plan | None:
        """The definition of a crew, if the service has it."""
        executor = self.executors.get(crew)
        return self.definitions.get(crew) if executor is None else executor.plan

    def scrub(self, crew: str, value: Value) -> Value:
        """The value without the secrets that the executor of this crew knows; without any, those of `scrub_all`."""
        executor = self.executors.get(crew)
        return self.scrub_all(value) if executor is None else executor.scrub(value)

    def scrub_all(self, value: Value) -> Value:
        """The value without the secrets of all executors, or else without the keys of the environment."""
        for executor in self.executors.values():
            value = executor.scrub(value)

        return value if self.executors else scrub_value(self.secrets.scrubber(), value)

    def scrub_text(self, text: str) -> str:
        """The text of an error without the secrets of all executors, and without texts that look like secrets."""
        return redact(self.scrub_all(text))

    async def status(self, info: StoredRunInfo) -> str:
        """The status of a stored run; `interrupted` if it is unfinished and no process drives it."""
        if info.status != "running" or self.hub.drives(info.run_id):
            return info.status

        return "running" if self.hub.is_recovering or await self._is_owned(info) else "interrupted"

    async def _is_owned(self, info: StoredRunInfo) -> bool:
        """Whether a live process drives this run, also one of a crew that this service does not have."""
        if (executor := self.executors.get(info.crew)) is not None:
            return await executor.is_owned(info.run_id)

        return await is_under_way(info.run_id, self.reader)

    async def follow_batches(
        self,
        run_id: str,
        after: Cursor | None = None,
        *,
        until: frozenset[str] = STOPPED,
        reconnects: bool = False,
        with_instructions: bool = False,
    ) -> AsyncGenerator[Sequence[Followed], None]:
        """The events of a run after a cursor, without secrets. Check with `run` first that the principal may see it.

        `reconnects` is whether the reader may have read a part of a reply that is under way; `with_instructions`,
        whether it may see instructions.
        """

        async def status() -> str:
            return await self.status(await self.reader.info(run_id))

        def scrub(event: Event) -> Event:
            return self.scrub_all(event if with_instructions else without_instructions(event))

        with self.tails.tail(run_id, self.reader, scrub, with_instructions) as tail:
            seconds = self.settings.heartbeat_seconds
            follower = Follower(hub=self.hub, tail=tail, status=status, heartbeat_seconds=seconds)

            async with aclosing(follower.batches(after, until, reconnects=reconnects)) as batches:
                async for batch in batches:
                    yield batch

    async def follow(
        self, run_id: str, after: Cursor | None = None, *, until: frozenset[str] = STOPPED, reconnects: bool = False
    ) -> AsyncGenerator[Followed, None]:
        """The same, item by item."""
        batches = self.follow_batches(run_id, after, until=until, reconnects=reconnects)

        async with aclosing(batches):
            async for batch in batches:
                for item in batch:
                    yield item


def _unknown(run_id: str) -> UnknownRun:
    return UnknownRun(run_id, f"There is no run {run_id!r}, or it is not stored any more.")
