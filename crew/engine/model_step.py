"""Performs `AskModel`: sends the request, and records the reply, the refusal or the outage."""

from __future__ import annotations

import asyncio

from crew.engine.concurrency import is_failure, run_or_abandon
from crew.engine.guardrail_step import ask_beside_checks
from crew.engine.requests import build_request, build_request_manifest
from crew.engine.run import ActiveRun
from crew.errors import ContextTooLong, CrewError, MalformedReply, ProviderError, QuotaExceeded, Unavailable, describe
from crew.fast_replace import fast_replace
from crew.history.token_budget import Calibration
from crew.history.tokens import count_message_tokens
from crew.history.view import View
from crew.interfaces import ModelReply, ModelRequest, Provider
from crew.message_rules.reply_checks import check_reply
from crew.messages import AssistantMessage, Manifest, Usage, replace_surrogates, replace_surrogates_in_call
from crew.models import usage_cost
from crew.runs.events import Asked, FellBack, Replied, TextDelta, TooLong, Warned
from crew.runs.state import RunState, request_view
from crew.secrets.scrubbing import ScrubbedDeltas
from crew.transitions.checks import checks_output
from crew.transitions.plan import Plan, token_budget_for


async def ask_model(run: ActiveRun, state: RunState) -> None:
    """Ask the model of the current agent; a refusal or an outage is recorded as an event, as a reply is."""
    # Where neither the store nor the model ever waits, other tasks get a turn here, and a cancellation takes effect.
    await asyncio.sleep(0)
    provider = run.provider(state)
    content = request_view(state)
    request, repairs = build_request(run, state, provider, content)
    manifest = build_request_manifest(run, state, content, repairs)
    request = fast_replace(request, estimated_tokens=manifest.tokens_estimated)
    run.emit(
        Asked(
            run_id=state.run_id,
            provider=provider.name,
            model=provider.model,
            messages=len(request.messages),
            tokens_estimated=manifest.tokens_estimated,
            manifest=manifest,
        )
    )

    try:
        reply = await _ask(run, state, provider, request)
    except ContextTooLong as error:
        await run.record(
            TooLong(
                run_id=state.run_id,
                model=manifest.model,
                tokens=manifest.tokens_estimated,
                maximum=error.maximum,
                reason=describe(error),
            )
        )
    except (Unavailable, MalformedReply, QuotaExceeded) as error:
        await _fall_back(run, state, provider, error)
    else:
        if reply is None:
            return  # a guardrail did not accept the input

        unpruned = _bill_without_pruning(run.plan, state, reply, len(request.messages))
        await run.record(_replied_event(run, state, provider, reply, manifest, unpruned))


async def _ask(run: ActiveRun, state: RunState, provider: Provider, request: ModelRequest) -> ModelReply | None:
    """The reply. What guardrails have to accept first is held back; None if they did not accept the input."""
    holds_output = checks_output(run.plan, state)

    if holds_output:
        run.held_deltas.take(state.run_id)
        run.held_deltas.hold(state.run_id)

    asked = _call_provider(run, provider, request)
    reply = await (asked if not state.unchecked_input else ask_beside_checks(run, state, asked))

    if reply is not None and holds_output and reply.calls:
        run.release_deltas(state.run_id)  # a text beside calls is no output

    return reply


async def _fall_back(run: ActiveRun, state: RunState, provider: Provider, error: ProviderError) -> None:
    """Record that the agent's backup takes over; without a backup, raise the error."""
    backup = run.backup(state.agent)

    if backup is None or backup is provider:
        raise error

    if not run.held_deltas.restart(state.run_id) and run.wants_deltas:
        # The pieces of the failed reply are void: the backup starts again.
        run.emit(TextDelta(run_id=state.run_id, text="", channel="restart"))

    failed, replacement = f"{provider.name}:{provider.model}", f"{backup.name}:{backup.model}"
    await run.record(FellBack(run_id=state.run_id, model=failed, backup=replacement, reason=describe(error)))


