"""Builds model requests: the current agent's request with its manifest, the settings of summary requests, providers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from crew.engine.run import ActiveRun, Providers
from crew.history.manifest import build_manifest
from crew.history.summaries import MAX_SUMMARY_TOKENS
from crew.history.token_budget import Calibration
from crew.history.view import RequestView, View
from crew.interfaces import ModelRequest, ModelSettings, OutputSpec, Provider, RequestDelay, RetryAttempt, RetryPolicy
from crew.message_rules.profiles import get_profile
from crew.message_rules.repair import repair
from crew.messages import Manifest, Message
from crew.runs.events import HistoryRepaired, RequestDelayed, Retried
from crew.runs.state import RunState
from crew.secrets.scrubbing import scrub_value
from crew.transitions.plan import token_budget_for
from crew.transitions.prepared_agents import current_head


def build_request(
    run: ActiveRun, state: RunState, provider: Provider, content: RequestView
) -> tuple[ModelRequest, tuple[str, ...]]:
    """The current agent's request with this content, and the repairs that the provider's rules needed."""
    repaired = repair(content.messages, get_profile(provider.profile), where="view")

    if repaired.changes:
        run.emit(HistoryRepaired(run_id=state.run_id, changes=repaired.changes, where="view"))

    settings, output = run.plan.agents[state.agent].settings, run.plan.toolkits[state.agent].output
    request = new_request(run, state, provider, repaired.messages, settings, output)
    return request, repaired.changes


def new_request(
    run: ActiveRun,
    state: RunState,
    provider: Provider,
    messages: tuple[Message, ...],
    settings: ModelSettings,
    output: OutputSpec | None = None,
) -> ModelRequest:
    """A request in the name of the current agent."""
    toolkit = run.toolkit(state)
    return ModelRequest(
        messages=messages,
        instructions=scrub_value(run.scrubber, toolkit.instructions),
        tools=toolkit.specs,
        settings=settings,
        output=output,
        agent=state.agent,
        run_id=state.run_id,
        conversation_id=state.conversation_id,
        turn=state.views.get(state.agent, View()).turn,
        order=run.order.number,
        on_retry=_retry_reporter(run, state, provider),
        on_wait=_delay_reporter(run, state, provider),
    )


def _retry_reporter(run: ActiveRun, state: RunState, provider: Provider) -> Callable[[RetryAttempt], None]:
    def report(retry: RetryAttempt) -> None:
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

    return report


def _delay_reporter(run: ActiveRun, state: RunState, provider: Provider) -> Callable[[RequestDelay], None]:
    def report(delay: RequestDelay) -> None:
        run.emit(
            RequestDelayed(
                run_id=state.run_id,
                provider=provider.name,
                model=provider.model,
                limit=delay.limit,
                wait=delay.wait,
            )
        )

    return report


def build_request_manifest(run: ActiveRun, state: RunState, content: RequestView, repairs: tuple[str, ...]) -> Manifest:
    """The manifest of the current agent's request."""
    token_budget = token_budget_for(run.plan, state, state.agent)
    return build_manifest(
        state.history,
        state.transcript,
        state.views.get(state.agent, View()),
        content,
        agent=state.agent,
        token_budget=token_budget,
        calibration=state.calibrations.get(token_budget.model, Calibration()),
        billed_until=state.billed_until,
        policy=run.plan.policy.name,
        repairs=repairs,
        head=current_head(run.plan, state),
    )


THINKING_TOKENS = 4_096
"""The output tokens that a thinking model may use beside the summary itself."""


def summary_settings(given: ModelSettings, provider: Provider, thinking_tokens: int | None = None) -> ModelSettings:
    """Settings for a summary: short plain text, no forced tool call, little reasoning.

    A request that shall read the agent's prompt cache keeps the agent's `thinking_tokens`: on services that have such
    a budget, another one invalidates the cache. Thinking counts as output, so that there must be space for it.
    """
    profile = get_profile(provider.profile)
    thinks_by_default = profile.thinking == "effort" and "temperature" not in profile.known_settings
    thinks = given.reasoning is not None or thinks_by_default
    reasoning = given.reasoning if given.reasoning == "none" else "low" if thinks else None
    extra = THINKING_TOKENS if reasoning == "low" else 0
    return replace(
        given,
        max_output_tokens=min(given.max_output_tokens or MAX_SUMMARY_TOKENS, MAX_SUMMARY_TOKENS) + extra,
        tool_choice=None,
        thinking_tokens=thinking_tokens,
        reasoning=reasoning,
        stop=(),
    )


class RequestProviders:
    """The providers of an executor's runs; registers new API keys as secrets before each request."""

    def __init__(self, providers: Providers, register_keys: Callable[[], None]) -> None:
        self._providers, self._register_keys = providers, register_keys

    def get(self, model: str | Provider, retry: RetryPolicy | None = None) -> Provider:
        """The provider of a model."""
        self._register_keys()
        return self._providers.get(model, retry)
