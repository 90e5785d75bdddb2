"""The endpoint that OpenAI's chat clients use: each crew is a model."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute

from crew.errors import UnknownRun, abbreviate, suggest
from crew.executor import CrewExecutor
from crew.messages import Usage
from crew.runs.answer_text import parse_answer
from crew.runs.interfaces import Cursor, RunRecord, StoredEvent
from crew.runs.state import Pause, pending_pauses, total_usage
from crew.server.access import Principal
from crew.server.answer_stream import AnswerStream
from crew.server.chat_requests import ChatRequest, model_settings, newest_message, refuse_unsupported
from crew.server.error_answers import answer_error
from crew.server.follow import Heartbeat, RunStopped
from crew.server.http_errors import HTTPError
from crew.server.invalid_requests import read_body
from crew.server.routing import route
from crew.server.run_control import NewRun, RunControl
from crew.server.run_json import run_answer
from crew.server.server_context import ServerContext
from crew.server.sse import HEARTBEAT, EventResponse

CONVERSATION = "x-crew-conversation"
RUN = "X-Crew-Run"
NO_RETRY = {"X-Should-Retry": "false"}
"""Clients obey this header. A request that is sent again would start another run, which repeats the effects."""


def openai_routes(context: ServerContext) -> Sequence[BaseRoute]:
    """The routes below /v1."""
    api = OpenAIChatAPI(context)
    return [
        route(
            context,
            "/v1/chat/completions",
            api.complete_chat,
            method="POST",
            scope="run",
            body=ChatRequest,
            media_types=["text/event-stream"],
        ),
        route(context, "/v1/models", api.list_models),
        route(context, "/v1/models/{model}", api.read_model),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What the client gets: the run, and where its new events begin."""

    run_id: str
    model: str
    after: Cursor | None = None
    is_stateful: bool = False


