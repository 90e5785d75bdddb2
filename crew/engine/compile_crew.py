"""Compiles the crew and the settings of an executor into a checked plan."""

from __future__ import annotations

from collections.abc import Callable

from crew.agents.agent import AnyAgent
from crew.agents.crew import Crew
from crew.engine.token_meter import check_windows
from crew.errors import DefinitionError
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


CheckModel = Callable[..., None]
"""Raises `DefinitionError` for a model, with settings and retries, that can't be used."""


def check_models(plan: Plan, check: CheckModel) -> None:
    """Check each model with its settings and retries."""
    for agent in plan.agents.values():
        check_agent_models(agent, check)

    for summarizer in plan.summarizers:
        if isinstance(summarizer, str):
            check(summarizer)


def check_agent_models(agent: AnyAgent, check: CheckModel, advice: str = "") -> None:
    """Check the model of an agent and its backup; the error names the agent, and ends with the advice."""
    for model in (agent.model, agent.backup):
        if model is None:
            continue

        try:
            check(model, agent.settings, agent.retry)
        except DefinitionError as error:
            *others, last = error.problems
            subject = f"Agent {agent.name!r}: {error.subject}"
            raise DefinitionError(subject, [*others, f"{last} {advice}".rstrip()]) from error
