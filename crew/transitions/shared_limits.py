"""The limits of child runs: equal shares of what is left of their parent's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from crew.runs.events import Warned
from crew.runs.parameters import Limits
from crew.transitions.step import Step


def share_limits(step: Step, parts: int) -> Limits:
    """The remaining limits in equal parts; the remainder of a division is not used."""
    limits, used = step.limits, step.counters
    rounds = None if limits.rounds is None else max(0, limits.rounds - used.rounds) // parts
    tokens = None if limits.tokens is None else max(0, limits.tokens - used.usage.total_tokens) // parts
    money = None if limits.cost_usd is None else max(0.0, limits.cost_usd - (used.usage.cost or 0.0)) / parts
    handoffs = None if limits.handoffs is None else max(0, limits.handoffs - used.handoffs)
    # Time is not divided: branches run at the same time, and children share the clock of the root.
    return replace(limits, rounds=rounds, tokens=tokens, cost_usd=money, handoffs=handoffs)


def warn_of_small_share(step: Step, share: Limits, agents: Sequence[str], where: str) -> None:
    """Warn once if these agents, one for each part, get fewer rounds than one tool call and an answer take."""
    agent = next(
        (name for name in agents if share.rounds is not None and share.rounds < _rounds_needed(step, name)), ""
    )

    if not agent or step.limits.rounds is None or not step.warn_once(f"limits.rounds of {where}"):
        return

    needed, left = _rounds_needed(step, agent), max(0, step.limits.rounds - step.counters.rounds)
    work = "an answer takes 1" if needed == 1 else f"a tool call and an answer take {needed}"
    step.emit(
        Warned,
        text=f"limits.rounds: each of {len(agents)} runs of {where} gets {share.rounds} of the {left} rounds that are "
        f"left, but {work}: {agent!r} may end at its limit. Raise Limits(rounds={step.limits.rounds}) by at least "
        f"{needed * len(agents) - left}, or start fewer runs.",
    )


def _rounds_needed(step: Step, agent: str) -> int:
    """The model calls that a simple task takes: an agent with tools asks for a call, and answers with its result."""
    return 2 if step.plan.toolkits[agent].specs or step.plan.agents[agent].toolsets else 1
