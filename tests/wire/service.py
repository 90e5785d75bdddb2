"""Handles one request, independent of sockets: rules, reply, faults, billing."""

import json
import time
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

from pydantic_core import from_json

from tests.wire import chat_rules, faults, messages, messages_rules, responses_rules
from tests.wire.answer_bytes import WIRE, broken, rendered
from tests.wire.billing import Account, Usage
from tests.wire.cache import Cache, Segment
from tests.wire.connection import Answer, Request, plain, status_of
from tests.wire.faults import Fault, Faults
from tests.wire.model import Json, Model, Protocol
from tests.wire.rejections import Refused
from tests.wire.replies import Reply
from tests.wire.request_context import RequestContext
from tests.wire.responders import Responder
from tests.wire.signing import Signer
from tests.wire.tokens import count

PATHS: dict[str, Protocol] = {
    "/v1/chat/completions": "chat",
    "/v1/responses": "responses",
    "/v1/messages": "messages",
    "/v1/messages/count_tokens": "messages",
}
LIMIT = {
    "chat": ("max_completion_tokens", "max_tokens"),
    "responses": ("max_output_tokens",),
    "messages": ("max_tokens",),
}


@dataclass(slots=True)
class Received:
    """One request and its outcome. `rule` is the rule that it broke, `fault` the injected fault; `delivered` is whether
    the client received the complete answer (None: not finished)."""

    index: int
    protocol: Protocol
    path: str
    headers: dict[str, str]
    raw: bytes
    status: int = 0  # 0 if the answer is not HTTP, or if there is none
    rule: str | None = None
    message: str | None = None
    fault: Fault | None = None
    reply: Reply | None = None
    usage: Usage = field(default_factory=Usage)
    cost: Decimal = Decimal(0)
    delivered: bool | None = None

    @property
    def body(self) -> Json:
        """The request, parsed on each access to save memory in long runs; empty if it is not a JSON object."""
        value = parsed(self.raw)
        return value if isinstance(value, dict) else {}


def parsed(raw: bytes) -> Any:
    """Parse JSON; None if it is invalid. As in the services, lone surrogates are invalid."""
    try:
        return from_json(raw)
    except ValueError:
        return None


