"""Injected faults and when they occur: by request number, at random with a seed, or by any function."""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from email.utils import formatdate
from typing import Any, Literal, get_args

from tests.wire.model import Json, Model, Protocol
from tests.wire.rejections import Refused
from tests.wire.replies import Reply
from tests.wire.responders import tools

StatusKind = Literal[
    "rate_limited",
    "quota",
    "server_error",
    "unavailable",
    "overloaded",
    "unauthorized",
    "forbidden",
    "blocked",
    "context_too_long",
]
TransportKind = Literal[
    "html_page",
    "reset",
    "hang",
    "slow",
    "garbage",
    "not_http",
    "cut",
    "cut_clean",
    "reset_mid_stream",
    "hang_mid_stream",
    "error_event",
    "failed_event",
]
ReplyKind = Literal[
    "bad_json",
    "wrong_types",
    "unknown_tool",
    "duplicate_call_ids",
    "empty",
    "length",
    "refusal",
    "content_filter",
]
HostileKind = Literal[
    "rewritten",  # the JSON of the answer, or of each event, is replaced by what `rewrite` returns
    "bomb",  # a small gzip body that becomes 200 MB
    "endless",  # a body, or a stream of events, that never ends
    "redirect",  # to `location`
    "unstreamed",  # the answer to a streamed request is not streamed
    "error_body",  # status 200 with the JSON of `error`; in a stream, too
]
Kind = StatusKind | TransportKind | ReplyKind | HostileKind
KINDS: tuple[str, ...] = tuple(
    kind for group in (StatusKind, TransportKind, ReplyKind) for kind in get_args(group)
)  # the hostile ones need more than a kind

