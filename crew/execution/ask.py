"""Asking a model: the agent's view of the history becomes a request, and the reply an event."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from crew.change import changed
from crew.doors import ModelReply, ModelRequest, Provider, Retry
from crew.errors import ContextTooLong, CrewError, MalformedReply, ProviderError, QuotaExceeded, Unavailable, describe
from crew.exchanges import profile_named, repair
from crew.execution.gauges import gauge_of
from crew.execution.run import Run
from crew.execution.savings import saved_by_pruning
from crew.execution.scrub import Deltas, scrubbed
from crew.history import Calibration, View, count_message, present
from crew.history.manifest import manifest_of
from crew.manifest import Manifest
from crew.messages import AssistantMessage, clean, clean_call
from crew.runs import RunState
from crew.runs.events import Asked, FellBack, HistoryRepaired, Replied, Retried, TextDelta, TooLong


async def ask(run: Run, state: RunState) -> None:
    """Ask the model of the agent whose turn it is; what it can't take or do is an event like its reply."""
    # Where neither store nor model ever waits, others get their turn here, and a cancellation is heard.
    await asyncio.sleep(0)
    provider = run.provider(state)
    request, repairs = _request(run, state, provider)
    manifest = _manifest(run, state, repairs)
    run.tell(
        Asked(
            run_id=state.run_id,
            provider=provider.name,
            model=provider.model,
            messages=len(request.messages),
            tokens=manifest.tokens,
            manifest=manifest,
        )
    )

    try:
        reply = await _complete(run, provider, request)
    except ContextTooLong as error:
        await run.record(
            TooLong(
                run_id=state.run_id,
                model=manifest.model,
                tokens=manifest.tokens,
                maximum=error.maximum,
                reason=describe(error),
            )
        )
    except (Unavailable, MalformedReply, QuotaExceeded) as error:
        backup = run.backup_for(state.agent)

        if backup is None or backup is provider:
            raise

        if run.streams:
            # Whatever was streamed of the reply that failed is void: the backup begins anew.
            run.tell(TextDelta(run_id=state.run_id, text="", channel="restart"))

        here, there = f"{provider.name}:{provider.model}", f"{backup.name}:{backup.model}"
        await run.record(FellBack(run_id=state.run_id, model=here, backup=there, reason=describe(error)))
    else:
        shown = len(request.messages)
        saved = saved_by_pruning(run.plan, state, provider, reply, shown)
        await run.record(changed(_replied(run, state, provider, reply, manifest), saved=saved))


def _replied(run: Run, state: RunState, provider: Provider, reply: ModelReply, manifest: Manifest) -> Replied:
    billed = changed(manifest, billed=reply.usage.input_tokens, billed_cached=reply.usage.cache_read_tokens)
    message = AssistantMessage(
        clean(reply.text),
        calls=tuple(map(clean_call, reply.calls)),
        agent=state.agent,
        provider_data=reply.provider_data,
        manifest=billed,
    )
    keep = state.parameters.enable_token_caching
    return Replied(
        run_id=state.run_id,
        message=message,
        usage=reply.usage,
        tokens=count_message(message, run.counter(state), keep=keep),
        finish_reason=reply.finish_reason,
        model=reply.model or provider.model,
        response_id=reply.response_id,
    )


def request_for(run: Run, state: RunState, provider: Provider) -> ModelRequest:
    """The request that this state leads to; the same one for the same state."""
    return _request(run, state, provider)[0]


def _request(run: Run, state: RunState, provider: Provider) -> tuple[ModelRequest, tuple[str, ...]]:
    agent, kit = run.plan.agents[state.agent], run.plan.toolkits[state.agent]
    view = state.views.get(agent.name, View())
    repaired = repair(present(state.history, view), profile_named(provider.profile), where="view")

    if repaired.changes:
        run.tell(HistoryRepaired(run_id=state.run_id, changes=repaired.changes, where="view"))

    request = ModelRequest(
        messages=repaired.messages,
        instructions=scrubbed(run.scrub, agent.instructions),
        tools=kit.specs,
        settings=agent.settings,
        output=kit.output,
        agent=agent.name,
        run_id=state.run_id,
        conversation_id=state.conversation_id,
        turn=view.turn,
        on_retry=tell_retries(run, state, provider),
    )
    return request, repaired.changes


def tell_retries(run: Run, state: RunState, provider: Provider) -> Callable[[Retry], None]:
    """What is called with each attempt that failed and is made again."""

    def tell(retry: Retry) -> None:
        run.tell(
            Retried(
                run_id=state.run_id,
                provider=provider.name,
                model=provider.model,
                attempt=retry.attempt,
                reason=retry.reason,
                wait=retry.wait,
            )
        )

    return tell


def _manifest(run: Run, state: RunState, repairs: tuple[str, ...]) -> Manifest:
    gauge = gauge_of(run.plan, state, state.agent)
    return manifest_of(
        state.history,
        state.transcript,
        state.views.get(state.agent, View()),
        agent=state.agent,
        gauge=gauge,
        calibration=state.calibrations.get(gauge.model, Calibration()),
        known=state.known,
        policy=run.plan.policy.name,
        repairs=repairs,
    )


async def _complete(run: Run, provider: Provider, request: ModelRequest) -> ModelReply:
    try:
        with run.around(request.run_id, request):
            on_delta = run.on_delta(request.run_id)
            reply = await provider.complete(request, on_delta)

        if isinstance(on_delta, Deltas):
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