@dataclass(kw_only=True)
class Service:
    """Answers requests."""

    responder: Responder
    model: Model
    models: dict[str, Model]
    faults: Faults
    signer: Signer
    cache: Cache
    checks: bool = True
    key: str | None = None
    account: Account = field(default_factory=Account)
    errors: list[Exception] = field(default_factory=list)

    def answer(self, request: Request, received: Received) -> Answer:
        """Answer a request; one that breaks a rule is rejected even if a fault was due."""
        request_id = f"req_{self.signer.new_turn(received.index)}"
        headers = {"request-id" if received.protocol == "messages" else "x-request-id": request_id}
        try:
            answer = self._answer(request, received, headers)
            received.status = status_of(answer.parts)
            return answer
        except Refused as refused:
            error = refused
        except Exception as failure:
            self.errors.append(failure)
            error = Refused("responder", f"the responder failed: {failure!r}", status=500, kind="api_error")
        received.status, received.message = error.status, error.message
        received.rule = None if error.rule.startswith("fault:") else error.rule
        body = error.body(received.protocol, request_id)
        return Answer(plain(error.status, body, {**headers, **error.headers}))

    def _answer(self, request: Request, received: Received, headers: dict[str, str]) -> Answer:
        self._authorize(received)
        body = parsed(received.raw)
        if not isinstance(body, dict):
            words = "We could not parse the JSON body of your request. The API expects a JSON payload."
            raise Refused("json", words)
        model = self._model(received, body)
        counting = request.path.endswith("/count_tokens")
        segments = self._prompt(received, body, model, counting=counting)
        total = sum(segment.tokens for segment in segments)
        if counting:
            return Answer(plain(200, json.dumps({"input_tokens": total}).encode(), headers))
        self._fits(received.protocol, body, model, total)
        fault = received.fault = self.faults(received.index, received.protocol, body)
        refused = faults.status_fault(fault, received.protocol, model) if fault else None
        if refused:
            raise refused
        context = RequestContext(
            body=body,
            protocol=received.protocol,
            model=model,
            turn=self.signer.new_turn(received.index),
            signer=self.signer,
            created=int(time.time()),
        )
        reply = received.reply = self._reply(context, received)
        context.usage = received.usage = self._bill(context, segments, reply)
        if not fault or fault.kind not in (
            *("reset", "hang", "html_page", "garbage", "not_http"),
            *("bomb", "endless", "redirect", "error_body"),
        ):
            received.cost = model.price(context.protocol).cost(context.usage)
            self.account.bill(context.name, context.usage, received.cost)
        return broken(context, rendered(context, reply, headers, fault), fault)

    def _authorize(self, received: Received) -> None:
        if self.key is None:
            return
        sent = received.headers.get("x-api-key") or received.headers.get("authorization", "").removeprefix("Bearer ")
        if sent != self.key:
            refused = faults.status_fault(Fault("unauthorized"), received.protocol, self.model)
            assert refused is not None
            refused.rule = "key"
            raise refused

    def _model(self, received: Received, body: Json) -> Model:
        if received.protocol == "messages" and self.checks and "anthropic-version" not in received.headers:
            raise Refused("version", "anthropic-version: header is required")
        return self.models.get(str(body.get("model")), self.model)

    def _prompt(self, received: Received, body: Json, model: Model, *, counting: bool) -> list[Segment]:
        """Check the rules and split the prompt; a shape that no rule covers is rejected as well."""
        if not self.checks:
            return [Segment("", len(received.raw) // 4)]
        try:
            self._check(received.protocol, body, model, counting=counting)
            segments: list[Segment] = WIRE[received.protocol].prompt(body, model)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as failure:
            raise Refused("malformed", f"Invalid request: {failure!r}") from failure
        return segments

    def _check(self, protocol: Protocol, body: Json, model: Model, *, counting: bool) -> None:
        if protocol == "chat":
            chat_rules.check(body, model)
        elif protocol == "responses":
            responses_rules.check(body, model, self.signer)
        elif counting:
            messages_rules.check_count(body, model, self.signer)
        else:
            messages_rules.check(body, model, self.signer)

    def _fits(self, protocol: Protocol, body: Json, model: Model, total: int) -> None:
        if total > model.window:
            raise faults.too_long(protocol, model, total)
        wanted = next((body[name] for name in LIMIT[protocol] if body.get(name)), 0)
        if total + wanted <= model.window or protocol == "responses":
            return
        if protocol == "messages":
            if model.era == "classic":
                words = f"input length and `max_tokens` exceed context limit: {total} + {wanted} > {model.window}"
                raise Refused("window_output", f"{words}, decrease input length or `max_tokens` and try again")
            return
        words = (
            f"This model's maximum context length is {model.window} tokens. However, you requested {total + wanted} "
            f"tokens ({total} in the messages, {wanted} in the completion). "
            "Please reduce the length of the messages or completion."
        )
        raise Refused("window_output", words, param="messages", code="context_length_exceeded")

    def _reply(self, context: RequestContext, received: Received) -> Reply:
        given = self.responder(context.body, context.protocol, received.index)
        reply = Reply(text=given) if isinstance(given, str) else given
        if received.fault:
            reply = faults.altered(received.fault, reply, context.body)
        if context.protocol == "messages":
            reply = messages.fitting(context.body, context.model, reply)
        elif context.model.era == "classic":
            reply = replace(reply, thinking=None)
        limit = next(
            (context.body[name] for name in LIMIT[context.protocol] if context.body.get(name) is not None), None
        )
        room = None if limit is None else max(0, limit - reply.tokens()[1])  # thinking counts as output
        if room is not None and reply.text and count(reply.text) > room:
            share = len(reply.text) * room // count(reply.text)
            reply = replace(reply, text=reply.text[:share], finish="length")
        return Reply(nothing=True, finish="length") if limit == 0 else reply

    def _bill(self, context: RequestContext, segments: list[Segment], reply: Reply) -> Usage:
        output, reasoning = reply.tokens()
        if context.protocol == "messages":
            usage = self.cache.marked(f"messages:{context.name}", segments, context.model.cache_minimum)
            return replace(usage, output=output, reasoning=reasoning)
        scope = f"openai:{context.name}:{context.body.get('prompt_cache_key')}"
        read, write = self.cache.automatic(scope, segments)
        write = write if context.model.price(context.protocol).write else 0
        total = sum(segment.tokens for segment in segments)
        return Usage(fresh=total - read - write, read=read, write=write, output=output, reasoning=reasoning)