# Truncated, wrong quotes, not JSON, not an object, empty.
BAD_JSON = ('{"n": 1, "why": "bec', "{'n': 1,}", "n is one", "[1, 2]", "")


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. `retry_after` applies to statuses, `seconds` to `slow`; `at` is the share of an answer that arrives
    before it breaks off; `shape` selects one of the texts in BAD_JSON. The rest is for hostile kinds."""

    kind: Kind
    retry_after: str | None = None
    seconds: float = 0.3
    at: float = 0.5
    shape: int = 0
    rewrite: Callable[[Any], Any] | None = None
    location: str = ""
    error: object = None
    status: int | None = None


Faults = Callable[[int, Protocol, Json], Fault | None]


def never(_: int, __: Protocol, ___: Json) -> None:
    """Inject no fault."""


def at(plan: Mapping[int, Fault]) -> Faults:
    """Inject faults by request number."""
    return lambda index, _, __: plan.get(index)


def chance(shares: Mapping[Fault | Kind, float], seed: int = 0) -> Faults:
    """Inject faults into a share of the requests; the same seed selects the same requests."""

    def faults(index: int, _: Protocol, __: Json) -> Fault | None:
        draw = random.Random(f"{seed}:{index}").random()
        for fault, share in shares.items():
            draw -= share
            if draw < 0:
                return fault if isinstance(fault, Fault) else Fault(fault)
        return None

    return faults


def first_of(*plans: Faults) -> Faults:
    """Use the first plan that has a fault for the request."""
    return lambda index, protocol, body: next((f for plan in plans if (f := plan(index, protocol, body))), None)


def date_in(seconds: float) -> str:
    """Return an HTTP date that many seconds from now, for `retry_after`."""
    return formatdate(time.time() + seconds, usegmt=True)


# kind: status, then (type, message, code) of OpenAI, then (type, message) of Anthropic
_STATUS: dict[str, tuple[int, tuple[str, str, str | None], tuple[str, str]]] = {
    "rate_limited": (
        429,
        ("requests", "Rate limit reached for requests. Please slow down.", "rate_limit_exceeded"),
        ("rate_limit_error", "This request would exceed your organization's rate limit. Please try again later."),
    ),
    "quota": (
        429,
        (
            "insufficient_quota",
            "You exceeded your current quota, please check your plan and billing details.",
            "insufficient_quota",
        ),
        ("billing_error", "Your credit balance is too low to access the Anthropic API."),
    ),
    "server_error": (
        500,
        ("server_error", "The server had an error while processing your request. Sorry about that!", None),
        ("api_error", "Internal server error"),
    ),
    "unavailable": (
        503,
        ("server_error", "The engine is currently overloaded, please try again later", "service_unavailable"),
        ("api_error", "Service unavailable"),
    ),
    "overloaded": (529, ("server_error", "Overloaded", "overloaded"), ("overloaded_error", "Overloaded")),
    "unauthorized": (
        401,
        ("invalid_request_error", "Incorrect API key provided.", "invalid_api_key"),
        ("authentication_error", "invalid x-api-key"),
    ),
    "forbidden": (
        403,
        ("invalid_request_error", "You are not allowed to use this model.", "model_not_allowed"),
        ("permission_error", "Your API key does not have permission to use the specified resource."),
    ),
    "blocked": (
        400,
        (
            "invalid_request_error",
            "The response was filtered due to the prompt triggering our content policy.",
            "content_filter",
        ),
        ("invalid_request_error", "Output blocked by content filtering policy"),
    ),
}


def status_fault(fault: Fault, protocol: Protocol, model: Model) -> Refused | None:
    """Return the error response for a status fault, None for any other fault."""
    headers = {"retry-after": fault.retry_after} if fault.retry_after is not None else {}
    if fault.kind == "context_too_long":
        refused = too_long(protocol, model, model.window + 1)
        refused.rule = f"fault:{fault.kind}"
        return refused
    if fault.kind not in _STATUS:
        return None
    status, (kind, message, code), theirs = _STATUS[fault.kind]
    if protocol == "messages":
        kind, message, code = (*theirs, None)
        status = 400 if fault.kind == "quota" else status
    return Refused(f"fault:{fault.kind}", message, code=code, status=status, kind=kind, headers=headers)


def too_long(protocol: Protocol, model: Model, tokens: int) -> Refused:
    """Return the error for a prompt that exceeds the window."""
    if protocol == "messages":
        return Refused("window", f"prompt is too long: {tokens} tokens > {model.window} maximum")
    if protocol == "responses":
        words = "Your input exceeds the context window of this model. Please adjust your input and try again."
        return Refused("window", words, param="input", code="context_length_exceeded")
    words = (
        f"This model's maximum context length is {model.window} tokens. However, your messages resulted in "
        f"{tokens} tokens. Please reduce the length of the messages."
    )
    return Refused("window", words, param="messages", code="context_length_exceeded")


def altered(fault: Fault, reply: Reply, body: Json) -> Reply:
    """Apply a reply fault. A fault in a call adds a call if the reply has none and the request has tools."""
    calls = list(reply.calls) or [(name, {"n": 1}) for name in tools(body)[:1]]
    kind = fault.kind
    if kind == "bad_json":
        return replace(reply, text="", calls=[(call[0], BAD_JSON[fault.shape]) for call in calls])
    if kind == "wrong_types":
        return replace(reply, text="", calls=[(call[0], {"n": ["not", "a", "number"]}) for call in calls])
    if kind == "unknown_tool":
        return replace(reply, text="", calls=[("no_such_tool", {"n": 1})])
    if kind == "duplicate_call_ids":
        twin = calls[0] if calls else ("no_such_tool", {"n": 1})
        return replace(reply, text="", calls=[(twin[0], twin[1], "call_twin")] * 2)
    if kind == "empty":
        return Reply(nothing=True)
    if kind in ("refusal", "content_filter"):
        return Reply(text="I can't help with that.", finish="refusal" if kind == "refusal" else "content_filter")
    if kind == "length":
        cut = [(call[0], BAD_JSON[0]) for call in reply.calls]
        return replace(reply, text=reply.text[: max(1, len(reply.text) // 2)], calls=cut, finish="length")
    return reply


def every_kind(kinds: Sequence[str] = KINDS) -> list[Fault]:
    """Return one fault of each kind, `bad_json` in each shape."""
    plain = [Fault(kind) for kind in kinds if kind != "bad_json"]  # type: ignore[arg-type]
    return plain + [Fault("bad_json", shape=shape) for shape in range(len(BAD_JSON))]
