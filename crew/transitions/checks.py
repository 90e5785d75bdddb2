"""Which guardrails apply: to the input of a run or of an agent, to a call, to an output."""

from __future__ import annotations

from collections.abc import Iterable

from crew.agents.guardrail import NO_CHECKS, Checks, Guardrail
from crew.runs.state import CallTools, OpenCall, RunFields
from crew.transitions.plan import Plan


def agent_checks(plan: Plan, agent: str) -> Checks:
    """The guardrails of an agent."""
    return plan.checks.get(agent, NO_CHECKS)


def find_guardrail(plan: Plan, agent: str, name: str) -> Guardrail | None:
    """The guardrail of this name, of the crew or of the agent."""
    return plan.crew_checks.find(name) or agent_checks(plan, agent).find(name)


def start_checks(plan: Plan, agent: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The guardrails of the input of a run: those that come first, and those beside the first request.

    A group has no first request, so that none of its guardrails runs beside one.
    """
    crew, own = plan.crew_checks, agent_checks(plan, agent)

    if agent in plan.groups:
        return _names((*crew.input, *crew.parallel)), ()

    return _names((*crew.input, *own.input)), _names((*crew.parallel, *own.parallel))


def output_checks(plan: Plan, state: RunFields, *, is_shown: bool) -> tuple[str, ...]:
    """The guardrails of an output; those of the crew only where the root run shows it to the caller."""
    of_crew = plan.crew_checks.output if is_shown and is_root(state) else ()
    return _names((*agent_checks(plan, state.agent).output, *of_crew))


def checks_output(plan: Plan, state: RunFields) -> bool:
    """Whether guardrails may check what the current agent writes."""
    return bool(agent_checks(plan, state.agent).output or (plan.crew_checks.output and is_root(state)))


def call_checks(plan: Plan, agent: str) -> tuple[str, ...]:
    """The guardrails of the calls of an agent."""
    return _names((*plan.crew_checks.tool, *agent_checks(plan, agent).tool))


def pending_checks(plan: Plan, agent: str, open: OpenCall) -> tuple[str, ...]:
    """The guardrails that this call has not passed yet; none for a handoff, or once it started, waits or is done."""
    if open.call.name in plan.toolkits[agent].handoffs:
        return ()

    return tuple(name for name in call_checks(plan, agent) if name not in open.checks) if open.status == "ready" else ()


def unchecked_calls(plan: Plan, agent: str, now: CallTools) -> list[OpenCall]:
    """The calls that may not start yet, because guardrails have to check them."""
    if not plan.crew_checks.tool and not agent_checks(plan, agent).tool:
        return []

    return [open for open in now.calls if pending_checks(plan, agent, open)]


def is_root(state: RunFields) -> bool:
    """Whether this is the run itself, and not a branch or an agent called as a tool."""
    return "/" not in state.run_id


def _names(guardrails: Iterable[Guardrail]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(one.name for one in guardrails))
