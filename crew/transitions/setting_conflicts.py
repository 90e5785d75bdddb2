"""Finds settings that can't take effect, because another setting is stricter or replaces them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from crew.history.policies.chain import chain_members
from crew.history.policies.head_tail import HeadTail
from crew.history.policies.rolling import Rolling
from crew.history.policies.summarizing import Checkpoint, Summarize
from crew.history.policies.view_policies import MaskToolResults
from crew.history.pruning import ViewPolicy
from crew.history.token_budget import WINDOW_THRESHOLD, TokenBudget
from crew.interfaces import Chunked, LastNMessages, Policy, policy_options
from crew.runs.parameters import RequestParameters
from crew.settings import Place, warn_about
from crew.transitions.plan import Plan

NEAR_LIMIT = 0.8
"""A target above this share of its limit makes the front of the requests move often."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingConflict:
    """A setting that can't take effect: what applies instead, and the place of the setting in a configuration file."""

    text: str
    place: Place


def warn_of_conflicts(
    plan: Plan, everywhere: Sequence[Policy], limit: int | None, prune_to: int | None, parameters: RequestParameters
) -> None:
    """Warn of the settings of an executor that can't take effect; `everywhere` are its view policies."""
    conflicts = (
        *_history_conflicts(plan, limit, prune_to),
        *_view_conflicts(plan, everywhere),
        *parameter_conflicts(plan, parameters),
    )

    for conflict in conflicts:
        warn_about(conflict.text, *conflict.place)


# ------------------------------------------------------------------------------------------ the shared history


def _history_conflicts(plan: Plan, limit: int | None, prune_to: int | None) -> Iterator[SettingConflict]:
    """`limit` and `prune_to` are the executor's arguments; the policy has its own."""
    bound, members = plan.budget.limit, tuple(chain_members(plan.policy))

    if bound is None:
        return

    for member in members:
        own = policy_options(member).explicit_limit

        if limit is not None and own is not None and own < limit and not _is_default_or_trigger(member, own):
            yield SettingConflict(
                text=f"max_messages_per_request={limit} replaces the limit of {own} of the policy {member.name!r}: the "
                f"history holds up to {limit} messages. Give one of the two numbers.",
                place=("max_messages_per_request",),
            )

    target = plan.options.prune_to if prune_to is None else prune_to

    if target is not None:
        place: Place = ("history", "prune_to") if prune_to is None else ("prune_to",)
        yield from _target_conflicts(members, target, bound, f"max_messages_per_request={bound}", place)


def _is_default_or_trigger(policy: Policy, limit: int) -> bool:
    """Whether the limit is only a default, or starts checkpoints, which a larger bound does not change."""
    match policy:
        case Checkpoint():
            return True
        case Rolling():
            return limit == Rolling().limit
        case HeadTail():
            return limit == HeadTail().max_messages
        case _:
            return False


def _target_conflicts(
    members: Sequence[Policy], target: int, limit: int, limit_text: str, place: Place
) -> Iterator[SettingConflict]:
    """A target that the policies do not use, can't reach, or that is too close to the limit."""
    checkpoints = [member for member in members if isinstance(member, Checkpoint)]

    if checkpoints and len(checkpoints) == len(members):
        recent = checkpoints[0].keep_recent
        yield SettingConflict(
            text=f"prune_to={target} has no effect: a checkpoint keeps the newest {recent} messages.", place=place
        )
        return

    for member in members:
        if isinstance(member, HeadTail) and target < (ends := member.preserve_first_n + member.preserve_last_n):
            yield SettingConflict(
                text=f"prune_to={target} can't be reached: the policy 'head_tail' keeps the first "
                f"{member.preserve_first_n} and the last {member.preserve_last_n} messages, {ends} in all.",
                place=place,
            )

    if target > NEAR_LIMIT * limit and limit > 4:
        yield SettingConflict(
            text=f"prune_to={target} is above {NEAR_LIMIT} of {limit_text}: the front of the requests will move often, "
            "which defeats prompt caching. Half of the limit is a good value.",
            place=place,
        )


# ------------------------------------------------------------------------------------------ views


