"""Performs `Compact`: asks for one summary, and records it or its failure."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from crew.engine.concurrency import USER_CODE_ERRORS, is_failure, run_in_daemon_thread, run_or_abandon
from crew.engine.model_step import accept_reply
from crew.engine.requests import build_request, new_request, summary_settings
from crew.engine.run import ActiveRun
from crew.errors import CompressionFailed, describe
from crew.history.summaries import (
    MAX_SUMMARY_TOKENS,
    SUMMARY_INTRODUCTION,
    locate_messages,
    summary_instruction,
    to_plain_text,
)
from crew.history.tokens import estimate_tokens
from crew.history.view import RequestView, View
from crew.history.view_summaries import last_request
from crew.interfaces import ModelReply, ModelRequest, ModelSettings, Provider, Summarizer
from crew.message_rules.profiles import get_profile
from crew.message_rules.repair import repair
from crew.message_rules.validate import group_spans
from crew.messages import Message, SummaryMessage, Usage, UserMessage, message_size, replace_surrogates
from crew.runs.events import Summarised
from crew.runs.state import Compact, RunState
from crew.tools.tool import Tool
from crew.transitions.advance import find_run
from crew.transitions.plan import token_budget_for

SUMMARIZER_TIMEOUT = 60.0
"""How long a function or tool may take for a summary; a model request has timeouts already."""

MAX_ACCEPTED_TOKENS = MAX_SUMMARY_TOKENS * 5 // 4
"""The estimate up to which a summary counts as within its bound: estimates are not exact."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryRequest:
    """The messages that a summary shall cover, and the request for it where a model writes it."""

    covers: tuple[str, ...]
    span: tuple[Message, ...]
    request: ModelRequest | None = None
    provider: Provider | None = None


async def make_summary(run: ActiveRun, state: RunState, now: Compact) -> None:
    """Ask for one summary and record the outcome."""
    summary_request = build_summary_request(run, state, now)
    began = run.monotonic()
    cause: BaseException | None = None
    provider, model = (
        (summary_request.provider.name, summary_request.provider.model) if summary_request.provider else ("", "")
    )

    try:
        summarizer = run.plan.summary_policy(state.agent, now.where).options.summarizer
        text, usage, error, answered = await _get_summary(run, summary_request, summarizer)
    except USER_CODE_ERRORS as raised:  # the summarizer boundary: user code may raise anything, and never fails the run
        if not is_failure(raised):
            raise

        text, usage, error, answered, cause = "", Usage(), describe(raised), "", raised

    await run.record(
        Summarised(
            run_id=state.run_id,
            covers=summary_request.covers,
            text=text,
            error=error,
            usage=usage,
            provider=provider,
            model=answered or model,
            seconds=max(0.0, run.monotonic() - began),
        )
    )
    current = find_run(run.state, state.run_id)

    if current is not None and isinstance(current.next, Compact) and current.next.failure:
        raise CompressionFailed(
            f"The compression {now.strategy!r} failed and the history is unchanged: {current.next.failure}"
        ) from cause


async def _get_summary(
    run: ActiveRun, summary_request: SummaryRequest, summarizer: Summarizer
) -> tuple[str, Usage, str, str]:
    def abandon(outcome: asyncio.Future[Any]) -> None:
        run.abandon(run.state.run_id, "the summarizer", outcome)

    request, provider = summary_request.request, summary_request.provider

    if request is not None and provider is not None:
        with run.observers.call_context(request.run_id, request):
            reply = await run_or_abandon(provider.complete(request), abandon)

        reply = accept_reply(run, request.run_id, provider, reply)
        return replace_surrogates(reply.text), reply.usage, _summary_problem(reply), reply.model

    work = _call_summarizer(summarizer, summary_request.span)
    text = await run_or_abandon(work, abandon, SUMMARIZER_TIMEOUT)
    return replace_surrogates(text), Usage(), _summary_problem(ModelReply(text=text)), ""


def _summary_problem(reply: ModelReply) -> str:
    if reply.calls:
        return f"the summarizer called {', '.join(call.name for call in reply.calls)} instead of writing a summary"

    if reply.finish_reason in ("refusal", "filter"):
        return f"the summarizer's answer was withheld ({reply.finish_reason})"

    if not reply.text.strip():
        return "the summary is empty"

    tokens = estimate_tokens(reply.text)
    return (
        f"the summary has about {tokens} tokens, more than {MAX_SUMMARY_TOKENS}" if tokens > MAX_ACCEPTED_TOKENS else ""
    )


async def _call_summarizer(summarizer: Any, span: Sequence[Message]) -> str:
    if isinstance(summarizer, Tool):
        function = summarizer.function
        given: Any = to_plain_text(span)
    else:
        function, given = summarizer, tuple(span)

    if inspect.iscoroutinefunction(function):
        value = await function(given)
    else:
        value = await run_in_daemon_thread(lambda: function(given), name="crew-summarizer")
        value = await value if inspect.isawaitable(value) else value

    return value if isinstance(value, str) else str(value)


