"""The bound of a history: one number, checked before anything runs."""

from __future__ import annotations

import warnings
from collections.abc import Iterable

from crew.agents import Agent, Crew
from crew.doors import Budget, Policy
from crew.errors import ContextOverflow, DefinitionError
from crew.execution.plan import Plan
from crew.history import Rolling, Summarize
from crew.messages import Message, SystemMessage


def budget_for(crew: Crew, policy: Policy, limit: int | None, prune_to: int | None) -> Budget:
    """An explicit limit, else the policy's own; how far a pruning cuts, else half of it."""
    own: int | None = getattr(policy, "limit", 50)
    prune_to = getattr(policy, "prune_to", None) if prune_to is None else prune_to
    problems = [*_numbers(limit, prune_to)]

    if own is not None and (not isinstance(own, int) or isinstance(own, bool)):
        problems.append(f"the limit of the policy {policy.name!r} must be a positive integer or None, not {own!r}")

    if not problems and limit is not None and own is None:
        problems.append(
            f"max_messages_per_request={limit} and the policy {policy.name!r}, which has no bound, exclude each other"
        )

    if problems:
        raise DefinitionError("CrewExecutor", problems)

    if own is not None and limit is not None and limit < own and _says(policy):
        raise DefinitionError(
            "CrewExecutor",
            f"max_messages_per_request={limit} is below the {own} messages that the policy {policy.name!r} asks for; "
            f"raise it to {own}, or give the policy smaller numbers",
        )

    bound = own if limit is None else limit

    if bound is None:
        return Budget(limit=None)

    needed = least_messages(crew, policy)

    if bound < needed:
        raise DefinitionError(
            "CrewExecutor",
            f"max_messages_per_request must be at least {needed} for this crew (a goal, a call and its result, or a "
            f"reply and what follows it), not {bound}; 1 is enough where agents only answer",
        )

    target = max(1, bound // 2) if prune_to is None else prune_to

    if target > bound:
        raise DefinitionError(
            "CrewExecutor", f"prune_to must be at most max_messages_per_request={bound}, not {target}"
        )

    if prune_to is not None and target > 0.8 * bound and bound > 4:
        warnings.warn(
            f"prune_to={target} is above 0.8 of max_messages_per_request={bound}: the front of the requests will move "
            "often, which defeats prompt caching. Half of the limit is a good value.",
            stacklevel=4,
        )

    return Budget(limit=bound, target=target)


def _numbers(limit: object, prune_to: object) -> Iterable[str]:
    for name, value in (("max_messages_per_request", limit), ("prune_to", prune_to)):
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            yield f"{name} must be a positive integer such as 50, not {value!r}"


def _says(policy: Policy) -> bool:
    """Whether the policy's bound is its own: the one of `rolling` stands for nothing but a default."""
    return not isinstance(policy, Rolling | Summarize) and hasattr(policy, "limit")


def least_messages(crew: Crew, policy: Policy) -> int:
    """How many messages the mandatory part of a step may need, and a summary where the policy makes them."""
    step = 3 if crew.groups or any(_does_more_than_answer(agent) for agent in crew.members.values()) else 1
    return step + bool(getattr(policy, "summarizes", False))


def _does_more_than_answer(agent: Agent) -> bool:
    return bool(
        agent.tools or agent.handoffs or agent.routes or agent.then or agent.wait_for_signal or agent.output is not None
    )


def check_room(plan: Plan, messages: Iterable[Message]) -> None:
    """Before the first request: whether the system messages that came in leave room for a step."""
    systems = len({message.text for message in messages if isinstance(message, SystemMessage)})
    needed, budget = least_messages(plan.crew, plan.policy), plan.budget

    if budget.limit is not None and needed + systems > budget.limit:
        raise ContextOverflow(
            f"{systems} system messages leave no room for a step within max_messages_per_request={budget.limit}; "
            f"at least {needed + systems} are needed.",
            limit=budget.limit,
            items=[("system messages", systems), ("goal and one step", needed)],
        )
