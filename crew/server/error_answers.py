"""Errors as JSON answers: one status and one type for each error, with all violations and without stack traces."""

from __future__ import annotations

import logging
from typing import Any

from pydantic import ValidationError
from starlette.responses import JSONResponse

from crew.errors import (
    ContextOverflow,
    ConversationBusy,
    ConversationPaused,
    CrewChanged,
    CrewError,
    DefinitionError,
    InvalidInput,
    RunActive,
    RunConflict,
    RunExists,
    StoreError,
    UnknownPause,
    UnknownRun,
    describe,
)
from crew.server.http_errors import HTTPError, error_response
from crew.server.invalid_requests import invalid_request
from crew.server.response_models import PauseAnswer
from crew.server.run_json import adapter, pause_answer
from crew.server.server_context import ServerContext

log = logging.getLogger("crew")

STATUSES: tuple[tuple[type[CrewError], int, str], ...] = (
    (InvalidInput, 422, "invalid_input"),
    (ContextOverflow, 422, "context_overflow"),
    (DefinitionError, 422, "invalid_input"),
    (UnknownPause, 409, "unknown_pause"),
    (UnknownRun, 404, "not_found"),
    (RunExists, 409, "run_exists"),
    (RunConflict, 409, "run_conflict"),
    (RunActive, 409, "run_active"),
    (ConversationBusy, 409, "conversation_busy"),
    (ConversationPaused, 409, "conversation_paused"),
    (CrewChanged, 409, "crew_changed"),
    (StoreError, 503, "store_unavailable"),
)
"""The status and type of each error; the first class that matches counts."""


def answer_error(context: ServerContext, error: Exception) -> JSONResponse:
    """The answer to a request that failed; secrets are removed from its text."""
    if isinstance(error, HTTPError):
        return error_response(error.status, error.type, error.message, error.headers, **error.facts)

    if isinstance(error, ValidationError):
        return answer_error(context, invalid_request(error))

    if isinstance(error, UnknownRun) and error.is_finished:
        return error_response(409, "run_finished", context.scrub_text(str(error)), **_facts(context, error))

    for kind, status, name in STATUSES:
        if isinstance(error, kind):
            return error_response(status, name, context.scrub_text(_words(error)), **_facts(context, error))

    log.error("request failed: %s", context.scrub_text(describe(error)))
    return error_response(500, "internal_error", "The server could not process this request; its log has the reason.")


def _words(error: CrewError) -> str:
    """The text of an error; where it advises Python code, the same advice for HTTP."""
    match error:
        case ConversationPaused(conversation_id=id, run_id=run_id, pauses=pauses):
            pending = "; ".join(f"{pause.id}: {pause.text}" for pause in pauses)
            advice = f'Answer with POST /runs/{run_id}/answers, or send "on_paused": "cancel".'
            return f"The conversation {id!r} waits for an answer. {advice} Pending: {pending}"
        case ConversationBusy(conversation_id=id, run_id=run_id):
            turn = f", run {run_id!r}" if run_id else ""
            advice = 'Wait until it ends, or send "on_busy": "wait".'
            return f"Another turn of the conversation {id!r} is under way{turn}. {advice}"
        case RunActive(run_id=run_id, owner=owner) if owner:
            return f"Run {run_id!r} is under way: wait until it ends, or cancel it with DELETE /runs/{run_id}."
        case CrewChanged(run_id=run_id):
            return str(error).replace("call executor.cancel(run_id)", f"cancel it with DELETE /runs/{run_id}")
        case _:
            return str(error)


def _facts(context: ServerContext, error: CrewError) -> dict[str, Any]:
    match error:
        case InvalidInput(violations=violations):
            listed = [
                {"rule": one.rule, "text": context.scrub_text(one.text), "index": one.index} for one in violations
            ]
            return {"violations": listed}
        case DefinitionError(subject=subject, problems=problems):
            return {"violations": [{"rule": subject, "text": context.scrub_text(text)} for text in problems]}
        case UnknownPause(pending=pending):
            return {"run_id": error.run_id, "unknown": list(error.unknown), "pending": list(pending)}
        case ConversationPaused(conversation_id=id, run_id=run_id, pauses=pauses):
            listed = adapter(list[PauseAnswer]).dump_python([pause_answer(pause) for pause in pauses], mode="json")
            return {"conversation_id": id, "run_id": run_id, "pauses": context.scrub_all(listed)}
        case ConversationBusy(conversation_id=id, run_id=run_id):
            return {"conversation_id": id, "run_id": run_id}
        case StoreError(run_id=run_id) | RunActive(run_id=run_id):
            return {"run_id": run_id}
        case _:
            return {}