def _replied_event(
    run: ActiveRun, state: RunState, provider: Provider, reply: ModelReply, manifest: Manifest, unpruned: Usage
) -> Replied:
    usage = reply.usage
    billed = fast_replace(
        manifest,
        tokens_billed=usage.input_tokens,
        cached_billed=usage.cache_read_tokens,
        output_billed=usage.output_tokens,
    )
    message = AssistantMessage(
        replace_surrogates(reply.text),
        calls=tuple(map(replace_surrogates_in_call, reply.calls)),
        agent=state.agent,
        provider_data=reply.provider_data,
        manifest=billed,
    )
    keep = state.parameters.enable_token_caching
    return Replied(
        run_id=state.run_id,
        message=message,
        usage=usage,
        tokens=count_message_tokens(message, run.token_counter(state), keep=keep),
        finish_reason=reply.finish_reason,
        model=reply.model or provider.model,
        response_id=reply.response_id,
        cost_saved=_cost_saved(provider, reply, unpruned),
        unpruned_tokens=unpruned.input_tokens,
    )


async def _call_provider(run: ActiveRun, provider: Provider, request: ModelRequest) -> ModelReply:
    is_active = True

    def abandon(outcome: asyncio.Future[ModelReply]) -> None:
        nonlocal is_active
        is_active = False
        run.abandon(request.run_id, f"the model {provider.name}:{provider.model} of {request.agent}", outcome)

    try:
        with run.observers.call_context(request.run_id, request):
            on_delta = run.on_delta(request.run_id, lambda: is_active)
            reply = await run_or_abandon(provider.complete(request, on_delta), abandon)

        if isinstance(on_delta, ScrubbedDeltas):
            on_delta.close()

        return accept_reply(run, request.run_id, provider, reply)
    except CrewError:
        raise
    except asyncio.CancelledError as error:
        # Either this run is cancelled, or the provider raised CancelledError itself, which would end a branch silently.
        if not is_failure(error):
            raise

        raise ProviderError(
            f"The provider of {request.agent!r} cancelled the request.", provider=provider.name, model=provider.model
        ) from error
    except (Exception, SystemExit) as error:  # the provider boundary: user code may raise anything
        raise ProviderError(
            f"The provider of {request.agent!r} failed: {describe(error)}", provider=provider.name, model=provider.model
        ) from error


def accept_reply(run: ActiveRun, run_id: str, provider: Provider, reply: object) -> ModelReply:
    """Check a reply where it enters the run, also that of a custom provider, and emit its warnings."""
    checked = check_reply(reply, provider=provider.name, model=provider.model)

    for text in checked.warnings:
        run.emit(Warned(run_id=run_id, text=f"Reply of {provider.name}:{provider.model}: {text}"))

    return checked


def _bill_without_pruning(plan: Plan, state: RunState, reply: ModelReply, shown: int) -> Usage:
    """The usage of this request, which showed so many messages, if it had held the whole history.

    Where prompts are cached, the agent's previous request, unpruned, is the cached prefix.
    """
    usage = reply.usage

    if shown >= len(state.transcript) or not usage.input_tokens:
        return usage

    view = state.views.get(state.agent, View())
    token_budget = token_budget_for(plan, state, state.agent)
    ratio = state.calibrations.get(token_budget.model, Calibration()).estimate_ratio
    unpruned_tokens = max(
        usage.input_tokens, round(token_budget.overhead_tokens + state.counters.tokens_appended * ratio)
    )
    fresh = min(unpruned_tokens, round((state.counters.tokens_appended - view.last_tokens_appended) * ratio))
    so_far = state.counters.usage + usage
    caches = bool(view.last_request and (so_far.cache_read_tokens or so_far.cache_write_tokens))
    return fast_replace(
        usage,
        input_tokens=unpruned_tokens,
        cache_read_tokens=unpruned_tokens - fresh if caches else 0,
        cache_write_tokens=fresh if so_far.cache_write_tokens else 0,
    )


def _cost_saved(provider: Provider, reply: ModelReply, unpruned: Usage) -> float | None:
    """The dollars that pruning saved on this request; negative where it cost more, None if the price is unknown."""
    usage = reply.usage

    if not usage.cost or unpruned is usage:
        return usage.cost and 0.0

    cost = usage_cost(provider.name, reply.model or provider.model, unpruned)
    return None if cost is None else cost - usage.cost
