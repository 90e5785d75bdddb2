"""Asking a model: the agent's view of the history becomes a request, and the reply an event."""

from __future__ import annotations

import asyncio

from crew.doors import ModelReply, ModelRequest, Provider
from crew.errors import CrewError, ProviderError, describe
from crew.exchanges import profile_named, repair
from crew.execution.run import Run
from crew.history import View, estimate_message, present
from crew.messages import AssistantMessage, clean, clean_call
from crew.runs import RunState
from crew.runs.events import Asked, HistoryRepaired, Replied, Retried


async def ask(run: Run, state: RunState) -> None:
    """Ask the model of the agent whose turn it is."""
    provider = run.provider_for(state.agent)
    request = request_for(run, state, provider)
    tokens = run.plan.toolkits[state.agent].tokens + sum(entry.tokens for entry in state.history.entries)
    run.tell(
        Asked(
            run_id=state.run_id,
            provider=provider.name,
            model=provider.model,
            messages=len(request.messages),
            tokens=tokens,
        )
    )
    reply = await _complete(run, provider, request)
    message = AssistantMessage(
        clean(reply.text),
        calls=tuple(map(clean_call, reply.calls)),
        agent=state.agent,
        provider_data=reply.provider_data,
    )
    await run.record(
        Replied(
            run_id=state.run_id,
            message=message,
            usage=reply.usage,
            tokens=estimate_message(message),
            finish_reason=reply.finish_reason,
            model=reply.model or provider.model,
            response_id=reply.response_id,
        )
    )


def request_for(run: Run, state: RunState, provider: Provider) -> ModelRequest:
    """The request that this state leads to; the same one for the same state."""
    agent, kit = run.plan.agents[state.agent], run.plan.toolkits[state.agent]
    view = state.views.get(agent.name, View())
    repaired = repair(present(state.history, view), profile_named(provider.profile), where="view")

    if repaired.changes:
        run.tell(HistoryRepaired(run_id=state.run_id, changes=repaired.changes, where="view"))

    return ModelRequest(
        messages=repaired.messages,
        instructions=agent.instructions,
        tools=kit.specs,
        settings=agent.settings,
        output=kit.output,
        agent=agent.name,
        run_id=state.run_id,
        conversation_id=state.conversation_id,
        turn=view.turn,
        on_retry=lambda retry: run.tell(
            Retried(
                run_id=state.run_id,
                provider=provider.name,
                model=provider.model,
                attempt=retry.attempt,
                reason=retry.reason,
                wait=retry.wait,
            )
        ),
    )


async def _complete(run: Run, provider: Provider, request: ModelRequest) -> ModelReply:
    try:
        return await provider.complete(request, run.on_delta(request.run_id))
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
