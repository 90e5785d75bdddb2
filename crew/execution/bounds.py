"""The bound of a history: one number, checked before anything runs."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping

from crew.agents import Agent, Crew
from crew.doors import Budget, Policy
from crew.errors import ContextOverflow, DefinitionError
from crew.execution.plan import Plan
from crew.history import Rolling, Summarize
from crew.history.policies.stages import members
from crew.messages import Message, SystemMessage


def budget_for(crew: Crew, policy: Policy, limit: int | None, prune_to: int | None) -> Budget:
    """An explicit limit, else the policy's own; how far a pruning cuts, else half of it."""
    prune_to = getattr(policy, "prune_to", None) if prune_to is None else prune_to
    problems = [
        *_numbers({"max_messages_per_request": limit, "prune_to": prune_to}),
        *(problem for member in members(policy) for problem in _numbers_of(member)),
    ]
    own: int | None = None if problems else getattr(policy, "limit", 50)

    if not problems and limit is not None and own is None:
        problems.append(
            f"max_messages_per_request={limit} and the policy {policy.name!r}, which has no bound, exclude each other"
        )

    if problems:
        raise DefinitionError("CrewExecutor", problems)

    if own is not None and limit is not None and limit < own and any(_says(m, limit) for m in members(policy)):
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


def _numbers(values: Mapping[str, object]) -> Iterable[str]:
    for name, value in values.items():
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            yield f"{name} must be a positive integer such as 50, not {value!r}"


def _numbers_of(policy: Policy) -> Iterable[str]:
    own = {name: getattr(policy, name, None) for name in ("limit", "prune_to")}
    return _numbers({f"{name} of the policy {policy.name!r}": value for name, value in own.items()})


def _says(policy: Policy, limit: int) -> bool:
    """Whether the policy asks for more; the 50 of `rolling` and `summarize` stand for nothing but a default."""
    own: int | None = getattr(policy, "limit", None)
    return own is not None and own > limit and not (isinstance(policy, Rolling | Summarize) and own == Rolling().limit)


def check_views(plan: Plan) -> None:
    """What shapes an agent's view can make no summary, and must leave room for what the agent has to see."""
    problems: list[str] = []

    for name, policies in plan.views.items():
        for policy in policies:
            found = [*_numbers_of(policy)]
            limit: int | None = None if found else getattr(policy, "limit", None)

            if getattr(policy, "summarizes", False):
                found.append(
                    f"the policy {policy.name!r} makes summaries, which stand in the history that all agents share; "
                    "give it to the executor"
                )
            elif limit is not None and limit < (needed := _step(plan.agents[name])):
                found.append(f"the policy {policy.name!r} must let it see at least {needed} messages, not {limit}")

            problems.extend(f"agent {name!r}: {problem}" for problem in found)

    if problems:
        raise DefinitionError("CrewExecutor", problems)


def least_messages(crew: Crew, policy: Policy) -> int:
    """How many messages the mandatory part of a step may need, and a summary where the policy makes them."""
    step = 3 if crew.groups else max(_step(agent) for agent in crew.members.values())
    return step + bool(getattr(policy, "summarizes", False))


def _step(agent: Agent) -> int:
    """A goal is enough for an agent that only answers; else a call and its result, or a reply and what follows it."""
    more = agent.tools or agent.handoffs or agent.routes or agent.then or agent.wait_for_signal or agent.output
    return 3 if more else 1


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