def _view_conflicts(plan: Plan, everywhere: Sequence[Policy]) -> Iterator[SettingConflict]:
    found: set[int] = set()

    for agent, policies in plan.view_policies.items():
        for view_policy in policies:
            if id(view_policy) in found:
                continue  # a policy of the executor is in the list of every agent

            found.add(id(view_policy))
            policy, options = view_policy.policy, view_policy.options
            shared = any(policy is other for other in everywhere)
            name = f"the policy {policy.name!r}" + ("" if shared else f" of agent {agent!r}")
            place: Place = ("history",) if shared else ("crews", plan.crew.name, "agents", agent, "history")
            text = _bound_conflict(view_policy, plan.budget.limit, shared=shared)

            if text and plan.budget.limit is not None:
                bound = f"the history holds at most {plan.budget.limit} messages (max_messages_per_request)"
                yield SettingConflict(text=f"{text} of {name} has no effect: {bound}.", place=place)

            if options.prune_to is not None and options.explicit_limit is not None:
                target, limit = options.prune_to, options.explicit_limit
                yield from _target_conflicts([policy], target, limit, f"limit={limit} of {name}", (*place, "prune_to"))


def _bound_conflict(view_policy: ViewPolicy, bound: int | None, *, shared: bool) -> str:
    """The setting of a view policy that the bound of the shared history makes ineffective."""
    policy, limit = view_policy.policy, view_policy.options.limit

    if bound is None:
        return ""

    if isinstance(policy, MaskToolResults):
        # The goal and the reply with the calls take two messages of the history.
        most = policy.most_readable
        name = "keep_recent" if policy.max_readable is None else "max_readable"
        value = policy.keep_recent if policy.max_readable is None else policy.max_readable
        return f"{name}={value}" if most is not None and most >= bound - 2 else ""

    if limit is None:
        return "" if shared else "limit=None"

    return f"limit={limit}" if limit != "default" and limit > bound else ""


# ------------------------------------------------------------------------------------------ requests


def parameter_conflicts(plan: Plan, parameters: RequestParameters) -> Iterator[SettingConflict]:
    """Limits of requests that the bound of the history, or another parameter, makes ineffective."""
    bound, size, strategy = plan.budget.limit, parameters.max_history_size, parameters.compression_strategy

    if bound is not None and size is not None and size >= bound:
        name = "max_history_size" if size > bound else "history_prune_to"
        value = size if size > bound else parameters.history_prune_to

        if value is not None:
            yield SettingConflict(
                text=f"{name}={value} has no effect: the history holds at most {bound} messages "
                f"(max_messages_per_request), and a pruning cuts it to {plan.budget.prune_to}. Set "
                "max_messages_per_request and prune_to instead.",
                place=("parameters", name),
            )

    kept = strategy.n if isinstance(strategy, LastNMessages) else strategy.size if isinstance(strategy, Chunked) else 0
    name, place = type(strategy).__name__, ("parameters", "compression_strategy")

    if bound is not None and kept > bound:
        text = (
            f"{name}({kept}) can't have {kept} messages: the history holds at most {bound} (max_messages_per_request)."
        )
        yield SettingConflict(text=text, place=place)

    if isinstance(strategy, LastNMessages) and size is not None and kept > size:
        text = f"{name}({kept}) keeps {kept} messages, but requests show fewer: max_history_size={size} applies."
        yield SettingConflict(text=text, place=place)


def window_conflicts(plan: Plan, parameters: RequestParameters, budgets: Mapping[str, TokenBudget]) -> Iterator[str]:
    """Settings in tokens that the windows of the models make ineffective; `budgets` has one for each agent."""
    if not budgets:
        return

    if parameters.max_tokens is not None:
        most = max(_window_ceiling(plan, name, budget) for name, budget in budgets.items())

        if parameters.max_tokens > most:
            yield (
                f"max_tokens={parameters.max_tokens} has no effect: the windows of the models of this crew have space "
                f"for at most {most} tokens."
            )

    window = max(budget.window for budget in budgets.values())

    for member in chain_members(plan.policy):
        if isinstance(member, Summarize) and member.window is not None and member.window > window:
            yield (
                f"window={member.window} of the policy {member.name!r} has no effect: no model of this crew has a "
                f"window of more than {window} tokens."
            )


def _window_ceiling(plan: Plan, agent: str, budget: TokenBudget) -> int:
    """The tokens beyond which the window cuts a request; a policy with a threshold may use all of the window."""
    policy_decides = any(policy.options.threshold is not None for policy in plan.view_policies.get(agent, ()))
    share = 1.0 if policy_decides else WINDOW_THRESHOLD
    return int(min(budget.window - budget.reply_reserve, share * budget.window))


def default_bound_warning(plan: Plan, size: int) -> str:
    """The warning where the count of messages, and not the window, prunes a history whose policy counts tokens."""
    policy, limit = plan.default_bounded, plan.budget.limit

    if policy is None or limit is None or size <= limit:
        return ""

    return (
        f"The history was pruned at {limit} messages (max_messages_per_request), not by the window that "
        f"{policy.name!r} watches. Write limit: null in the policy, in Python {type(policy).__name__}"
        "(limit=None), to prune by the window alone, or a number to choose the limit."
    )
