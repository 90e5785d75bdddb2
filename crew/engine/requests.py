"""requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from crew.engine.run import ActiveRun
from crew.history.manifest import build_manifest
from crew.history.summaries import MAX_SUMMARY_TOKENS
from crew.history.token_budget import Calibration
from crew.history.view import View, visible_messages
from crew.interfaces import ModelRequest, ModelSettings, Provider, RetryAttempt
from crew.message_rules.profiles import get_profile
from crew.message_rules.repair import repair
from crew.messages import Manifest
from crew.runs.events import HistoryRepaired, Retried
from crew.runs.state import RunState
from crew.secrets.scrubbing import scrub_value
from crew.transitions.plan import token_budget_for


def build_request(run: ActiveRun, state: RunState, provider: Provider) -> ModelRequest:
    """The request that this state leads to; the same one for the same state."""
    return _build_request_and_repairs(run, state, provider)[0]


def _build_request_and_repairs(
    run: ActiveRun, state: RunState, provider: Provider
) -> tuple[ModelRequest, tuple[str, ...]]:
    agent, kit = run.plan.agents[state.agent], run.plan.toolkits[state.agent]
    view = state.views.get(agent.name, View())
    repaired = repair(visible_messages(state.history, view), get_profile(provider.profile), where="view")

    if repaired.changes:
        run.emit(HistoryRepaired(run_id=state.run_id, changes=repaired.changes, where="view"))

    request = ModelRequest(
        messages=repaired.messages,
        instructions=scrub_value(run.scrubber, agent.instructions),
        tools=kit.specs,
        settings=agent.settings,
        output=kit.output,
        agent=agent.name,
        run_id=state.run_id,
        conversation_id=state.conversation_id,
        turn=view.turn,
        on_retry=retry_reporter(run, state, provider),
    )
    return request, repaired.changes


def retry_reporter(run: ActiveRun, state: RunState, provider: Provider) -> Callable[[RetryAttempt], None]:
    """What is called with each attempt that failed and is made again."""

    def tell(retry: RetryAttempt) -> None:
        run.emit(
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


def build_request_manifest(run: ActiveRun, state: RunState, repairs: tuple[str, ...]) -> Manifest:
    gauge = token_budget_for(run.plan, state, state.agent)
    return build_manifest(
        state.history,
        state.transcript,
        state.views.get(state.agent, View()),
        agent=state.agent,
        token_budget=gauge,
        calibration=state.calibrations.get(gauge.model, Calibration()),
        billed_until=state.billed_until,
        policy=run.plan.policy.name,
        repairs=repairs,
    )


THINKING_TOKENS = 4_096
"""What a model that thinks first may use for that beside the summary itself."""


def summary_settings(given: ModelSettings, provider: Provider, thinking_tokens: int | None = None) -> ModelSettings:
    """For a summary: short, in plain text, free to leave the tools alone, and with little thought.

    Where a cache is to be read, the budget for thinking stays what it was: on the services that have one, another
    budget is another conversation. What is thought counts as output, so that there must be room for it.
    """
    profile = get_profile(provider.profile)
    by_default = profile.thinking == "effort" and "temperature" not in profile.known_settings
    thinks = given.reasoning is not None or by_default
    reasoning = given.reasoning if given.reasoning == "none" else "low" if thinks else None
    room = THINKING_TOKENS if reasoning == "low" else 0
    return replace(
        given,
        max_output_tokens=min(given.max_output_tokens or MAX_SUMMARY_TOKENS, MAX_SUMMARY_TOKENS) + room,
        tool_choice=None,
        thinking_tokens=thinking_tokens,
        reasoning=reasoning,
        stop=(),
    )
