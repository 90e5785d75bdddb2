"""Compiles the crew and the settings of an executor into a checked plan."""

from __future__ import annotations

from collections.abc import Callable

from crew.agents.crew import Crew
from crew.engine.token_meter import check_windows
from crew.history.policies.chain import default_bounded_policy, split_stages
from crew.history.policies.lookup import PolicySpec, resolve_policy
from crew.runs.parameters import RequestParameters
from crew.transitions.plan import Plan, check_view_policies, compile_plan, resolve_budget
from crew.transitions.setting_conflicts import warn_of_conflicts


def compile_crew(
    crew: Crew,
    history: PolicySpec,
    bounds: tuple[int | None, int | None],
    parameters: RequestParameters,
    *,
    max_input_tokens: int | None,
    sanitize_output: bool,
) -> Plan:
    """The checked plan of a crew; `bounds` are `max_messages_per_request` and `prune_to`."""
    policy = resolve_policy(history)
    shared, views = split_stages(policy)
    plan = compile_plan(
        crew,
        shared,
        resolve_budget(crew, shared, *bounds),
        views,
        max_input_tokens=max_input_tokens,
        sanitize_output=sanitize_output,
        default_bounded=default_bounded_policy(policy),
    )
    check_view_policies(plan)
    check_windows(plan)
    warn_of_conflicts(plan, views, *bounds, parameters)
    return plan


def check_models(plan: Plan, check: Callable[..., None]) -> None:
    """Check each model with its settings and retries; `check` raises `DefinitionError` for a model that it refuses."""
    for agent in plan.agents.values():
        check(agent.model, agent.settings, agent.retry)

        if agent.backup is not None:
            check(agent.backup, agent.settings, agent.retry)

    for summarizer in plan.summarizers:
        if isinstance(summarizer, str):
            check(summarizer)
