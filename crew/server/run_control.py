"""`RunControl`: starts, resumes and cancels runs for a principal; every protocol of the service uses it."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import JsonValue

from crew.engine.conversations import OnBusy, OnPaused
from crew.engine.run_start import HistoryInput
from crew.engine.stream import EventStream
from crew.errors import InvalidInput, RunActive, UnknownRun, Violation, suggest
from crew.executor import CrewExecutor
from crew.interfaces import ModelSettings
from crew.messages import UserMessage
from crew.runs.interfaces import PRINCIPAL_KEY, RunRecord, StoredRunInfo
from crew.runs.parameters import RequestParameters
from crew.runs.state import Pause, pending_pauses
from crew.server.access import RESERVED_PREFIX, Principal
from crew.server.follow import ENDED
from crew.server.http_errors import HTTPError
from crew.server.server_context import ServerContext
from crew.validation.validator import run_id_violations


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRun:
    """A run that a client asks for. With a `key`, a run that exists is returned; the key is its id."""

    input: str | UserMessage
    crew: str | None = None
    agent: str | None = None
    history: HistoryInput = None
    conversation: str | None = None
    on_busy: OnBusy = "error"
    on_paused: OnPaused = "error"
    parameters: RequestParameters | None = None
    settings: ModelSettings | None = None
    metadata: Mapping[str, JsonValue] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedRun:
    """The run, and whether it is new: with a key, it may have existed."""

    run_id: str
    is_new: bool


@dataclass(frozen=True, slots=True)
class RunControl:
    """Checks what a principal may do, and lets the hub drive the runs. Errors are raised before anything is stored."""

    context: ServerContext

    async def start(self, principal: Principal, new: NewRun) -> StartedRun:
        """Start a run; it is stored when this returns."""
        run_id = new.key if new.key is not None else uuid.uuid4().hex
        executor = self.executor(new.crew)
        _check(new, run_id)
        await self._check_key(principal, new.key)
        owned = await self._ownership(principal, new.conversation)
        hook = self.context.settings.metadata
        added = {} if hook is None else hook(new.headers)
        stream = executor.execute_stream(
            new.input,
            history=new.history,
            agent=new.agent,
            parameters=new.parameters,
            settings=new.settings,
            run_id=run_id,
            metadata={**new.metadata, **added, **owned},
            on_existing="error" if new.key is None else "return",
            conversation=new.conversation,
            on_busy=new.on_busy,
            on_paused=new.on_paused,
        )
        return StartedRun(run_id=run_id, is_new=await self._start_once(run_id, stream, principal))

    async def resume(self, principal: Principal, run_id: str, answers: Mapping[str, Any]) -> RunRecord:
        """Answer pauses and resume the run, which is returned as it was before.

        Without answers, only a run that is interrupted or failed is resumed: a paused one would pause again.
        """
        record = await self.context.run(principal, run_id)
        pauses = pending_pauses(record.state)

        if record.info.status == "paused":
            if not answers:
                raise InvalidInput([_unanswered(pause) for pause in pauses])

            await self.context.hub.wait_until_released(run_id)  # its client may have read the pause before

        given = attributed(answers, pauses, principal.name)
        await self._start(run_id, self.executor(record.info.crew).resume_stream(run_id, given), principal)
        return record

    async def cancel(self, principal: Principal, run_id: str) -> None:
        """Cancel a run that is under way, paused, failed or interrupted; a run that ended stays as it is."""
        info = await self.context.info(principal, run_id)

        if info.status in ENDED:
            return

        try:
            await self.executor(info.crew).cancel(run_id)
        except UnknownRun as error:
            if not error.is_finished:  # else it has ended in the meantime
                raise

    def executor(self, crew: str | None) -> CrewExecutor:
        """The executor of a crew; without a name, that of the only one."""
        executors = self.context.executors

        if crew is None and len(executors) == 1:
            return next(iter(executors.values()))

        if crew is None or crew not in executors:
            text = f"The service has no crew {crew!r}. " if crew is not None else "Choose a crew. "
            raise InvalidInput([Violation(rule="crew", text=text + suggest(crew or "", executors), value=crew)])

        return executors[crew]

    async def _start_once(self, run_id: str, stream: EventStream, principal: Principal) -> bool:
        """Start a run, unless one with its id exists: then check that it has the same input. Whether it is new."""
        hub = self.context.hub

        while True:
            await hub.wait_until_begun(run_id)

            if await self._find(run_id) is not None:
                await stream.drain()  # `on_existing` returns the stored run, or refuses another input
                return False

            if not hub.drives(run_id):
                await self._start(run_id, stream, principal)
                return True

            if hub.newest(run_id):
                raise RunActive(run_id)  # it was stored, and the store does not have it any more

    async def _check_key(self, principal: Principal, key: str | None) -> None:
        """Refuse a key that is the id of another principal's run."""
        if key is not None and (info := await self._find(key)) is not None and not principal.sees(info.metadata):
            raise HTTPError(409, "run_exists", f"The id {key!r} is in use: choose another Idempotency-Key.")

    async def _ownership(self, principal: Principal, conversation: str | None) -> dict[str, Any]:
        """The metadata that makes a new run belong to this principal; refuses the conversation of another one.

        A principal that sees all runs may continue such a conversation: the run then belongs to the other one.
        """
        runs = () if conversation is None else await self.context.reader.conversation(conversation)

        if not runs:
            return {PRINCIPAL_KEY: principal.name}

        if not principal.sees(runs[-1].metadata):
            text = f"The id {conversation!r} is in use: choose another one."
            raise HTTPError(409, "conversation_exists", text)

        return {key: value for key, value in runs[-1].metadata.items() if key == PRINCIPAL_KEY}

    async def _find(self, run_id: str) -> StoredRunInfo | None:
        try:
            return await self.context.reader.info(run_id)
        except UnknownRun:
            return None

    async def _start(self, run_id: str, stream: EventStream, principal: Principal) -> None:
        """Let the hub drive a run, unless the principal has too many."""
        hub, limit = self.context.hub, self.context.settings.max_runs_per_token
        counted = principal.token or f"principal {principal.name}"

        # Nothing is awaited between this check and the count in `start`.
        if hub.runs_of(counted) >= limit:
            text = f"{limit} runs of this token are under way: wait until one ends, or cancel one."
            raise HTTPError(429, "too_many_runs", text, headers={"Retry-After": "1"}, limit=limit)

        await hub.start(run_id, stream, counted)


