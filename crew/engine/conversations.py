"""The turns of stored conversations: one at a time, each continues the newest run of its conversation."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Literal

from crew.engine.fairness import enclosing_runs
from crew.errors import (
    ConversationBusy,
    ConversationPaused,
    InvalidInput,
    RunActive,
    RunConflict,
    StoreError,
    UnknownRun,
    Violation,
    describe,
)
from crew.messages import Message
from crew.runs.interfaces import PRINCIPAL_KEY, ConversationStore, RunReader, RunStore, StoredRun, StoredRunInfo
from crew.runs.result import RunResult
from crew.runs.state import Finished, Pause, RunState, is_blocked, pending_pauses

POLL_SECONDS = 0.1
"""How often a turn that waits looks whether a turn of another process has ended."""

OnBusy = Literal["error", "wait"]
OnPaused = Literal["error", "cancel"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """The conversation of a new run, and what to do if its last turn is under way, or waits for an answer.

    `principal` is the one in the metadata of the run, if any.
    """

    conversation_id: str
    run_id: str = ""
    principal: object = None
    on_busy: OnBusy = "error"
    on_paused: OnPaused = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """A stored conversation. `history` are the messages that its next turn continues; `pauses` have to be answered.

    `runs` are its turns, oldest first. `agent` is the one that answered last. All messages are in
    `await executor.transcript(id)`.
    """

    id: str
    crew: str
    agent: str
    runs: tuple[StoredRunInfo, ...]
    history: tuple[Message, ...] = field(repr=False)
    pauses: tuple[Pause, ...] = ()


# ------------------------------------------------------------------------------------------ one turn at a time


Waiter = tuple[asyncio.AbstractEventLoop, "asyncio.Future[None]"]


@dataclass(frozen=True, slots=True, eq=False)
class Claim:
    """A turn that holds its conversation, or waits for it; `waiter` is None for one that did not wait."""

    run_id: str
    waiter: Waiter | None = None


@dataclass(slots=True)
class Claims:
    """The conversations with a turn under way in this process. Turns that wait follow each other in order.

    Executors of several threads may share a store.
    """

    _lock: threading.Lock = field(default_factory=threading.Lock)
    _turns: dict[tuple[int, str], deque[Claim]] = field(default_factory=dict)
    """By store and conversation: the turn that holds it, and those that wait."""

    @asynccontextmanager
    async def claim(self, store: RunStore, turn: Turn) -> AsyncIterator[None]:
        """Hold a conversation of this store; `ConversationBusy` if another turn holds it, unless this one may wait."""
        key = (id(store), turn.conversation_id)  # the store lives as long as the claim
        claim = Claim(turn.run_id)

        with self._lock:
            if key not in self._turns:
                self._turns[key] = deque([claim])
            elif turn.on_busy == "error":
                raise ConversationBusy(turn.conversation_id)
            elif (holder := self._turns[key][0].run_id) in enclosing_runs():
                raise ConversationBusy(turn.conversation_id, holder, is_enclosing=True)
            else:
                loop = asyncio.get_running_loop()
                claim = Claim(turn.run_id, (loop, loop.create_future()))
                self._turns[key].append(claim)

        try:
            if claim.waiter is not None:
                await claim.waiter[1]

            yield
        finally:
            self._release(key, claim)

    def _release(self, key: tuple[int, str], claim: Claim) -> None:
        with self._lock:
            turns = self._turns.get(key, deque())

            if claim not in turns:
                return  # its loop was closed while it waited

            is_holder = turns[0] is claim
            turns.remove(claim)

            if is_holder:
                _admit_next(turns)

            if not turns:
                self._turns.pop(key, None)


def _admit_next(turns: deque[Claim]) -> None:
    """Wake the first turn; one whose event loop was closed is left out."""
    while turns and (waiter := turns[0].waiter) is not None:
        loop, future = waiter

        try:
            loop.call_soon_threadsafe(_wake, future)
            return
        except RuntimeError:
            turns.popleft()


def _wake(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)


_claims = Claims()

# ------------------------------------------------------------------------------------------ continuing


@dataclass(frozen=True, slots=True)
class Conversations:
    """Starts the turns of stored conversations.

    `close` ends an unfinished run and returns its last state. `is_owned` is whether a run is under way, here or in
    another process. `driver` is the system that drives the runs of this executor.
    """

    store: RunStore
    crew: str
    driver: str
    close: Callable[[StoredRun], Awaitable[RunState]]
    is_owned: Callable[[str], Awaitable[bool]]

    def _check_store(self) -> None:
        """Raise `InvalidInput` if the store can't load conversations."""
        if not isinstance(self.store, ConversationStore | RunReader):
            text = f"The store {type(self.store).__name__} can't load conversations: it has no method last_turn. Use "
            text += "MemoryStore or SQLiteStore, or continue with history=result instead of conversation=."
            raise InvalidInput([Violation(rule="conversation", text=text)])

    async def run_turn(self, turn: Turn, run: Callable[[RunState | None], Awaitable[RunResult]]) -> RunResult:
        """Run the next turn: `run` gets the state that it continues, None for a new conversation."""
        self._check_store()

        async with _claims.claim(self.store, turn):
            while True:
                try:
                    return await run(await self._state_to_continue(turn))
                except ConversationBusy as error:
                    if turn.on_busy == "error" or error.conversation_id != turn.conversation_id:
                        raise

                    if error.run_id in enclosing_runs():
                        raise ConversationBusy(turn.conversation_id, error.run_id, is_enclosing=True) from None

                await asyncio.sleep(POLL_SECONDS)  # the turn of another process: nothing here notifies of its end

    async def _state_to_continue(self, turn: Turn) -> RunState | None:
        stored = await self.last_turn(turn.conversation_id)

        if stored is None:
            return None

        state, id = stored.state, turn.conversation_id

        if state.crew != self.crew:
            text = f"The conversation {id!r} belongs to the crew {state.crew!r}, not to {self.crew!r}. Use another id."
            raise InvalidInput([Violation(rule="conversation", text=text, value=id)])

        if state.metadata.get(PRINCIPAL_KEY) != turn.principal:
            text = f"The conversation {id!r} belongs to another principal. Use another id."
            raise InvalidInput([Violation(rule="conversation", text=text, value=id)])

        if isinstance(state.next, Finished):
            return state

        if await self.is_owned(state.run_id):
            raise ConversationBusy(id, state.run_id)

        if is_blocked(state) and turn.on_paused == "error":
            raise ConversationPaused(id, state.run_id, pending_pauses(state))

        try:
            return await self.close(stored)
        except (RunActive, RunConflict, UnknownRun) as error:
            if state.driver != self.driver:
                raise  # it belongs to another system, and waiting does not change that

            raise ConversationBusy(id, state.run_id) from error  # another process was faster

    async def last_turn(self, conversation_id: str) -> StoredRun | None:
        """The newest run of a conversation; None if there is none."""
        try:
            if isinstance(self.store, ConversationStore):
                return await self.store.last_turn(conversation_id)

            assert isinstance(self.store, RunReader)
            runs = await self.store.conversation(conversation_id)
            record = await self.store.run(runs[-1].run_id) if runs else None
            return None if record is None else StoredRun(version=record.info.version, state=record.state)
        except SystemExit as error:  # the store boundary: user code never ends the process
            raise StoreError("", f"The store failed: {describe(error)}") from error

    # -------------------------------------------------------------------------------------- reading

    async def read(self, conversation_id: str) -> Conversation:
        """A stored conversation; `UnknownRun` if there is none with this id."""
        runs = await self._reader().conversation(conversation_id)
        stored = await self.last_turn(conversation_id)

        if stored is None:
            raise UnknownRun(conversation_id)

        return Conversation(
            id=conversation_id,
            crew=stored.state.crew,
            agent=stored.state.agent,
            runs=runs,
            history=tuple(stored.state.history.messages),
            pauses=pending_pauses(stored.state),
        )

    async def transcript(self, id: str) -> tuple[Message, ...]:
        """Every message of a conversation, or of a run; the conversation if it has the id of its first run."""
        reader = self._reader()
        runs = await reader.conversation(id)
        return await reader.transcript(runs[-1].run_id if runs else id)

    def _reader(self) -> RunReader:
        if not isinstance(self.store, RunReader):
            text = (
                f"The store {type(self.store).__name__} can't be read: it has no methods of RunReader. Use SQLiteStore."
            )
            raise StoreError("", text)

        return self.store