# ------------------------------------------------------------------------------------------ building the request


def build_summary_request(run: ActiveRun, state: RunState, now: Compact) -> SummaryRequest:
    """The request for the next summary; the same state gives the same request.

    The agent's model gets the agent's last view and one instruction, so that it reads from the prompt cache. Where that
    view lacks some of the messages, and for any other summarizer, the request holds those messages, oldest first, as
    many as a request may hold; the rest waits for the next summary.
    """
    ids = now.spans[len(now.summaries)]
    summarizer = run.plan.summary_policy(state.agent, now.where).options.summarizer

    if summarizer is None or isinstance(summarizer, str | Provider):
        provider = run.provider(state) if summarizer is None else run.providers.get(summarizer)

        if summarizer is None and len(now.spans) == 1 and (seen := _request_from_view(run, state, now, ids, provider)):
            return seen

        return _request_from_transcript(run, state, now, ids, provider)

    covers, span = _oldest_span(run, state, now, ids)
    return SummaryRequest(covers=covers, span=span)


def _request_from_view(
    run: ActiveRun, state: RunState, now: Compact, ids: Sequence[str], provider: Provider
) -> SummaryRequest | None:
    content = _last_view_request(run, state) if now.where == "view" else _last_request(state, now)

    if content is None:
        return None

    request, _ = build_request(run, state, provider, content)
    shown = {message.id for message in request.messages}

    if not shown.issuperset(ids):
        return None

    last = [message.id for message in request.messages]
    staying = len(last) - 1 - max(last.index(id) for id in ids)
    span = tuple(message for _, message in locate_messages(state.transcript, ids))
    messages = (*request.messages, summary_instruction(staying))
    settings = summary_settings(request.settings, provider, thinking_tokens=request.settings.thinking_tokens)
    request = replace(request, messages=messages, settings=settings, output=None, purpose="summary")
    return SummaryRequest(covers=tuple(ids), span=span, request=request, provider=provider)


def _last_view_request(run: ActiveRun, state: RunState) -> RequestView | None:
    """The agent's last request, if the model that is asked now answered it."""
    view, model = state.views[state.agent], token_budget_for(run.plan, state, state.agent).model
    return last_request(view, state.history) if view.last_model == model else None


def _last_request(state: RunState, now: Compact) -> RequestView | None:
    """The agent's last request; for an explicit compression, what its next request would hold."""
    pending, history = state.pending_summary, state.history

    if not now.strategy:
        if pending.last_request_agent != state.agent:
            return None

        seen = [
            entry
            for entry in (*history.entries, *pending.evicted_since_request)
            if entry.position <= pending.last_request_end
        ]
        past = sorted(seen, key=lambda entry: entry.position)
        size = sum(message_size(entry.message) for entry in past)
        history = replace(history, entries=tuple(past), size=size)

    return RequestView.of(history, state.views.get(state.agent, View()))


def _request_from_transcript(
    run: ActiveRun, state: RunState, now: Compact, ids: Sequence[str], provider: Provider
) -> SummaryRequest:
    covers, span = _oldest_span(run, state, now, ids)
    opening = UserMessage(SUMMARY_INTRODUCTION, origin="marker", id="summary-introduction")
    limit = run.plan.budget.limit

    if limit is not None and sum(map(message_size, span)) >= limit:
        # One group of many calls, or a tiny limit: as one message, the request keeps the limit.
        opening = replace(opening, text=f"{SUMMARY_INTRODUCTION}\n\n{to_plain_text(span)}")
        messages: tuple[Message, ...] = (opening, summary_instruction())
    else:
        # With the instruction: alone, a span that ends with a reply would lose it.
        messages = repair((opening, *span, summary_instruction()), get_profile(provider.profile), where="view").messages

    # The settings of the agent are meant for its model; another model may not support them.
    settings = run.plan.agents[state.agent].settings if provider is run.provider(state) else ModelSettings()
    request = new_request(run, state, provider, messages, summary_settings(settings, provider))
    request = replace(request, purpose="summary")
    return SummaryRequest(covers=covers, span=span, request=request, provider=provider)


def _oldest_span(
    run: ActiveRun, state: RunState, now: Compact, ids: Sequence[str]
) -> tuple[tuple[str, ...], tuple[Message, ...]]:
    """The oldest of these messages, in whole groups, as many as a request may hold beside its introduction."""
    found = [message for _, message in locate_messages(state.transcript, ids)]
    # A summary that is replaced covers what came before the other messages.
    found.sort(key=lambda message: not isinstance(message, SummaryMessage))
    limit = run.plan.view_limit(state.agent) if now.where == "view" else run.plan.budget.limit
    available = sum(map(message_size, found)) if limit is None or now.strategy else limit - 1
    span: list[Message] = []

    for part in group_spans(found):
        available -= sum(message_size(message) for message in found[part])

        if span and available < 0:
            break

        span.extend(found[part])

    return tuple(message.id for message in span), tuple(span)
