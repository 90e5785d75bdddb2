"""`ScrubbedReader`: reads stored runs without the secrets that are known now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import JsonValue

from crew.messages import Message
from crew.runs.interfaces import Cursor, FoundMessage, RunPage, RunReader, RunRecord, StoredEvent, StoredRunInfo
from crew.secrets.scrubbing import Scrubber, scrub_value


@dataclass(frozen=True, slots=True)
class ScrubbedReader:
    """A `RunReader` that removes secrets from what another one reads: the process that stored it may not know them."""

    reader: RunReader
    scrubber: Scrubber

    async def runs(
        self,
        *,
        crew: str | None = None,
        status: str | None = None,
        conversation: str | None = None,
        since: float | None = None,
        limit: int = 50,
        cursor: str | None = None,
        metadata: Mapping[str, JsonValue] | None = None,
    ) -> RunPage:
        """A page of runs."""
        page = await self.reader.runs(
            crew=crew,
            status=status,
            conversation=conversation,
            since=since,
            limit=limit,
            cursor=cursor,
            metadata=metadata,
        )
        return scrub_value(self.scrubber, page)

    async def info(self, run_id: str) -> StoredRunInfo:
        """The facts of a run."""
        return scrub_value(self.scrubber, await self.reader.info(run_id))

    async def run(self, run_id: str) -> RunRecord:
        """A run with its newest state."""
        return scrub_value(self.scrubber, await self.reader.run(run_id))

    async def events(self, run_id: str, after: Cursor | None = None, limit: int = 1_000) -> tuple[StoredEvent, ...]:
        """The stored events of a run after this cursor."""
        return scrub_value(self.scrubber, await self.reader.events(run_id, after, limit))

    async def transcript(self, run_id: str) -> tuple[Message, ...]:
        """Every message of a run."""
        return scrub_value(self.scrubber, await self.reader.transcript(run_id))

    async def conversation(self, conversation_id: str) -> tuple[StoredRunInfo, ...]:
        """The runs of a conversation."""
        return scrub_value(self.scrubber, await self.reader.conversation(conversation_id))

    async def search(self, words: str, *, limit: int = 20) -> tuple[FoundMessage, ...]:
        """The messages that contain all these words."""
        return scrub_value(self.scrubber, await self.reader.search(words, limit=limit))

    async def forget(self, id: str, *, conversation: bool = False) -> int:
        """Erase a run or a conversation."""
        return await self.reader.forget(id, conversation=conversation)
