"""What a request would have cost had nothing been left out, at the prices of the model that answered it."""

from __future__ import annotations

from dataclasses import replace

from crew.doors import ModelReply, Provider
from crew.execution.gauges import gauge_of
from crew.execution.plan import Plan
from crew.history import Calibration, View
from crew.models import cost_of
from crew.runs import RunState


def saved_by_pruning(plan: Plan, state: RunState, provider: Provider, reply: ModelReply, shown: int) -> float | None:
    """The dollars that this request, with so many messages shown, cost less; negative where it cost more.

    The request without pruning is reckoned as the service would have billed it: where prompts are cached, its front
    is the agent's whole request before it. None where the price is unknown.
    """
    usage = reply.usage

    if usage.cost is None or not usage.cost or shown >= len(state.transcript):
        return usage.cost and 0.0

    view = state.views.get(state.agent, View())
    gauge = gauge_of(plan, state, state.agent)
    ratio = state.calibrations.get(gauge.model, Calibration()).ratio
    whole = max(usage.input_tokens, round(gauge.fixed + state.tally.seen_tokens * ratio))
    fresh = min(whole, round((state.tally.seen_tokens - view.seen) * ratio))
    so_far = state.tally.usage + usage
    caches = bool(view.sent and (so_far.cache_read_tokens or so_far.cache_write_tokens))
    unpruned = replace(
        usage,
        input_tokens=whole,
        cache_read_tokens=whole - fresh if caches else 0,
        cache_write_tokens=fresh if so_far.cache_write_tokens else 0,
    )
    cost = cost_of(provider.name, reply.model or provider.model, unpruned)
    return None if cost is None else cost - usage.cost
