"""The model and settings that one run uses in place of those of its agents."""

from __future__ import annotations

from dataclasses import replace

from crew.agents.agent import AnyAgent
from crew.engine.compile_crew import CheckModel, check_agent_models
from crew.engine.token_meter import TokenMeter, check_windows
from crew.errors import DefinitionError, InvalidInput, Violation
from crew.fast_replace import replace_unchecked
from crew.runs.parameters import RunOverrides
from crew.transitions.plan import Plan


def overridden_plan(plan: Plan, overrides: RunOverrides) -> Plan:
    """The plan of a run with these overrides: they apply to every agent, also in branches. Backups stay."""
    if not overrides:
        return plan

    return replace(plan, agents={name: _overridden(agent, overrides) for name, agent in plan.agents.items()})


def apply_overrides(plan: Plan, meter: TokenMeter, overrides: RunOverrides) -> tuple[Plan, TokenMeter]:
    """The plan of a run with these overrides, and a meter for it."""
    if not overrides:
        return plan, meter

    changed = overridden_plan(plan, overrides)
    return changed, TokenMeter(plan=changed, counter=meter.counter)


def _overridden(agent: AnyAgent, overrides: RunOverrides) -> AnyAgent:
    settings = agent.settings if overrides.settings is None else agent.settings.overridden_by(overrides.settings)
    # The agent was checked when it was built, and these values when they were given; its output type stays the same.
    return replace_unchecked(agent, model=overrides.model or agent.model, settings=settings)


def check_overrides(plan: Plan, overrides: RunOverrides, check_model: CheckModel) -> None:
    """Raise `InvalidInput` if an agent can't use the model or the settings of this run."""
    if not overrides:
        return

    try:
        if overrides.model:
            check_model(overrides.model, overrides.settings)

        overridden = overridden_plan(plan, overrides)

        for agent in overridden.agents.values():
            advice = (
                f"Settings of the agent that the run does not replace apply: change those of {agent.name!r}, or choose"
            )
            check_agent_models(agent, check_model, f"{advice} another model." if overrides.model else "")

        check_windows(overridden)
    except DefinitionError as error:
        rule = "model" if overrides.model else "settings"
        raise InvalidInput([Violation(rule=rule, text=str(error))]) from error