class OpenAIChatAPI:
    """The endpoints. With a conversation header the service keeps the history; without it, the client does."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context
        self._control = RunControl(context)

    async def list_models(self, request: Request, principal: Principal) -> Response:
        """Each crew as a model."""
        return JSONResponse({"object": "list", "data": [_model(name) for name in self._context.executors]})

    async def read_model(self, request: Request, principal: Principal) -> Response:
        """One crew as a model."""
        name: str = request.path_params["model"]
        self._executor(name)
        return JSONResponse(_model(name))

    async def complete_chat(self, request: Request, principal: Principal) -> Response:
        """Run a crew on the newest message, or answer the pause of its conversation with it."""
        body = await read_body(request, ChatRequest)
        executor = self._executor(body.model)
        refuse_unsupported(body)
        input = newest_message(body.messages)
        conversation = request.headers.get(CONVERSATION)
        paused = None if conversation is None else await self._paused_turn(principal, conversation, body.model)

        if paused is not None and (question := await self._answer(principal, paused, input.text)) is not None:
            return self._answer_with_text(body, paused.info.run_id, question)

        if paused is not None:
            after = Cursor.after_commit(paused.info.version)
            reply = Reply(run_id=paused.info.run_id, model=body.model, after=after, is_stateful=True)
        else:
            new = NewRun(
                input=input,
                crew=body.model,
                history=None if conversation is not None else body.messages[:-1],
                conversation=conversation,
                settings=model_settings(body),
                headers=request.headers,
                key=request.headers.get("idempotency-key"),
            )
            started = await self._control.start(principal, new)
            reply = Reply(run_id=started.run_id, model=body.model, is_stateful=conversation is not None)

        if body.stream:
            with_usage = body.stream_options is not None and body.stream_options.include_usage is True
            return self._stream(self._chunks(principal, executor, reply, with_usage=with_usage), reply.run_id)

        try:
            return await self._answer_when_stopped(principal, executor, reply)
        except Exception as error:  # the boundary to HTTP, as in `checked`: the run exists, whatever went wrong
            answer = answer_error(self._context, error)
            answer.headers.update(NO_RETRY | {RUN: reply.run_id})
            return answer

    # ------------------------------------------------------------------------------------------ pauses

    async def _paused_turn(self, principal: Principal, conversation: str, model: str) -> RunRecord | None:
        """The last run of a conversation, if it waits for an answer to this crew, and the principal sees it."""
        try:
            last = (await self._context.conversation(principal, conversation))[-1]
        except UnknownRun:
            return None

        if last.status != "paused" or last.crew != model:
            return None  # a new run is refused if the conversation belongs to another principal or crew

        return await self._context.run(principal, last.run_id)

    async def _answer(self, principal: Principal, paused: RunRecord, text: str) -> str | None:
        """Answer the first pause and resume; if it does not accept this text, the question again with the reason."""
        pause = pending_pauses(paused.state)[0]
        answer = parse_answer(pause, text)

        if answer is None:
            return f"{_problem(pause, text.strip())}\n\n{_question(pause)}".strip()

        if not principal.may("approve"):
            raise HTTPError(403, "forbidden", "The token lacks the scope 'approve': it can't answer.", scope="approve")

        await self._control.resume(principal, paused.info.run_id, {pause.id: answer})
        return None

    # ------------------------------------------------------------------------------------------ answers

    async def _answer_when_stopped(self, principal: Principal, executor: CrewExecutor, reply: Reply) -> Response:
        status = "interrupted"

        async with aclosing(self._context.follow(reply.run_id, reply.after)) as items:
            async for item in items:
                status = item.status if isinstance(item, RunStopped) else status

        text, usage = await self._outcome(principal, executor, reply, status)
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": text, "refusal": None},
            "logprobs": None,
            "finish_reason": _finish_reason(status),
        }
        found = _envelope(reply, "chat.completion") | {"choices": [choice], "usage": _usage(usage)}
        return JSONResponse(found, headers={RUN: reply.run_id})

    async def _outcome(
        self, principal: Principal, executor: CrewExecutor, reply: Reply, status: str
    ) -> tuple[str, Usage]:
        """The text of the answer: the output, or the question that the run waits for."""
        record = await self._context.run(principal, reply.run_id)
        usage = total_usage(record.state)

        if status == "paused":
            question = _question(pending_pauses(record.state)[0])
            return question if reply.is_stateful else f"{question}\n\n{_how_to_answer(reply.run_id)}", usage

        found = await run_answer(self._context.reader, record, status, executor.plan)

        if status in ("failed", "interrupted"):
            message = f"The run {reply.run_id} {status}: {found.error.message if found.error else 'it can be resumed'}"
            raise HTTPError(502, "run_failed", self._context.scrub_text(message), run_id=reply.run_id)

        output = found.output
        return output if isinstance(output, str) else json.dumps(output, ensure_ascii=False), usage

    def _answer_with_text(self, body: ChatRequest, run_id: str, text: str) -> Response:
        """An answer without a run: the question of a pause once more."""
        reply = Reply(run_id=run_id, model=body.model, is_stateful=True)

        if body.stream:

            async def chunks() -> AsyncGenerator[bytes, None]:
                yield _chunk(reply, {"role": "assistant", "content": text})
                yield _chunk(reply, {}, finish_reason="stop")
                yield _DONE

            return self._stream(chunks(), run_id)

        message = {"role": "assistant", "content": text, "refusal": None}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
        found = _envelope(reply, "chat.completion") | {"choices": [choice], "usage": _usage(Usage())}
        return JSONResponse(found, headers={RUN: run_id})

    # ------------------------------------------------------------------------------------------ streams

    def _stream(self, chunks: AsyncGenerator[bytes, None], run_id: str) -> Response:
        return EventResponse(chunks, self._context.settings.send_seconds, headers=NO_RETRY | {RUN: run_id})

    async def _chunks(
        self, principal: Principal, executor: CrewExecutor, reply: Reply, *, with_usage: bool
    ) -> AsyncGenerator[bytes, None]:
        answer = AnswerStream(executor.plan, reply.run_id)
        status = "interrupted"
        yield _chunk(reply, {"role": "assistant", "content": ""})

        async with aclosing(self._context.follow(reply.run_id, reply.after)) as items:
            async for item in items:
                match item:
                    case Heartbeat():
                        yield HEARTBEAT
                    case RunStopped():
                        status = item.status
                    case _:
                        for text in answer.add(item.event if isinstance(item, StoredEvent) else item):
                            yield _chunk(reply, {"content": text})

        try:
            output, usage = await self._outcome(principal, executor, reply, status)
        except HTTPError as error:
            yield _data({"error": {"message": error.message, "type": error.type, "code": None, "param": None}})
            return

        for text in answer.end(output):
            yield _chunk(reply, {"content": text})

        yield _chunk(reply, {}, finish_reason=_finish_reason(status))

        if with_usage:
            yield _data(_envelope(reply, "chat.completion.chunk") | {"choices": [], "usage": _usage(usage)})

        yield _DONE

    def _executor(self, model: str) -> CrewExecutor:
        executors = self._context.executors

        if model not in executors:
            text = f"The model {model!r} does not exist. {suggest(model, executors)}"
            raise HTTPError(404, "invalid_request_error", text, param="model", code="model_not_found")

        return executors[model]


# ---------------------------------------------------------------------------------------------- answers

_DONE = b"data: [DONE]\n\n"


_HINTS = {
    "approval": 'Answer yes, no, a reason for refusing, or edit {"argument": value} to change arguments and approve.',
    "consent": "Answer yes, no, or a reason for refusing.",
    "in_doubt": "Answer run again, skip, or done=RESULT.",
}


def _question(pause: Pause) -> str:
    """The question of a pause as a message, with its choices or the answers that it accepts."""
    choices = [f"{number}. {choice}" for number, choice in enumerate(pause.choices, start=1)]
    hint = "\n".join(choices) or _HINTS.get(pause.reason, "")
    text = replace(pause, checked="").full_text  # a reply that waits for its approval is not shown in the chat itself
    return f"{text}\n\n{hint}".strip()


def _problem(pause: Pause, text: str) -> str:
    """Why a pause does not accept a text; empty for an empty one, which is asked again without a reason."""
    if not text:
        return ""

    if pause.choices:
        return f"{abbreviate(text)} is not one of the choices."

    if pause.reason == "approval" and text.lower().startswith("edit"):
        return 'The changed arguments must be a JSON object, such as edit {"argument": value}.'

    if pause.reason in ("approval", "consent"):
        return f"{abbreviate(text)} is ambiguous. Please answer yes or no, or give a reason to refuse."

    return f"{abbreviate(text)} is not an answer to this question."


def _how_to_answer(run_id: str) -> str:
    return (
        f"The run {run_id} waits for this answer: POST /runs/{run_id}/answers. In a conversation (header "
        "X-Crew-Conversation) the next message is the answer."
    )


def _finish_reason(status: str) -> str:
    return "length" if status == "limit" else "stop"


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "crew"}


def _envelope(reply: Reply, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{reply.run_id}", "object": kind, "created": int(time.time()), "model": reply.model}


def _chunk(reply: Reply, delta: Mapping[str, str], finish_reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
    return _data(_envelope(reply, "chat.completion.chunk") | {"choices": [choice]})


def _data(value: object) -> bytes:
    return b"data: %s\n\n" % json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cache_read_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }
