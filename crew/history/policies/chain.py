"""`chain`: several policies, one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from crew.errors import DefinitionError, abbreviate
from crew.history.eviction import call_policy, enforce_bounds
from crew.history.policies.rolling import Rolling, Unbounded
from crew.history.policies.summarizing import Summarize
from crew.history.policies.view_policies import Truncate
from crew.interfaces import HistoryBudget, MessageGroup, Policy, PolicyOptions, PruneDecision, policy_options


def check_policy(spec: object, expected: str) -> Policy:
    """Return `spec` if it is a policy, else raise an error that names what is expected."""
    if isinstance(spec, type):
        text = f"{spec.__name__} is a class; pass an object: {spec.__name__}()"
        raise DefinitionError("History policy", text)

    if not isinstance(spec, Policy) or not isinstance(spec.name, str):
        text = f"a policy has a name and a method 'prune'; give {expected}, not {abbreviate(spec)}"
        raise DefinitionError("History policy", text)

    return spec


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Applies policies in order: each gets the groups that the previous one kept. The smallest limit applies."""

    policies: tuple[Policy, ...]
    name: str = "chain"
    _member_options: tuple[PolicyOptions, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.policies:
            raise DefinitionError("History policy 'chain'", "it has no members; give at least one policy")

        for member in self.policies:
            check_policy(member, "one such as Rolling()")

        object.__setattr__(self, "_member_options", tuple(policy_options(member) for member in self.policies))

    @property
    def options(self) -> PolicyOptions:
        """The strictest combination of the members' options."""
        members = self._member_options
        limits = [options.history_limit for options in members]
        limit = min((limit for limit in limits if limit is not None), default=None)
        target = min((options.prune_to for options in members if options.prune_to is not None), default=None)
        return PolicyOptions(
            limit=limit,
            prune_to=target if target is None or limit is None else min(target, limit),
            eager=any(options.eager for options in members),
            summarizes=any(options.summarizes for options in members),
            summarizer=next((options.summarizer for options in members if options.summarizer is not None), None),
        )

    def prune(self, history: Sequence[MessageGroup], budget: HistoryBudget) -> PruneDecision:
        """Apply every member to what the previous one kept, and add up the decisions."""
        total = PruneDecision(kept=tuple(history))

        for policy, options in zip(self.policies, self._member_options, strict=True):
            one = enforce_bounds(total.kept, call_policy(policy, total.kept, _member_budget(options, budget)), None)
            total = PruneDecision(
                kept=one.kept,
                evicted=(*total.evicted, *one.evicted),
                masked=(*total.masked, *one.masked),
                to_summarize=(*total.to_summarize, *one.to_summarize),
                reason="; ".join(filter(None, (total.reason, one.reason))),
            )

        return total


def _member_budget(options: PolicyOptions, budget: HistoryBudget) -> HistoryBudget:
    """The budget of a chain for one member, which prunes to its own limit where that is smaller."""
    limit = options.explicit_limit

    if limit is None or budget.limit is None or limit >= budget.limit:
        return budget

    return replace(budget, limit=limit, prune_to=min(budget.prune_to, limit))


def chain(*policies: Policy) -> Chain:
    """Combine policies; they apply in this order."""
    return Chain(policies=policies)


def chain_members(policy: Policy) -> Iterator[Policy]:
    """The members of a chain, nested chains included; any other policy is its only member."""
    if not isinstance(policy, Chain):
        yield policy
        return

    for member in policy.policies:
        yield from chain_members(member)


def split_stages(policy: Policy) -> tuple[Policy, tuple[Policy, ...]]:
    """Split an executor's policy into the one that bounds the shared history and those that prune each view.

    Where all of them prune views, the history has the limit of `truncate`, by default 50 messages.
    """
    members = [(member, policy_options(member).stage) for member in chain_members(policy)]
    views = tuple(member for member, stage in members if stage == "view")

    if not views:
        return policy, ()

    rest = tuple(member for member, stage in members if stage != "view")

    if len(rest) > 1:
        return Chain(policies=rest, name=policy.name), views

    return (rest[0] if rest else _bounding_policy(policy.name, views)), views


def _bounding_policy(name: str, views: Sequence[Policy]) -> Policy:
    limits = [member.limit for member in views if isinstance(member, Truncate)]
    numbers = [limit for limit in limits if isinstance(limit, int)]

    if numbers:
        return Rolling(limit=min(numbers), name=name)

    return Unbounded(name=name) if None in limits else Rolling()


def default_bounded_policy(policy: Policy) -> Policy | None:
    """`truncate` or `summarize`, where no limit on messages was chosen: the default bounds its history too."""
    members = tuple(chain_members(policy))
    found = [member for member in members if isinstance(member, Truncate | Summarize)]
    others = any(member not in found and policy_options(member).stage == "history" for member in members)
    return found[0] if found and not others and all(member.limit == "default" for member in found) else None
