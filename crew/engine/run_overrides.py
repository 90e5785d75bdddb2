"""The model and settings that one run uses in place of those of its agents."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from crew.agents.agent import AnyAgent
from crew.engine.token_meter import TokenMeter, check_windows
from crew.errors import DefinitionError, InvalidInput, Violation
from crew.runs.parameters import RunOverrides
from crew.transitions.plan import Plan

CheckModel = Callable[..., None]
"""Raises `DefinitionError` for a model, with settings and retries, that can't be used."""


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
    return replace(agent, model=overrides.model or agent.model, settings=settings)


def check_overrides(plan: Plan, overrides: RunOverrides, check_model: CheckModel) -> None:
    """Raise `InvalidInput` if an agent can't use the model or the settings of this run."""
    if not overrides:
        return

    rule = "model" if overrides.model else "settings"

    try:
        overridden = overridden_plan(plan, overrides)

        for agent in overridden.agents.values():
            check_model(agent.model, agent.settings, agent.retry)

            if agent.backup is not None:
                check_model(agent.backup, agent.settings, agent.retry)

        check_windows(overridden)
    except DefinitionError as error:
        raise InvalidInput([Violation(rule=rule, text=str(error))]) from error
