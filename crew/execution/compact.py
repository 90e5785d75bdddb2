"""Summarising: a request for a summary, and whatever comes of it as one event."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from crew.doors import ModelReply, ModelRequest, ModelSettings, Provider
from crew.errors import CompressionFailed, describe
from crew.exchanges import group, profile_named, repair
from crew.execution.advance import at
from crew.execution.advance.summarised import located
from crew.execution.ask import request_for, tell_retries
from crew.execution.run import Run
from crew.execution.scrub import scrubbed
from crew.execution.thread import on_daemon_thread
from crew.history import estimate, instruction
from crew.history.summaries import INTRODUCTION, MOST_OUTPUT, as_text
from crew.messages import Message, SummaryMessage, Usage, UserMessage, clean, weight
from crew.runs import Compact, RunState
from crew.runs.events import Summarised
from crew.tools import Tool

SECONDS = 60.0
"""How long a function or tool may take for a summary; a model has its own time-outs."""

THINKING = 4_096
"""What a model that thinks first may use for that beside the summary itself."""

ACCEPTED_OUTPUT = MOST_OUTPUT * 5 // 4
"""What an estimate may say of a summary that keeps to its bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked: these messages are to be summarised, by this request where a model does it."""

    covers: tuple[str, ...]
    span: tuple[Message, ...]
    request: ModelRequest | None = None
    provider: Provider | None = None


async def compact(run: Run, state: RunState, now: Compact) -> None:
    """Have one summary made, and record what came of it."""
    question = question_for(run, state, now)
    cause: BaseException | None = None
    provider, model = (question.provider.name, question.provider.model) if question.provider else ("", "")

    try:
        text, usage, error, answered = await _answer(run, question)
    except Exception as raised:  # a summariser may be anybody's code: its failure is never the run's
        text, usage, error, answered, cause = "", Usage(), describe(raised), "", raised

    await run.record(
        Summarised(
            run_id=state.run_id,
            covers=question.covers,
            text=text,
            error=error,
            usage=usage,
            provider=provider,
            model=answered or model,
        )
    )
    here = at(run.state, state.run_id)

    if here is not None and isinstance(here.next, Compact) and here.next.failed:
        raise CompressionFailed(
            f"The compression {now.strategy!r} failed, and the history is as it was: {here.next.failed}"
        ) from cause


async def _answer(run: Run, question: Question) -> tuple[str, Usage, str, str]:
    if question.request is not None and question.provider is not None:
        with run.around(question.request.run_id, question.request):
            reply = await question.provider.complete(question.request)

        return clean(reply.text), reply.usage, _problem(reply), reply.model

    async with asyncio.timeout(SECONDS):
        text = await _call(run.plan.policy.summarizer, question.span)  # type: ignore[attr-defined]

    return clean(text), Usage(), _problem(ModelReply(text=text)), ""


def _problem(reply: ModelReply) -> str:
    if reply.calls:
        return f"the summariser called {', '.join(call.name for call in reply.calls)} instead of writing a summary"

    if reply.finish_reason in ("refusal", "filter"):
        return f"the summariser's answer was withheld ({reply.finish_reason})"

    if not reply.text.strip():
        return "the summary is empty"

    tokens = estimate(reply.text)
    return f"the summary has about {tokens} tokens, more than {MOST_OUTPUT}" if tokens > ACCEPTED_OUTPUT else ""


async def _call(summarizer: Any, span: Sequence[Message]) -> str:
    if isinstance(summarizer, Tool):
        function = summarizer.function
        given: Any = as_text(span)
    else:
        function, given = summarizer, tuple(span)

    if inspect.iscoroutinefunction(function):
        value = await function(given)
    else:
        value = await on_daemon_thread(lambda: function(given), name="crew-summarizer")
        value = await value if inspect.isawaitable(value) else value

    return value if isinstance(value, str) else str(value)


# ------------------------------------------------------------------------------------------ what is asked


def question_for(run: Run, state: RunState, now: Compact) -> Question:
    """The question that this state leads to; the same one for the same state.

    The agent's own model gets the agent's last view and one instruction, so that it reads from its cache. Where that
    view lacks some of the messages, and for any other summariser, it is those messages themselves, oldest first, as
    many as a request may hold; the rest waits for the next summary.
    """
    ids = now.parts[len(now.texts)]
    summarizer = getattr(run.plan.policy, "summarizer", None)

    if summarizer is None or isinstance(summarizer, str | Provider):
        provider = run.provider(state) if summarizer is None else run.resolve(summarizer)

        if summarizer is None and len(now.parts) == 1 and (seen := _from_view(run, state, now, ids, provider)):
            return seen

        return _from_transcript(run, state, ids, provider, everything=bool(now.strategy))

    covers, span = _oldest(run, state, ids, everything=bool(now.strategy))
    return Question(covers=covers, span=span)


def _from_view(run: Run, state: RunState, now: Compact, ids: Sequence[str], provider: Provider) -> Question | None:
    backlog, history = state.backlog, state.history

    if not now.strategy:
        if backlog.asked != state.agent:
            return None

        seen = [entry for entry in (*history.entries, *backlog.left) if entry.position <= backlog.newest]
        past = sorted(seen, key=lambda entry: entry.position)
        size = sum(weight(entry.message) for entry in past)
        history = replace(history, entries=tuple(past), size=size)

    request = request_for(run, replace(state, history=history), provider)
    shown = {message.id for message in request.messages}

    if not shown.issuperset(ids):
        return None

    last = [message.id for message in request.messages]
    staying = len(last) - 1 - max(last.index(id) for id in ids)
    span = tuple(message for _, message in located(state.transcript, ids))
    messages = (*request.messages, instruction(staying))
    settings = _settings(request.settings, provider, thinking_tokens=request.settings.thinking_tokens)
    request = replace(request, messages=messages, settings=settings, output=None, purpose="summary")
    return Question(covers=tuple(ids), span=span, request=request, provider=provider)


def _from_transcript(
    run: Run, state: RunState, ids: Sequence[str], provider: Provider, *, everything: bool
) -> Question:
    covers, span = _oldest(run, state, ids, everything=everything)
    opening = UserMessage(INTRODUCTION, origin="marker", id="summary-introduction")
    shown = repair((opening, *span), profile_named(provider.profile), where="view").messages
    agent, kit = run.plan.agents[state.agent], run.plan.toolkits[state.agent]
    # The agent's settings are for its own model; another one may not know them.
    given = agent.settings if provider is run.provider(state) else ModelSettings()
    request = ModelRequest(
        messages=(*shown, instruction()),
        instructions=scrubbed(run.scrub, agent.instructions),
        tools=kit.specs,
        settings=_settings(given, provider),
        agent=agent.name,
        run_id=state.run_id,
        conversation_id=state.conversation_id,
        turn=state.views[agent.name].turn if agent.name in state.views else 0,
        purpose="summary",
        on_retry=tell_retries(run, state, provider),
    )
    return Question(covers=covers, span=span, request=request, provider=provider)


def _oldest(
    run: Run, state: RunState, ids: Sequence[str], *, everything: bool
) -> tuple[tuple[str, ...], tuple[Message, ...]]:
    """As many of the messages, in whole groups, as a request may hold beside its opening."""
    found = [message for _, message in located(state.transcript, ids)]
    # A summary that is replaced speaks of what came before the rest.
    found.sort(key=lambda message: not isinstance(message, SummaryMessage))
    limit = run.plan.budget.limit
    room = sum(map(weight, found)) if limit is None or everything else limit - 1
    span: list[Message] = []

    for part in group(found):
        room -= sum(weight(message) for message in found[part])

        if span and room < 0:
            break

        span.extend(found[part])

    return tuple(message.id for message in span), tuple(span)


def _settings(given: ModelSettings, provider: Provider, thinking_tokens: int | None = None) -> ModelSettings:
    """For a summary: short, in plain text, free to leave the tools alone, and with little thought.

    Where a cache is to be read, the budget for thinking stays what it was: on the services that have one, another
    budget is another conversation. What is thought counts as output, so that there must be room for it.
    """
    profile = profile_named(provider.profile)
    by_default = profile.thinking == "effort" and "temperature" not in profile.settings
    thinks = given.reasoning is not None or by_default
    reasoning = given.reasoning if given.reasoning == "none" else "low" if thinks else None
    room = THINKING if reasoning == "low" else 0
    return replace(
        given,
        max_output_tokens=min(given.max_output_tokens or MOST_OUTPUT, MOST_OUTPUT) + room,
        tool_choice=None,
        thinking_tokens=thinking_tokens,
        reasoning=reasoning,
        stop=(),
    )
