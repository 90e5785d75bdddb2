"""What goes wrong on purpose, and when: by the request's number, by seeded chance, or by any function."""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from email.utils import formatdate
from typing import Literal, get_args

from tests.wire.brains import tools
from tests.wire.model import Json, Model, Protocol
from tests.wire.refusal import Refused
from tests.wire.replies import Reply

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
Kind = StatusKind | TransportKind | ReplyKind
KINDS: tuple[str, ...] = tuple(kind for group in get_args(Kind) for kind in get_args(group))

# Cut short, not JSON's quotes, no JSON at all, not an object, nothing.
BAD_JSON = ('{"n": 1, "why": "bec', "{'n': 1,}", "n is one", "[1, 2]", "")


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong. `retry_after` goes with statuses, `seconds` with `slow`, `at` is the share of a stream
    that arrives before it breaks, `shape` picks one of five kinds of broken JSON."""

    kind: Kind
    retry_after: str | None = None
    seconds: float = 0.3
    at: float = 0.5
    shape: int = 0


Faults = Callable[[int, Protocol, Json], Fault | None]


def never(_: int, __: Protocol, ___: Json) -> None:
    """Nothing goes wrong."""


def at(plan: Mapping[int, Fault]) -> Faults:
    """Faults by the number of the request."""
    return lambda index, _, __: plan.get(index)


def chance(shares: Mapping[Fault | Kind, float], seed: int = 0) -> Faults:
    """Faults by share of the requests; the same seed gives the same faults to the same numbers."""

    def faults(index: int, _: Protocol, __: Json) -> Fault | None:
        draw = random.Random(f"{seed}:{index}").random()
        for fault, share in shares.items():
            draw -= share
            if draw < 0:
                return fault if isinstance(fault, Fault) else Fault(fault)
        return None

    return faults


def first_of(*plans: Faults) -> Faults:
    """The first plan that has a fault for the request."""
    return lambda index, protocol, body: next((f for plan in plans if (f := plan(index, protocol, body))), None)


def date_in(seconds: float) -> str:
    """A moment from now as an HTTP date, for `retry_after`."""
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
    """The refusal that the fault stands for, None if it is of another sort."""
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
    """The prompt does not fit the window."""
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
    """The reply with the fault in it. A fault about calls makes one where the reply has none and tools are offered."""
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
    """One fault of each kind, and the five shapes of broken JSON, to go through in a test."""
    plain = [Fault(kind) for kind in kinds if kind != "bad_json"]  # type: ignore[arg-type]
    return plain + [Fault("bad_json", shape=shape) for shape in range(len(BAD_JSON))]
