"""What a request would have cost had nothing been left out, at the prices of the model that answered it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from crew.change import changed
from crew.engine.requests import _build_request_and_repairs, build_request_manifest
from crew.engine.run import ActiveRun
from crew.errors import ContextTooLong, CrewError, MalformedReply, ProviderError, QuotaExceeded, Unavailable, describe
from crew.history.token_budget import Calibration
from crew.history.tokens import count_message_tokens
from crew.history.view import View
from crew.interfaces import ModelReply, ModelRequest, Provider
from crew.messages import AssistantMessage, Manifest, replace_surrogates, replace_surrogates_in_call
from crew.models import usage_cost
from crew.runs.events import Asked, FellBack, Replied, TextDelta, TooLong
from crew.runs.state import RunState
from crew.secrets.scrubbing import ScrubbedDeltas
from crew.transitions.plan import Plan, token_budget_for


def cost_saved_by_pruning(
    plan: Plan, state: RunState, provider: Provider, reply: ModelReply, shown: int
) -> float | None:
    """The dollars that this request, with so many messages shown, cost less; negative where it cost more.

    The request without pruning is reckoned as the service would have billed it: where prompts are cached, its front
    is the agent's whole request before it. None where the price is unknown.
    """
    usage = reply.usage

    if usage.cost is None or not usage.cost or shown >= len(state.transcript):
        return usage.cost and 0.0

    view = state.views.get(state.agent, View())
    gauge = token_budget_for(plan, state, state.agent)
    ratio = state.calibrations.get(gauge.model, Calibration()).estimate_ratio
    whole = max(usage.input_tokens, round(gauge.overhead_tokens + state.counters.tokens_appended * ratio))
    fresh = min(whole, round((state.counters.tokens_appended - view.last_tokens_appended) * ratio))
    so_far = state.counters.usage + usage
    caches = bool(view.last_request and (so_far.cache_read_tokens or so_far.cache_write_tokens))
    unpruned = replace(
        usage,
        input_tokens=whole,
        cache_read_tokens=whole - fresh if caches else 0,
        cache_write_tokens=fresh if so_far.cache_write_tokens else 0,
    )
    cost = usage_cost(provider.name, reply.model or provider.model, unpruned)
    return None if cost is None else cost - usage.cost


async def ask_model(run: ActiveRun, state: RunState) -> None:
    """Ask the model of the agent whose turn it is; what it can't take or do is an event like its reply."""
    # Where neither store nor model ever waits, others get their turn here, and a cancellation is heard.
    await asyncio.sleep(0)
    provider = run.provider(state)
    request, repairs = _build_request_and_repairs(run, state, provider)
    manifest = build_request_manifest(run, state, repairs)
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
        reply = await _call_provider(run, provider, request)
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
        backup = run.backup_for(state.agent)

        if backup is None or backup is provider:
            raise

        if run.wants_deltas:
            # Whatever was streamed of the reply that failed is void: the backup begins anew.
            run.emit(TextDelta(run_id=state.run_id, text="", channel="restart"))

        here, there = f"{provider.name}:{provider.model}", f"{backup.name}:{backup.model}"
        await run.record(FellBack(run_id=state.run_id, model=here, backup=there, reason=describe(error)))
    else:
        shown = len(request.messages)
        saved = cost_saved_by_pruning(run.plan, state, provider, reply, shown)
        await run.record(changed(_replied_event(run, state, provider, reply, manifest), cost_saved=saved))


def _replied_event(
    run: ActiveRun, state: RunState, provider: Provider, reply: ModelReply, manifest: Manifest
) -> Replied:
    billed = changed(manifest, tokens_billed=reply.usage.input_tokens, cached_billed=reply.usage.cache_read_tokens)
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
        usage=reply.usage,
        tokens=count_message_tokens(message, run.token_counter(state), keep=keep),
        finish_reason=reply.finish_reason,
        model=reply.model or provider.model,
        response_id=reply.response_id,
    )


async def _call_provider(run: ActiveRun, provider: Provider, request: ModelRequest) -> ModelReply:
    try:
        with run.around(request.run_id, request):
            on_delta = run.on_delta(request.run_id)
            reply = await provider.complete(request, on_delta)

        if isinstance(on_delta, ScrubbedDeltas):
            on_delta.close()

        return reply
    except CrewError:
        raise
    except asyncio.CancelledError as error:
        task = asyncio.current_task()

        # Somebody cancels this run, or the provider raised it by itself: in a branch nobody would hear of that.
        if task is None or task.cancelling():
            raise

        raise ProviderError(
            f"The provider of {request.agent!r} cancelled the request.", provider=provider.name, model=provider.model
        ) from error
    except Exception as error:  # a provider may be anybody's code: what it raises must fail the run in our words
        raise ProviderError(
            f"The provider of {request.agent!r} failed: {describe(error)}", provider=provider.name, model=provider.model
        ) from error
