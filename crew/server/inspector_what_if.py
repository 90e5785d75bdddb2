"""What a run would have cost under another history policy: a replay by the simulator, for the inspector."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from crew.errors import CrewError
from crew.history.policies.lookup import PolicySpec
from crew.interfaces import ModelRequest
from crew.messages import OMITTED, AssistantMessage, Manifest, Message, SummaryMessage, ToolMessage
from crew.models import TokenPrices, token_prices
from crew.runs.state import RunState
from crew.server.http_errors import HTTPError
from crew.server.inspector_data import DEFAULT_PRICES, RunView, policy_text
from crew.simulator import Prices, Recording, Row, simulate

AS_RUN = "as run"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A policy that the page offers: what it keeps, its mapping, and how one writes it in Python."""

    keeps: str
    spec: PolicySpec
    code: str


def choices(limit: int) -> dict[str, Choice]:
    """The policies to compare, for a limit of messages."""
    masks: dict[str, Any] = {"name": "mask_tool_results", "keep_recent": 7}
    recent = max(1, limit // 3)
    half = max(1, limit // 2)
    return {
        "unbounded": Choice(keeps="everything", spec="unbounded", code="Unbounded()"),
        "sliding": Choice(
            keeps="the newest; one leaves for each that comes",
            spec={"name": "rolling", "limit": limit, "prune_to": limit},
            code=f"Rolling(limit={limit}, prune_to={limit})",
        ),
        "rolling": Choice(
            keeps="the newest; cut to half at the limit",
            spec={"name": "rolling", "limit": limit},
            code=f"Rolling(limit={limit})",
        ),
        "head_tail": Choice(
            keeps="the first and the last",
            spec={"name": "head_tail", "max_messages": limit, "preserve_last_n": half},
            code=f"HeadTail(max_messages={limit}, preserve_last_n={half})",
        ),
        "summarize": Choice(
            keeps="the goal, one summary, the newest",
            spec={"name": "summarize", "limit": limit},
            code=f"Summarize(limit={limit})",
        ),
        "checkpoint": Choice(
            keeps="all summaries, the newest",
            spec={"name": "checkpoint", "trigger_at": limit, "keep_recent": recent},
            code=f"Checkpoint(trigger_at={limit}, keep_recent={recent})",
        ),
        "mask + rolling": Choice(
            keeps="as rolling; old results masked",
            spec={"name": "chain", "policies": [masks, {"name": "rolling", "limit": limit}]},
            code=f"chain(MaskToolResults(keep_recent=7), Rolling(limit={limit}))",
        ),
        "mask + summarize": Choice(
            keeps="as summarize; old results masked",
            spec={"name": "chain", "policies": [masks, {"name": "summarize", "limit": limit}]},
            code=f"chain(MaskToolResults(keep_recent=7), Summarize(limit={limit}))",
        ),
    }


def offered(limit: int) -> list[dict[str, str]]:
    """The policies that the page offers, in order."""
    return [{"policy": name, "keeps": choice.keeps, "code": choice.code} for name, choice in choices(limit).items()]


def replay(state: RunState, view: RunView, policy: str, limit: int) -> dict[str, Any]:
    """The cost and the requests of a recorded run under one policy, or under its own (`as run`)."""
    recording = Recording(
        messages=tuple(message for message in state.transcript if not isinstance(message, SummaryMessage)),
        branches=state.branches,
    )
    found = choices(limit).get(policy)

    if found is None and policy != AS_RUN:
        raise HTTPError(422, "invalid_policy", f"Unknown policy {policy!r}; offered are: {', '.join(choices(limit))}.")

    if not any(isinstance(message, AssistantMessage) for message in recording.messages):
        raise HTTPError(409, "nothing_to_replay", "The run has no reply yet: there is nothing to replay.")

    spec = _own_policy(view) if found is None else found.spec
    provider, model = view.model
    known = token_prices(provider, model)

    try:
        row = simulate(recording, {policy: spec}, _prices(known, provider)).rows[0]
    except CrewError as error:
        # A limit below what the crew needs, or a policy of the user's own, which a stored run does not contain.
        raise HTTPError(422, "invalid_policy", f"The run can't be replayed under {policy!r}: {error}") from error

    return {
        **_row_json(row),
        "policy": policy,
        "limit": row.limit,
        "priced_as": model if known is not None else DEFAULT_PRICES[1],
        "columns": [*_columns(recording.messages, row)],
    }


def _own_policy(view: RunView) -> PolicySpec:
    spec: Mapping[str, Any] = view.history_policy

    if not spec:
        raise HTTPError(
            409, "unknown_policy", "The run was stored without its history policy: nothing to compare with."
        )

    return _bounded(spec, *view.bounds)


def _bounded(spec: Mapping[str, Any], limit: int | None, prune_to: int | None) -> dict[str, Any]:
    """The policy with the bound that was in effect: an executor may set it beside the policy."""
    members = spec.get("policies")

    if isinstance(members, Sequence):
        return {**spec, "policies": [_bounded(member, limit, prune_to) for member in members]}

    if spec["name"] in ("rolling", "summarize") and limit is not None:
        return {**spec, "limit": limit, "prune_to": prune_to}

    return dict(spec)


def _prices(known: TokenPrices | None, provider: str) -> Prices:
    step = 1 if provider == "anthropic" or known is None else 128

    if known is None:
        return Prices(cache_step=step)

    return Prices(
        input=known.input,
        output=known.output,
        cache_read=known.cache_read,
        cache_write=known.cache_write,
        cache_step=step,
    )


def _row_json(row: Row) -> dict[str, Any]:
    return {
        "requests": len(row.billed),
        "summaries": row.summaries,
        "peak": max(row.tokens, default=0),
        "tokens": row.total_tokens,
        "cached": round(row.cache_share, 4),
        "breaks": row.prefix_breaks,
        "cost": row.cost,
        "goal": round(row.goal, 4),
        "constraints": len(row.constraints),
        "valid": row.valid,
    }


def describe(view: RunView) -> dict[str, Any]:
    """The policy of the run, and which limits make sense beside its own."""
    limit = view.bounds[0]
    around = sorted({15, 20, 30, 50, 100, *([limit] if limit else [])})
    return {"own": policy_text(view.history_policy), "limit": limit, "limits": around, "offered": offered(limit or 50)}


# ------------------------------------------------------------------------------------------ the requests as columns


def _columns(messages: Sequence[Message], row: Row) -> Iterator[str]:
    """What each request of the main transcript held, a letter for a message with its repetitions: `cs18f6`.

    c cached, f fresh, m masked, s summarised, e evicted.
    """
    replies = [position for position, message in enumerate(messages) if isinstance(message, AssistantMessage)]
    positions = {message.id: position for position, message in enumerate(messages)}
    requests = [request for request in row.requests if request.purpose == "reply"]
    main = [
        (request, manifest)
        for request, manifest in zip(requests, row.manifests, strict=True)
        if request.run_id == "simulation"
    ]

    covered: dict[str, set[str]] = {}

    for (request, manifest), seen in zip(main, replies, strict=False):
        for message in request.messages:
            if isinstance(message, SummaryMessage) and message.id not in covered:
                # A summary may cover an earlier one, and then also what that one covered.
                inner = (covered.get(id, set()) for id in message.covers)
                covered[message.id] = set(message.covers).union(*inner)

        yield _encode(_column(request, manifest, positions, seen, covered))


def _column(
    request: ModelRequest,
    manifest: Manifest,
    positions: Mapping[str, int],
    seen: int,
    covered: Mapping[str, set[str]],
) -> list[str]:
    column = ["e"] * seen

    for id in set[str]().union(*(covered.get(message.id, ()) for message in request.messages)):
        if positions.get(id, seen) < seen:
            column[positions[id]] = "s"

    for place, message in enumerate(request.messages):
        position = positions.get(message.id, seen)

        if position < seen:
            is_cached = place < manifest.same_messages and bool(manifest.cached_billed)
            column[position] = "m" if _is_masked(message) else "c" if is_cached else "f"

    return column


def _is_masked(message: Message) -> bool:
    return isinstance(message, ToolMessage) and all(result.text == OMITTED for result in message.results)


def _encode(column: Sequence[str]) -> str:
    runs = [(letter, sum(1 for _ in same)) for letter, same in groupby(column)]
    return "".join(f"{letter}{count if count > 1 else ''}" for letter, count in runs)
