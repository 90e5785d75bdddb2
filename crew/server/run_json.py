"""Stored runs, pauses and events as answers of the API."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any, cast

from pydantic import TypeAdapter
from starlette.responses import Response

from crew.runs.events import AgentPrepared, Event, RunFailed
from crew.runs.interfaces import Cursor, RunReader, RunRecord, StoredRunInfo
from crew.runs.state import Finished, Pause, RunState, pending_pauses, total_usage
from crew.server.access import RESERVED_PREFIX
from crew.server.response_models import (
    CallInDoubtAnswer,
    CallName,
    FailureAnswer,
    LimitAnswer,
    PauseAnswer,
    RunAnswer,
    RunFacts,
    Status,
)
from crew.transitions.plan import Plan
from crew.transitions.result import build_result


@cache
def adapter(kind: Any) -> TypeAdapter[Any]:
    """The adapter of a type, made once."""
    return TypeAdapter(kind)


def event_json(event: Event) -> bytes:
    """An event as one line of JSON."""
    return adapter(Event).dump_json(event)


def without_instructions(event: Event) -> Event:
    """The event for principals without the scope `all`: instructions that a function wrote belong to the operator."""
    return replace(event, texts={}) if isinstance(event, AgentPrepared) else event


def json_response(answer: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """An answer of `response_models` as a response."""
    kind: Any = type(answer)
    body = adapter(kind).dump_json(answer)
    return Response(body, status, headers, media_type="application/json")


def pause_answer(pause: Pause, *, may_answer: bool = False) -> PauseAnswer:
    """A pause that waits for an answer. A reply that is not accepted yet is shown to those who may answer."""
    call = None if pause.call is None else CallName(id=pause.call.id, name=pause.call.name)
    return PauseAnswer(
        id=pause.id,
        reason=pause.reason,
        run_id=pause.run_id,
        agent=pause.agent,
        text=pause.text,
        call=call,
        arguments=pause.arguments,
        choices=[*pause.choices],
        checked=pause.checked if may_answer else "",
    )


def run_facts(info: StoredRunInfo, status: str) -> RunFacts:
    """The facts of a run, without the keys of its metadata that the service set."""
    return RunFacts(**_facts(info, status))


def _facts(info: StoredRunInfo, status: str) -> dict[str, Any]:
    return {
        "run_id": info.run_id,
        "conversation_id": info.conversation_id,
        "crew": info.crew,
        "agent": info.agent,
        "status": cast("Status", status),
        "version": info.version,
        "messages": info.messages,
        "created": info.created,
        "updated": info.updated,
        "metadata": {key: value for key, value in info.metadata.items() if not key.startswith(RESERVED_PREFIX)},
    }


async def run_answer(
    reader: RunReader, record: RunRecord, status: str, plan: Plan | None, *, may_answer: bool = False
) -> RunAnswer:
    """A run with its output, usage, pauses and times; a failed one with its error."""
    state = record.state
    finished = state.next if isinstance(state.next, Finished) else None
    limit = None if finished is None else finished.limit
    failure = await _last_failure(reader, record.info) if status == "failed" else None
    return RunAnswer(
        **_facts(record.info, status),
        output=None if finished is None else _output(state, finished, plan),
        limit=None if limit is None else LimitAnswer(name=limit.name, value=limit.value),
        error=None if failure is None else FailureAnswer(type=failure.error_type, message=failure.error),
        usage=total_usage(state),
        pauses=[pause_answer(pause, may_answer=may_answer) for pause in pending_pauses(state)],
        in_doubt=[CallInDoubtAnswer(key=one.key, agent=one.agent, tool=one.call.name) for one in state.in_doubt],
        active_seconds=state.active_seconds,
    )


def _output(state: RunState, finished: Finished, plan: Plan | None) -> Any:
    """A text as it is; structured output as JSON."""
    if plan is None or state.crew != plan.crew.name:
        return finished.output

    return build_result(plan, state).output_json()


async def _last_failure(reader: RunReader, info: StoredRunInfo) -> RunFailed | None:
    """The failure that was stored after the newest commit."""
    stored = await reader.events(info.run_id, Cursor(info.version, -1))
    failures = [one.event for one in stored if isinstance(one.event, RunFailed) and one.event.run_id == info.run_id]
    return failures[-1] if failures else None
