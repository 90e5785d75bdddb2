"""Checks a reply before it enters a run: its types, its sizes and its usage figures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import SupportsFloat, get_args

from crew.errors import MalformedReply, abbreviate
from crew.interfaces import FinishReason, ModelReply
from crew.messages import ProviderData, ToolCall, Usage

MAX_CALLS = 256
"""The most tool calls in one reply."""

MAX_NAME_CHARS = 256
"""The longest name of a called tool; the services accept up to 128 characters."""

MAX_ID_CHARS = 4096
"""The longest id of a call or a response; some compatible servers keep signatures in it."""

MAX_ARGUMENTS_CHARS = 4 * 2**20
"""The longest arguments of one call."""

MAX_TOKENS = 10**9
"""The largest count of tokens or requests that a reply may report; a larger one is counted as this."""

MAX_COST = 10.0**6
"""The highest cost of one request, in dollars; a higher one is counted as this."""

_FINISH_REASONS: tuple[str, ...] = get_args(FinishReason)


def check_reply(reply: object, *, provider: str, model: str) -> ModelReply:
    """The reply, if it can be stored and loaded again; its `warnings` name the figures that were corrected.

    Raises MalformedReply if a field has a type without a clear meaning, or is too long.
    """
    try:
        return _checked(reply)
    except (TypeError, ValueError) as error:
        text = f"{provider} ({model}) returned an unusable reply: {error}."
        raise MalformedReply(text, provider=provider, model=model) from error


def _checked(reply: object) -> ModelReply:
    if not isinstance(reply, ModelReply):
        raise TypeError(f"expected a ModelReply, not {abbreviate(reply)}")

    _check_text("text", reply.text)
    _check_text("model", reply.model)
    _check_text("response_id", reply.response_id, MAX_ID_CHARS)

    if reply.calls:
        _check_calls(reply.calls)

    if reply.provider_data is not None and not isinstance(reply.provider_data, ProviderData):
        raise TypeError(f"provider_data must be a ProviderData or None, not {abbreviate(reply.provider_data)}")

    problems: list[str] = []
    usage = check_usage(reply.usage, problems)
    reason: FinishReason = reply.finish_reason

    if reason not in _FINISH_REASONS:
        reason = "calls" if reply.calls else "stop"
        problems.append(f"finish_reason is {abbreviate(reply.finish_reason)}, read as {reason!r}")

    if not problems and isinstance(reply.calls, tuple):
        return reply

    warnings = (*reply.warnings, *problems)
    return replace(reply, calls=tuple(reply.calls), usage=usage, finish_reason=reason, warnings=warnings)


def _check_calls(calls: object) -> None:
    if not isinstance(calls, Sequence):
        raise TypeError(f"calls must be a tuple of ToolCall, not {abbreviate(calls)}")

    if len(calls) > MAX_CALLS:
        raise ValueError(f"it has more than {MAX_CALLS} tool calls")

    for call in calls:
        if not isinstance(call, ToolCall):
            raise TypeError(f"calls must be a tuple of ToolCall, not of {abbreviate(call)}")

        _check_text("the name of a call", call.name, MAX_NAME_CHARS)
        _check_text("the id of a call", call.id, MAX_ID_CHARS)
        _check_text("arguments", call.arguments, MAX_ARGUMENTS_CHARS)


def _check_text(name: str, value: object, limit: int | None = None) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a string, not {abbreviate(value)}")

    if limit is not None and len(value) > limit:
        raise ValueError(f"{name} has {len(value):,} characters, more than {limit:,}: {abbreviate(value)}")


# ----------------------------------------------------------------------------------------------- usage


def check_usage(usage: object, problems: list[str]) -> Usage:
    """The usage with counts that are integers, not negative and not huge; adds each correction to the problems."""
    if not isinstance(usage, Usage):
        raise TypeError(f"usage must be a Usage, not {abbreviate(usage)}")

    if _is_sound(usage):
        return usage

    requests = check_count("requests", usage.requests, problems)
    input = check_count("input_tokens", usage.input_tokens, problems)
    output = check_count("output_tokens", usage.output_tokens, problems)
    read = check_count("cache_read_tokens", usage.cache_read_tokens, problems)
    write = check_count("cache_write_tokens", usage.cache_write_tokens, problems)
    reasoning = check_count("reasoning_tokens", usage.reasoning_tokens, problems)

    if read + write > input:
        problems.append(f"{read + write} of {input} input tokens are cached, counted as {input}")
        read = min(read, input)
        write = min(write, input - read)

    cost = _check_cost(usage.cost, problems)

    return Usage(
        requests=requests,
        input_tokens=input,
        output_tokens=output,
        cache_read_tokens=read,
        cache_write_tokens=write,
        reasoning_tokens=reasoning,
        cost=cost,
    )


def _is_sound(usage: Usage) -> bool:
    """Whether there is nothing to correct: the common case, decided without a call for each figure."""
    counts = (
        usage.requests,
        usage.input_tokens,
        usage.output_tokens,
        usage.cache_read_tokens,
        usage.cache_write_tokens,
        usage.reasoning_tokens,
    )

    for count in counts:
        if type(count) is not int or not 0 <= count <= MAX_TOKENS:
            return False

    cost = usage.cost
    return usage.cache_read_tokens + usage.cache_write_tokens <= usage.input_tokens and (
        cost is None or (type(cost) is float and 0.0 <= cost <= MAX_COST)
    )


def check_count(name: str, value: object, problems: list[str]) -> int:
    """The value as a count: rounded up, between 0 and MAX_TOKENS; 0 if it is not a number."""
    if type(value) is int and 0 <= value <= MAX_TOKENS:
        return value

    number = _number(value)
    count = 0 if number is None else math.ceil(min(max(number, 0.0), MAX_TOKENS))
    problems.append(f"{name} is {abbreviate(value)}, counted as {count}")
    return count


def _check_cost(cost: object, problems: list[str]) -> float | None:
    if cost is None or (type(cost) is float and 0.0 <= cost <= MAX_COST):
        return cost

    number = _number(cost)
    # A negative cost is unknown rather than zero: the price or the token counts are wrong.
    checked = None if number is None or number < 0 else min(number, MAX_COST)

    if checked != cost:
        problems.append(f"cost is {abbreviate(cost)}, counted as {'unknown' if checked is None else checked}")

    return checked


def _number(value: object) -> float | None:
    """The value as a float, which may be infinite; None if it is not a number."""
    if isinstance(value, bool) or not isinstance(value, str | SupportsFloat):
        return None

    try:
        number = float(value)
    except OverflowError:  # an integer beyond the range of floats
        return math.inf if isinstance(value, int) and value > 0 else -math.inf
    except (TypeError, ValueError):
        return None

    return None if math.isnan(number) else number
