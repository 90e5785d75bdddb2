"""What happens when an agent becomes active: it is prepared where it needs it, and then its model is asked."""

from __future__ import annotations

from dataclasses import replace

from crew.history.token_budget import TokenBudget
from crew.runs.answers import is_approval
from crew.runs.events import AgentPrepared, ConsentAsked, Resumed, Warned
from crew.runs.prepared import PendingConsent, Preparation, PreparedAgent
from crew.runs.state import CheckInput, PrepareAgent, RunState
from crew.transitions.before_request import ask_model_next, stop_if_limit_reached
from crew.transitions.checks import agent_checks
from crew.transitions.prepared_agents import without_unused
from crew.transitions.step import Step


def activate_agent(step: Step, *, checks_input: bool = True) -> None:
    """Check the goal and prepare the current agent next, which became active; one that needs neither asks its model."""
    if checks_input and step.agent in step.plan.checks:
        checks = agent_checks(step.plan, step.agent)
        step.unchecked_input = tuple(one.name for one in checks.parallel)

        if checks.input:
            if not stop_if_limit_reached(step):
                step.next = CheckInput(guardrails=tuple(one.name for one in checks.input))

            return

    if step.agent not in step.plan.prepares:
        ask_model_next(step)
    elif not stop_if_limit_reached(step):
        step.next = PrepareAgent()


def on_agent_prepared(step: Step, event: AgentPrepared) -> None:
    """The instructions and toolsets of the current agent are resolved: ask its model."""
    for text in event.warnings:
        step.emit(Warned, text=text)

    before = step.prepared.get(step.agent)
    step.prepared = {**step.prepared, step.agent: event.prepared}
    budgets = step.token_budgets.get(step.agent, ())
    counted = [
        _with_overhead(budget, tokens, before, event.prepared)
        for budget, tokens in zip(budgets, event.overheads, strict=False)
    ]
    step.token_budgets = {**step.token_budgets, step.agent: (*counted, *budgets[len(counted) :])}
    ask_model_next(step)


def _with_overhead(budget: TokenBudget, counted: int, before: PreparedAgent | None, now: PreparedAgent) -> TokenBudget:
    """The budget with this overhead; what bills taught about the last one applies to this one in proportion."""
    if budget.overhead_counted == counted and (before is None or before.head == now.head):
        return budget

    ratio = budget.overhead_tokens / budget.overhead_counted if budget.overhead_counted else 1.0
    return replace(budget, overhead_tokens=round(counted * min(max(ratio, 0.5), 2.0)), overhead_counted=counted)


def on_consent_asked(step: Step, event: ConsentAsked) -> None:
    """Wait for the answers of a person before the toolsets are listed again."""
    place = f"{step.run_id}:{len(step.transcript)}"
    step.next = PrepareAgent(
        consents=tuple(
            PendingConsent(pause_id=f"{place}.{toolset}.consent", toolset=toolset, key=key, question=question)
            for toolset, (key, question) in event.consents.items()
        )
    )


def resume_preparation(step: Step, now: PrepareAgent, event: Resumed) -> None:
    """Go on with the preparation once each consent has an answer; the root run keeps the answers."""
    step.next = PrepareAgent(consents=tuple(c for c in now.consents if c.pause_id not in event.answers))


def merge_preparation(step: Step, event: AgentPrepared) -> None:
    """Keep in the root run what an agent of the tree refers to now; the first list of a toolset stays."""
    known = step.preparation
    step.preparation = without_unused(
        Preparation(
            texts={**known.texts, **event.texts},
            specs={**known.specs, **event.specs},
            toolsets={**event.listed, **known.toolsets},
            consents=known.consents,
        ),
        step.freeze(),
    )


def merge_consents(step: Step, event: Resumed) -> None:
    """Keep the answers to consents in the root run, where every agent of the tree finds them."""
    asked = {consent.pause_id: consent.key for consent in _consents(step.freeze())}
    given = {key: is_approval(event.answers[id]) for id, key in asked.items() if id in event.answers}

    if given:
        step.preparation = replace(step.preparation, consents={**step.preparation.consents, **given})


def _consents(state: RunState) -> list[PendingConsent]:
    own = [*state.next.consents] if isinstance(state.next, PrepareAgent) else []
    return [*own, *(consent for child in state.children.values() for consent in _consents(child))]