def _check(new: NewRun, run_id: str) -> None:
    violations = [*run_id_violations(run_id, "idempotency key")]

    for key in new.metadata:
        if key.startswith(RESERVED_PREFIX):
            text = f"The key {key!r} is reserved: keys of metadata must not begin with {RESERVED_PREFIX!r}."
            violations.append(Violation(rule="metadata", text=text, value=key))

    if violations:
        raise InvalidInput(violations)


def _unanswered(pause: Pause) -> Violation:
    return Violation(rule="answers", text=f"The pause {pause.id!r} needs an answer: {pause.text}", value=pause.id)


def attributed(answers: Mapping[str, Any], pauses: Sequence[Pause], name: str) -> dict[str, Any]:
    """The answers, where each approval and refusal names the principal that gave it; a client can't name another."""
    permissions = {pause.id for pause in pauses if pause.reason in ("approval", "consent")}
    return {id: _attributed(answer, name) if id in permissions else answer for id, answer in answers.items()}


def _attributed(answer: Any, name: str) -> Any:
    match answer:
        case True:
            return {"approve": {"by": name}}
        case False:
            return {"refuse": {"by": name}}
        case {"approve": dict(given), **rest} if not rest:
            return {"approve": {**given, "by": name}}
        case {"refuse": dict(given), **rest} if not rest:
            return {"refuse": {**given, "by": name}}
        case _:
            return answer  # a text, which is the reason of a refusal; anything else is refused by its check
